"""Text to the token ids that are computed: rendered once, tokenised once, joined with care.

Text is tokenised as a whole. Where a prefix of it is to be stored, the place where it ends must
be a token boundary both with and without what follows (a *clean joint*); where it is not, the
prefix backs off to the last boundary that both share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kvgraft.engines.base import Message, Tokenizer
from kvgraft.errors import InputError

# After a finished solution, the words behind which a model states its answer. No cue ends in
# white space: tokenizers join a space to the word that follows it.
CUES = (
    "\n\nFinal Answer:",
    "\n\nThe final answer is",
    "\n\nAnswer:",
    "\n\nSo the answer to the question is",
)


@dataclass(frozen=True)
class Prompt:
    """`text` is what `ids` spell, BOS apart. `cuts` are the lengths in tokens at which calls of its
    plan end early (`kvgraft.plan`)."""

    text: str
    ids: tuple[int, ...]
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Joint:
    """A stored prefix and whether it ends where its text does. `backed_off` counts the tokens
    that had to be left to what follows."""

    ids: tuple[int, ...]
    backed_off: int

    @property
    def clean(self) -> bool:
        return self.backed_off == 0


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of a whole prompt text, with exactly one BOS where the model begins with one.

    Raises:
        InputError: the text has no tokens.
    """
    ids = list(tokenizer.encode(text))
    bos = tokenizer.bos_id
    if bos is not None:
        # A template may spell it, a tokenizer may add it in spite of its contract, or both.
        first = next((n for n, id in enumerate(ids) if id != bos), len(ids))
        ids = [bos, *ids[first:]]
    if not ids:
        raise InputError("the prompt is empty", hint="give at least one token of text")
    return tuple(ids)


def render_messages(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """A chat as text, ending where the assistant's next words begin.

    A model without a chat template gets the plain contents, a blank line between turns.
    """
    if tokenizer.template_digest == "none":
        return "\n\n".join(message.content for message in messages) + "\n\n"
    return tokenizer.render(messages)


def history_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[int, ...]:
    """The ids that the next request behind finished turns begins with, whatever the user will say:
    what two different next turns have in common."""
    one, other = (
        encode(tokenizer, render_messages(tokenizer, [*messages, Message("user", text)]))
        for text in ("A", "0")
    )
    return one[: shared_prefix(one, other)]


def turn_ends(
    ids: Sequence[int], stop_ids: Collection[int], messages: Sequence[Message]
) -> list[int]:
    """Where the finished turns of the assistant end in the ids of a rendered conversation: lengths
    in tokens, each just behind the id that ends the turn.

    Messages and ends are matched from the last one backwards, since a template may put a turn of
    its own in front, or fold the system text into another. It looks at nothing but its arguments:
    whoever renders the same conversation finds the same ends.
    """
    ends = [place for place, id in enumerate(ids, 1) if id in stop_ids]
    pairs = zip(reversed(messages), reversed(ends), strict=False)
    return sorted(end for message, end in pairs if message.role == "assistant")


def problem_prompt(tokenizer: Tokenizer, problem: str, system: str | None) -> Prompt:
    """The prompt that poses a problem. Both texts are expected in canonical form.

    Raises:
        InputError: an empty problem.
    """
    if not problem.strip():
        raise InputError("the problem is empty")
    messages = [Message("system", system)] if system is not None else []
    text = render_messages(tokenizer, [*messages, Message("user", problem)])
    return Prompt(text, encode(tokenizer, text))


def join(tokenizer: Tokenizer, left: str, right: str) -> Joint:
    """The ids of `left` as a prefix of `left + right`, backed off to a shared boundary."""
    alone = encode(tokenizer, left)
    together = encode(tokenizer, left + right)
    shared = shared_prefix(alone, together)
    return Joint(alone[:shared], len(alone) - shared)


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids are equal."""
    count = 0
    for mine, theirs in zip(left, right, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def answer_prefixes(
    tokenizer: Tokenizer, prompt: str, trace: str, answer: str
) -> Iterator[tuple[str, Joint]]:
    """Cues, each with the ids of `prompt + trace + cue`, which end just before the answer.

    Those with a clean joint come first, in the order of `CUES`; the others follow, backed off.
    """
    joints = [(cue, join(tokenizer, prompt + trace + cue, " " + answer)) for cue in CUES]
    yield from (pair for pair in joints if pair[1].clean)
    yield from (pair for pair in joints if not pair[1].clean and pair[1].ids)
