"""A question to a collection: route, graft the page, put the question behind it, decode, quote.

Four ways, which differ in what stands before the question:

- `page`: the best page, whose state is grafted; nothing of it is read again.
- `together`: several pages, the first grafted and the others computed behind it: exact, bounded by
  the model's context.
- `each`: every one of several pages by itself, each grafted; then the answers, as text.
- `text`: the best passages as text, as plain retrieval does; no state is used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvgraft.context.about import About
from kvgraft.context.collection import Collection, StoredPage, StoredPassage
from kvgraft.context.embed import Embedder
from kvgraft.context.ingest import capture_page
from kvgraft.context.layout import NOT_THERE, titled
from kvgraft.context.route import RoutedPage, Routing, route
from kvgraft.context.space import Space
from kvgraft.decode import Decoded, greedy
from kvgraft.energy import Measure
from kvgraft.errors import ContextTooLong, InputError, UsageError
from kvgraft.flops import request_flops
from kvgraft.limits import MAX_QUESTION_PAGES
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt
from kvgraft.reuse import Keep, ReuseReport, compute_prompt

PAGE, TOGETHER, EACH, TEXT = "page", "together", "each", "text"
WAYS = (PAGE, TOGETHER, EACH, TEXT)
PASSAGES = 6  # that stand before a question as text
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Source:
    """Where an answer is from: a page of a document, and the passage of it that is quoted, whose
    first character is the document's `start`. `holds_answer`: the passage has the answer's
    words."""

    path: str
    title: str
    page: int
    heading: str
    start: int
    passage: str
    score: float
    holds_answer: bool


@dataclass
class Times:
    """Seconds, each from the end of the one before it. `first_token` is what a user waits for
    behind the routing: tokenising, the graft, the question's own call."""

    route: float = 0.0
    first_token: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True)
