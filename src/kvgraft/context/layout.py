"""How documents and a question become a prompt: documents first, so that their state is kept.

The prompt is cut where a document ends (`kvgraft.plan`). What stands before the cut depends on the
documents alone; the question, and whatever a chat template closes its turn with, come behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgraft.engines.base import Message, Tokenizer
from kvgraft.errors import InputError
from kvgraft.prompt import Prompt, encode, render_messages, shared_prefix

PREAMBLE = (
    "Answer the question from the document. Be brief, and use the document's own words. If the"
    " document does not say it, answer: not in the document."
)
NOT_THERE = "not in the document"


@dataclass(frozen=True)
class Layout:
    """`preamble` stands before the first document: the same for all pages of a collection."""

    preamble: str = PREAMBLE

    def prompt(
        self,
        tokenizer: Tokenizer,
        documents: Sequence[str],
        question: str,
        page_ids: Sequence[int] = (),
    ) -> Prompt:
        """The prompt that asks `question` behind `documents`, cut where the first of them ends if
        its `page_ids` are given.

        Raises:
            InputError: an empty question, or the chat template refuses the text.
        """
        if not question.strip():
            raise InputError("the question is empty")
        text = self._render(tokenizer, documents, question)
        ids = encode(tokenizer, text)
        # Where the ids part, what follows has joined with the document's last word.
        same = shared_prefix(ids, page_ids)
        return Prompt(text, ids, (same,) if same and same == len(page_ids) else ())

    def page_ids(self, tokenizer: Tokenizer, document: str) -> tuple[int, ...]:
        """The ids of a document behind the preamble, whatever follows it: a question or another
        document."""
        asked = encode(tokenizer, self._render(tokenizer, [document], "A"))
        followed = encode(tokenizer, self._render(tokenizer, [document, "0"], "A"))
        return asked[: shared_prefix(asked, followed)]

    def _render(self, tokenizer: Tokenizer, documents: Sequence[str], question: str) -> str:
        parts = [self.preamble, *(document.strip() for document in documents)]
        body = "\n\n".join([*(part for part in parts if part), f"Question: {question.strip()}"])
        if tokenizer.template_digest == "none":
            return f"{body}\nAnswer:"
        return render_messages(tokenizer, [Message("user", body)])


def titled(title: str, heading: str, text: str) -> str:
    """A page as models read it: what it is from, then its text."""
    name = " > ".join(part for part in (title, heading) if part)
    return f"# {name}\n\n{text.strip()}" if name else text.strip()
