"""`kvgraft ingest`: files into a collection, page by page, with a forecast before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.option_groups import MemoryOptions, grouped
from kvgraft.cli.output import counted, duration, one_line, size, write_document, write_line
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import opened
from kvgraft.errors import KvgraftError, StoreFull

if TYPE_CHECKING:
    from kvgraft.api import Memory
    from kvgraft.context.collection import Collection
    from kvgraft.context.embed import Embedder
    from kvgraft.context.ingest import Captured, Forecast, Taken

_RESUME = "run the same command again: it goes on behind the last page that was captured"
PAGE_TOKENS = 2_048

Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...", help="Files, and folders with all below them but hidden ones."
    ),
]
CollectionName = Annotated[
    str, typer.Option("--collection", "-c", metavar="NAME", help="Which one.", show_default=False)
]
PageTokens = Annotated[
    int,
    typer.Option(
        "--page-tokens",
        metavar="N",
        help="At most so many tokens a page, its preamble included. Settled when the collection is "
        "made.",
    ),
]
ByMeaning = Annotated[
    bool,
    typer.Option(
        "--by-meaning",
        help="Find passages by meaning as well as by words, with a small local embedding model "
        "(fetched if absent, 83 MB). Settled when the collection is made.",
    ),
]
Missing = Annotated[
    bool,
    typer.Option(
        "--remove-missing", help="Remove documents whose files are gone from the folders named."
    ),
]
TextOnly = Annotated[
    bool,
    typer.Option(
        "--text-only", help="Read and list the pages, and leave their states to the next run."
    ),
]


@grouped
def ingest_command(
    paths: Paths,
    collection: CollectionName,
    model: options.Model,
    page_tokens: PageTokens = PAGE_TOKENS,
    by_meaning: ByMeaning = False,
    remove_missing: Missing = False,
    text_only: TextOnly = False,
    *,
    memory_options: MemoryOptions,
    as_json: options.AsJson = False,
) -> None:
    """Read documents into a collection.

    Text, Markdown, HTML, PDF and source code are split at natural boundaries into pages that fit,
    and each page's state is captured behind a preamble that all share. Only files that are new or
    changed are read. A file that cannot be read is told, and does not stop the rest. Interrupted
    (Ctrl-C), the same command goes on where it stopped.
    """
    from kvgraft.context.files import find_files

    files = find_files(paths)
    run = _Run(as_json)
    with run.resumable(), Watch(f"opening {model}") as watch:
        run.watch = watch
        embedder = run.embedder() if by_meaning else None
        with (
            opened(model, memory_options, watch) as memory,
            memory.collection(collection, page_tokens=page_tokens, embedder=embedder) as held,
        ):
            watch.restart("reading")
            run.read(memory, held, files)
            if embedder is not None:
                run.embed(held, embedder)
            if remove_missing:
                run.remove_missing(memory, held, paths, files)
            if not text_only:
                run.capture(memory, held)
            run.totals = held.totals()
    if as_json:
        write_document(run.document())
    else:
        run.write_totals()


class _Run:
    """One run, and what it came to so far."""

    def __init__(self, as_json: bool) -> None:
        self.watch: Watch | None = None
        self.totals: dict[str, int] = {}
        self._as_json = as_json
        self._taken: list[Taken] = []
        self._forecast: Forecast | None = None
        self._captured: Captured | None = None

    def read(self, memory: Memory, held: Collection, files: list[Any]) -> None:
        from kvgraft.context.ingest import FAILED, take_in

        assert self.watch is not None
        for one in take_in(memory.space, held, files, self.watch.steps):
            self._taken.append(one)
            if one.outcome == FAILED and not self._as_json:
                with self.watch.aside():
                    write_line(f"not read: {one_line(one.detail, 200)}")

    def embedder(self) -> Embedder:
        from kvgraft.context.embed import open_embedder

        assert self.watch is not None
        return open_embedder(self.watch.progress, self.watch.say)

    def embed(self, held: Collection, embedder: Embedder) -> None:
        from kvgraft.context.ingest import embed

        assert self.watch is not None
        self.watch.restart("embedding")
        embed(held, embedder, self.watch.steps)

    def remove_missing(
        self, memory: Memory, held: Collection, paths: list[Path], files: list[Any]
    ) -> None:
        from kvgraft.context.ingest import remove_missing

        self._taken += remove_missing(memory.space, held, paths, {file.path for file in files})

    def capture(self, memory: Memory, held: Collection) -> None:
        from kvgraft.context.ingest import capture, forecast

        assert self.watch is not None
        assert memory.folder is not None
        self._forecast = ahead = forecast(memory.space, held, memory.folder)
        if not self._as_json and ahead.pages:
            with self.watch.aside():
                write_line(_forecast_line(ahead))
        if ahead.size_bytes > ahead.free_bytes:
            raise StoreFull(
                f"the states will take {size(ahead.size_bytes)}, and {size(ahead.free_bytes)} are"
                " free",
                where=str(memory.folder),
                hint="make room, or ingest less",
            )
        self.watch.restart("capturing")
        for done in capture(memory.space, held, self.watch.steps):
            self._captured = done

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """What ends a run early is told together with what was done until then."""
        try:
            yield
        except (KvgraftError, KeyboardInterrupt) as error:
            if not self._taken and isinstance(error, KvgraftError):
                raise
            raise Stopped(error, self.document(), _RESUME) from error

    def document(self) -> dict[str, Any]:
        counts = Counter(one.outcome for one in self._taken)
        return {
            "files": [asdict(one) for one in self._taken],
            "forecast": None if self._forecast is None else asdict(self._forecast),
            "captured": None if self._captured is None else asdict(self._captured),
            "totals": {
                **{name: counts[name] for name in ("added", "changed", "unchanged", "failed")},
                "removed": counts["removed"],
                **self.totals,
            },
        }

    def write_totals(self) -> None:
        totals = self.document()["totals"]
        write_line(
            f"{counted(len(self._taken), 'file')}: {totals['added']} added, {totals['changed']}"
            f" changed, {totals['unchanged']} unchanged, {totals['removed']} removed,"
            f" {totals['failed']} not read"
        )
        write_line(
            f"collection: {counted(totals['documents'], 'document')},"
            f" {counted(totals['pages'], 'page')}, {totals['captured']} captured,"
            f" {totals['tokens']:,} tokens"
        )
        if self._captured is not None:
            done = self._captured
            write_line(
                f"captured now: {counted(done.pages, 'page')}, {done.tokens:,} tokens,"
                f" {size(done.size_bytes)} in {duration(done.seconds)}"
            )


def _forecast_line(ahead: Forecast) -> str:
    time = "a time that is not known yet" if ahead.seconds is None else duration(ahead.seconds)
    return (
        f"to capture: {counted(ahead.pages, 'page')}, {ahead.tokens:,} tokens,"
        f" about {size(ahead.size_bytes)}, about {time}"
    )
