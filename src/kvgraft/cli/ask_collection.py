"""`kvgraft ask --collection`: an answer from documents, and where it stands."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from kvgraft.cli.output import (
    duration,
    one_line,
    printable,
    size,
    write_document,
    write_facts,
    write_line,
)
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import opened
from kvgraft.errors import UsageError
from kvgraft.limits import MAX_QUESTION_PAGES

if TYPE_CHECKING:
    from kvgraft.cli.option_groups import MemoryOptions
    from kvgraft.context.question import Reply, Source


class Way(str, Enum):
    """What stands before the question."""

    page = "page"
    together = "together"
    each = "each"
    text = "text"


Collection = Annotated[
    str | None,
    typer.Option(
        "--collection",
        "-c",
        metavar="NAME",
        help="Answer from the documents of this collection ('kvgraft ingest' makes one), and from "
        "no deposit.",
        show_default=False,
    ),
]
WayOption = Annotated[
    Way,
    typer.Option(
        "--way",
        help="For --collection: the best page, grafted; several pages together; each of several "
        "pages by itself; or the best passages as text.",
    ),
]
Pages = Annotated[
    int,
    typer.Option(
        "--pages",
        min=1,
        max=MAX_QUESTION_PAGES,
        metavar="N",
        help="For --collection: how many pages 'together' and 'each' take.",
    ),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway", help="For --collection: ask the model even where no page seems relevant."
    ),
]


@dataclass(frozen=True)
class CollectionOptions:
    """Which collection a question is put to, and how."""

    collection: Collection = None
    way: WayOption = Way.page
    pages: Pages = 1
    anyway: Anyway = False

    def check_unused(self) -> None:
        """Refuse the others where no collection is named.

        Raises:
            UsageError: they are given.
        """
        if self != CollectionOptions():
            raise UsageError("--way, --pages and --anyway are for --collection")


def ask_documents(
    question: str,
    model: str,
    documents: CollectionOptions,
    max_tokens: int,
    memory_options: MemoryOptions,
    watts: float | None,
    as_json: bool,
) -> None:
    """Answer a question from a collection, and print it with its source."""
    assert documents.collection is not None
    with (
        Watch(f"opening {model}") as watch,
        opened(model, memory_options, watch, watts) as memory,
        memory.collection(documents.collection) as held,
    ):
        embedder = None
        if held.about.embedder is not None:
            from kvgraft.context.embed import open_embedder

            embedder = open_embedder(watch.progress, watch.say)
        watch.restart("answering")
        reply = memory.ask_collection(
            held,
            question,
            way=documents.way.value,
            pages=documents.pages,
            max_new_tokens=max_tokens,
            embedder=embedder,
            anyway=documents.anyway,
        )
    if as_json:
        write_document(asdict(reply))
    else:
        _show(reply)


def _show(reply: Reply) -> None:
    if reply.answer is not None:
        write_line(printable(reply.answer))
    elif not reply.relevant:
        write_line("nothing in the collection is relevant to this question")
    else:
        write_line("the documents do not say it")
    write_line()
    for source in reply.sources:
        _show_source(source)
    cost, times = reply.cost, reply.times
    facts = [
        ("way", reply.way),
        ("routing", reply.why),
        (
            "cost",
            f"{cost.decode_tokens} tokens decoded, {cost.prefill_tokens} computed, "
            f"{cost.reused_tokens} grafted, {duration(cost.seconds)}",
        ),
        (
            "times",
            f"{duration(times.route)} to route, {duration(times.first_token)} to the first token",
        ),
    ]
    loaded = sum(report.loaded_bytes for report in reply.reuse)
    if loaded:
        seconds = sum(report.restore_seconds for report in reply.reuse)
        facts.append(("grafted", f"{size(loaded)} in {duration(seconds)}"))
    # That the question itself is not stored goes without saying.
    misses = dict.fromkeys(
        miss
        for report in reply.reuse
        for miss in report.misses
        if not report.reused_tokens or not miss.startswith("not_stored:")
    )
    facts += [("not reused" if n == 0 else "", miss) for n, miss in enumerate(misses)]
    if not reply.finished:
        facts.append(("cut off", "yes: the answer used all its tokens (--max-tokens)"))
    write_facts(facts)


def _show_source(source: Source) -> None:
    heading = f", {source.heading}" if source.heading else ""
    write_facts([("source", f"{source.path}, page {source.page + 1}{heading}")])
    label = "quoted" if source.holds_answer else "near it"
    write_facts([(label, one_line(source.passage, 600))])
    write_line()