class Reply:
    """`answer` is None where nothing in the collection is relevant, or the model says that the
    document does not say it. `reuse`: what was grafted and computed, a report for every prompt, and
    one before it where a page's state was gone and made again."""

    way: str
    text: str
    answer: str | None
    relevant: bool
    why: str
    sources: tuple[Source, ...]
    cost: Cost
    times: Times
    finished: bool = True
    logits_sha256: str | None = None
    reuse: tuple[ReuseReport, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Said:
    """One prompt's answer."""

    text: str
    decoded: Decoded
    report: ReuseReport
    prompt: Prompt


def ask_collection(
    space: Space,
    collection: Collection,
    question: str,
    *,
    way: str = PAGE,
    pages: int = 1,
    max_new_tokens: int = 64,
    embedder: Embedder | None = None,
    anyway: bool = False,
) -> Reply:
    """Answer a question from a collection. `pages`: how many are read, for ways that take several.
    `anyway`: ask the model too where the routing finds nothing relevant.

    Raises:
        UsageError: no such way; a model that the collection was not made for.
        InputError: an empty question.
        ContextTooLong: question and page do not fit the model's context.
        StoreError: the collection is damaged.
    """
    if way not in WAYS:
        raise UsageError(f"there is no way {way!r} to ask", hint=f"choose from {', '.join(WAYS)}")
    if not 1 <= pages <= MAX_QUESTION_PAGES:
        raise UsageError(f"a question is put to 1 to {MAX_QUESTION_PAGES} pages")
    if not question.strip():
        raise InputError("the question is empty")
    about = collection.about
    about.check_engine(space.engine)
    if about.embedder is not None and embedder is None:
        raise UsageError(
            "the collection is searched by meaning too, and no embedding model is open",
            where=about.name,
            hint="open one (kvgraft.context.embed.open_embedder)",
        )
    asking = _Asking(space, collection, about, question, max_new_tokens)
    with Measure(space.meter) as measured:
        began = time.perf_counter()
        count = max(pages, 3) if way != TEXT else max(pages, PASSAGES)
        routing = route(collection.db, question, count=count, embedder=embedder)
        asking.times.route = time.perf_counter() - began
        reply = asking.answer(routing, way, pages, anyway)
    return replace(reply, cost=measured.into(reply.cost))


class _Asking:
    def __init__(
        self,
        space: Space,
        collection: Collection,
        about: About,
        question: str,
        max_new_tokens: int,
    ) -> None:
        self._space = space
        self._collection = collection
        self._layout = about.layout
        self._same_engine = about.fingerprint == space.engine.fingerprint.hex
        self._question = question
        self._max_new_tokens = max_new_tokens
        self._cost = Cost.nothing()
        self._reuse: list[ReuseReport] = []
        self.times = Times()

    def answer(self, routing: Routing, way: str, count: int, anyway: bool) -> Reply:
        if not routing.pages or not (routing.relevant or anyway):
            return self._reply(way, None, routing, ())
        if way == TEXT:
            return self._from_passages(routing)
        pages = [self._collection.page(one.page) for one in routing.pages[:count]]
        if way == PAGE or len(pages) == 1:
            said = self._ask([_read(pages[0])], pages[0])
            return self._reply(way, said, routing, routing.pages[:1])
        if way == TOGETHER:
            return self._together(pages, routing)
        return self._each(pages, routing)

    def _together(self, pages: list[StoredPage], routing: Routing) -> Reply:
        texts = [_read(page) for page in pages]
        while len(texts) > 1:  # the least relevant are left out until the rest fits
            prompt = self._layout.prompt(self._space.engine.tokenizer, texts, self._question)
            if len(prompt.ids) + self._max_new_tokens <= self._space.engine.context_tokens:
                break
            texts.pop()
        said = self._ask(texts, pages[0])
        return self._reply(TOGETHER, said, routing, routing.pages[: len(texts)])

    def _each(self, pages: list[StoredPage], routing: Routing) -> Reply:
        found: list[tuple[RoutedPage, StoredPage, _Said]] = []
        for routed, page in zip(routing.pages, pages, strict=False):
            said = self._ask([_read(page)], page)
            if _stated(said.text) is not None:
                found.append((routed, page, said))
        used = [routed for routed, _, _ in found]
        if len(found) < 2:
            said = found[0][2] if found else said
            return self._reply(EACH, said, routing, used or routing.pages[:1])
        parts = [titled(page.title, page.heading, said.text) for _, page, said in found]
        return self._reply(EACH, self._ask(["\n\n".join(parts)]), routing, used)

    def _from_passages(self, routing: Routing) -> Reply:
        best = sorted(
            ((one.score, one.passage) for page in routing.pages for one in page.passages),
            reverse=True,
        )[:PASSAGES]
        parts, used = [], []
        for _, id in best:
            passage = self._collection.passage(id)
            page = self._collection.page(passage.page)
            words = page.text[passage.start : passage.end]
            parts.append(titled(page.title, passage.heading, words))
            used.append(passage.page)
        said = self._ask(["\n\n".join(parts)])
        pages = [one for one in routing.pages if one.page in used]
        return self._reply(TEXT, said, routing, pages)

    def _ask(self, documents: Sequence[str], page: StoredPage | None = None) -> _Said:
        """Ask behind documents. `page` is the first of them: its state is grafted, and made again
        first if it is gone. Of the question itself nothing is kept."""
        space = self._space
        engine, tokenizer = space.engine, space.engine.tokenizer
        began = time.perf_counter()
        page_ids = page.ids if page is not None else ()
        prompt = self._layout.prompt(tokenizer, documents, self._question, page_ids)
        if len(prompt.ids) + self._max_new_tokens > engine.context_tokens:
            raise ContextTooLong(
                f"page and question have {len(prompt.ids)} tokens, with {self._max_new_tokens} new"
                f" ones over the {engine.context_tokens} of the model's context",
                hint="shorten the question, or ask for fewer new tokens",
            )
        if page is not None and not self._is_stored(page):
            self._read_again(page)
        computed = compute_prompt(
            engine,
            space.chunks if page is not None else None,
            prompt.ids,
            salt=space.salt,
            keep=Keep.NOTHING,
            cuts=prompt.cuts,
            load=space.load,
            room=self._max_new_tokens,
        )
        try:
            computed.context.logits()
            ready = time.perf_counter()
            decoded = greedy(
                computed.context,
                self._max_new_tokens,
                tokenizer.stop_ids,
                lambda ids: "\n" in tokenizer.decode(ids).strip("\n"),
            )
        finally:
            computed.context.close()
        self.times.first_token += ready - began
        self.times.decode += time.perf_counter() - ready
        self._note(computed.report, decoded)
        text = tokenizer.decode(decoded.ids).strip().partition("\n")[0].strip()
        return _Said(text, decoded, computed.report, prompt)

    def _is_stored(self, page: StoredPage) -> bool:
        """Whether the page's state is listed, as far as the collection knows its key: that is the
        key of the engine which it was made for."""
        return (
            self._same_engine and page.key is not None and bool(self._space.chunks.find(page.key))
        )

    def _read_again(self, page: StoredPage) -> None:
        _, report = capture_page(self._space, page)
        self._reuse.append(report)
        self._cost += Cost(
            prefill_tokens=report.computed_tokens,
            reused_tokens=report.reused_tokens,
            decode_tokens=0,
            cpu_seconds=0.0,
            model_flops=None,
        )

    def _note(self, report: ReuseReport, decoded: Decoded) -> None:
        engine = self._space.engine
        self._reuse.append(report)
        self._cost += Cost(
            attempts=1,
            prefill_tokens=report.computed_tokens,
            reused_tokens=report.reused_tokens,
            decode_tokens=decoded.steps,
            model_flops=request_flops(
                engine.model_size,
                engine.spec,
                reused_tokens=report.reused_tokens,
                computed_tokens=report.computed_tokens,
                steps=[decoded.steps],
            ),
        )

    def _reply(
        self, way: str, said: _Said | None, routing: Routing, used: Sequence[RoutedPage]
    ) -> Reply:
        answer = None if said is None else _stated(said.text)
        engine = self._space.engine
        return Reply(
            way=way,
            text="" if said is None else said.text,
            answer=answer,
            relevant=routing.relevant,
            why=routing.why,
            sources=tuple(self._source(one, answer) for one in used) if answer else (),
            cost=self._cost,
            times=self.times,
            finished=said is None or said.decoded.finished,
            logits_sha256=None if said is None else said.decoded.logits_sha256,
            reuse=tuple(self._reuse),
            provenance={"model": engine.model, "fingerprint": engine.fingerprint.hex},
        )

    def _source(self, routed: RoutedPage, answer: str | None) -> Source:
        """The page, and its passage that has the answer's words, or else the best one."""
        page = self._collection.page(routed.page)
        passages = [self._collection.passage(one.passage) for one in routed.passages]
        holding = [one for one in passages if _holds(page, one, answer)]
        if not holding and answer:
            holding = [
                one for one in self._collection.passages_of(page.id) if _holds(page, one, answer)
            ]
        best = (holding or passages)[0]
        return Source(
            path=page.path,
            title=page.title,
            page=page.number,
            heading=best.heading,
            start=page.start + best.start,
            passage=page.text[best.start : best.end],
            score=routed.score,
            holds_answer=bool(holding),
        )


def _read(page: StoredPage) -> str:
    return titled(page.title, page.heading, page.text)


def _stated(text: str) -> str | None:
    """What an answer says; None where it says that the document does not."""
    plain = text.strip().rstrip(".").strip()
    return None if not plain or NOT_THERE in plain.casefold() else text.strip()


def _holds(page: StoredPage, passage: StoredPassage, answer: str | None) -> bool:
    words = _plain(answer or "")
    return bool(words) and words in _plain(page.text[passage.start : passage.end])


def _plain(text: str) -> str:
    return _SPACE.sub(" ", text).strip().rstrip(".").casefold()
