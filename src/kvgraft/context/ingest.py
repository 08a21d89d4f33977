"""Files into a collection: read, split into pages that fit, listed, and then captured page by page.

A document's text is taken in whole or not at all, and a page counts as captured once its state is
durable. So a run that ends early leaves nothing half-done, and the next one goes on behind it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from kvgraft.context import dense
from kvgraft.context.about import About
from kvgraft.context.collection import Collection, NewPage, StoredDocument, StoredPage
from kvgraft.context.document import Document
from kvgraft.context.documents import read_document
from kvgraft.context.embed import Embedder
from kvgraft.context.files import Found, read_file
from kvgraft.context.layout import PREAMBLE, Layout, titled
from kvgraft.context.pages import Piece, pages, passages
from kvgraft.context.space import Space
from kvgraft.errors import InputError, KvgraftError, StoreError, StoreFull, UsageError
from kvgraft.limits import MIN_PAGE_TOKENS
from kvgraft.plan import Call, plan_calls
from kvgraft.points import kept_roles
from kvgraft.reuse import Keep, ReuseReport, compute_prompt
from kvgraft.state import StateSpec

ADDED, CHANGED, UNCHANGED, FAILED, REMOVED = "added", "changed", "unchanged", "failed", "removed"

_EMBEDDED_TOGETHER = 32  # passages
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Taken:
    """What became of one file. `detail` says why it failed, or was left out."""

    path: str
    outcome: str
    pages: int = 0
    tokens: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Forecast:
    """What capturing the pages that are left will take. `seconds` is None until a few calls were
    measured; `free_bytes` is what the disk has left."""

    pages: int
    tokens: int
    size_bytes: int
    seconds: float | None
    free_bytes: int


@dataclass
class Captured:
    """What capturing took. `drifted` counts pages whose stored bytes differ from computed ones."""

    pages: int = 0
    tokens: int = 0
    computed_tokens: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    drifted: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


def about_for(
    space: Space,
    name: str,
    page_tokens: int,
    embedder: Embedder | None = None,
    preamble: str = PREAMBLE,
) -> About:
    """What a new collection for this engine is made for. With an `embedder` its passages are found
    by meaning too.

    Raises:
        UsageError: pages that the model has no room for, or too small ones.
    """
    engine = space.engine
    if not MIN_PAGE_TOKENS <= page_tokens < engine.context_tokens:
        raise UsageError(
            f"pages of {page_tokens} tokens; this model takes from {MIN_PAGE_TOKENS} up to under"
            f" {engine.context_tokens}, with a question behind them"
        )
    return About(
        name=name,
        tenant=space.tenant,
        model=engine.model,
        fingerprint=engine.fingerprint.hex,
        tokenizer_digest=engine.tokenizer.digest,
        template_digest=engine.tokenizer.template_digest,
        page_tokens=page_tokens,
        preamble=preamble,
        embedder=None if embedder is None else embedder.digest,
    )


def take_in(
    space: Space, collection: Collection, files: Sequence[Found], progress: Progress
) -> Iterator[Taken]:
    """Read files that are new or changed, and list their pages; states come later. A file that
    cannot be read is told, and is no reason to stop.

    Raises:
        StoreError: collection or store cannot be written.
    """
    for number, file in enumerate(files):
        progress("reading", number, len(files))
        try:
            yield _take(space, collection, file)
        except StoreError:
            raise
        except KvgraftError as error:
            yield Taken(file.path, FAILED, detail=str(error))
    progress("reading", len(files), len(files))


def _take(space: Space, collection: Collection, file: Found) -> Taken:
    before = collection.document(file.path)
    same_times = before and (before.size_bytes, before.mtime_ns) == (file.size_bytes, file.mtime_ns)
    if same_times:
        return Taken(file.path, UNCHANGED)
    read = read_file(file)
    digest = blake3(read.data).digest()
    if before is not None and before.digest == digest:
        collection.touch(before, read.found.size_bytes, read.found.mtime_ns)
        return Taken(file.path, UNCHANGED)
    document = read_document(Path(file.path).name, read.data)
    about = collection.about
    made = split(space, about.layout, about.page_tokens, document)
    if not made:
        raise InputError("there is no text in it", where=file.path)
    entry = StoredDocument(
        0,
        file.path,
        document.title,
        document.kind,
        digest,
        read.found.size_bytes,
        read.found.mtime_ns,
    )
    for key in collection.put_document(entry, made):
        space.chunks.discard(key)
    tokens = sum(len(page.ids) for page in made)
    return Taken(file.path, CHANGED if before else ADDED, len(made), tokens)


def embed(collection: Collection, embedder: Embedder, progress: Progress) -> int:
    """Make the vectors of all passages that have none; how many passages that were. Each batch is
    kept before the next begins.

    Raises:
        UsageError: the collection's vectors were made by another embedder.
        StoreError: the collection cannot be written.
    """
    dense.check(collection.db, embedder)
    waiting = dense.missing(collection.db)
    for start in range(0, len(waiting), _EMBEDDED_TOGETHER):
        progress("passages", start, len(waiting))
        texts = []
        for id in waiting[start : start + _EMBEDDED_TOGETHER]:
            passage = collection.passage(id)
            page = collection.page(passage.page)
            texts.append(dense.Text(id, page.text[passage.start : passage.end]))
        dense.add(collection.db, embedder, texts)
    progress("passages", len(waiting), len(waiting))
    return len(waiting)


def remove_missing(
    space: Space, collection: Collection, roots: Sequence[Path], there: Container[str]
) -> list[Taken]:
    """Remove the documents below `roots` whose files are not `there` any more.

    Raises:
        StoreError: collection or store cannot be written.
    """
    folders = [f"{os.path.realpath(root.expanduser())}" for root in roots]
    removed = []
    for document in list(collection.documents()):
        below = any(
            document.path == folder or document.path.startswith(f"{folder}{os.sep}")
            for folder in folders
        )
        if below and document.path not in there:
            remove(space, collection, document.path)
            removed.append(Taken(document.path, REMOVED))
    return removed


def remove(space: Space, collection: Collection, path: str) -> int:
    """Remove a document, its pages and their states: the bytes that were freed.

    Raises:
        RecordNotFound: there is no such document.
        StoreError: collection or store cannot be written.
    """
    return sum(space.chunks.discard(key) for key in collection.remove_document(path))


def capture(
    space: Space, collection: Collection, progress: Progress = lambda stage, done, total: None
) -> Iterator[Captured]:
    """Capture the states of all pages that have none: what it took so far, after every page.

    Raises:
        StoreFull, StoreError: a state cannot be stored. Pages before it are listed.
    """
    waiting = collection.pending()
    done = Captured()
    for number, (id, _) in enumerate(waiting):
        progress("pages", number, len(waiting))
        page = collection.page(id)
        key, report = capture_page(space, page)
        if report.capture_error is not None:
            raise StoreFull(
                f"the state of a page was not stored: {report.capture_error}",
                where=f"{page.path}, page {page.number + 1}",
                hint="make room, and run the same command again: it goes on from here",
            )
        collection.captured(id, key)
        done.pages += 1
        done.tokens += len(page.ids)
        done.computed_tokens += report.computed_tokens
        done.size_bytes += report.captured_bytes
        done.seconds += report.compute_seconds + report.capture_seconds + report.restore_seconds
        done.drifted += bool(report.drifted)
        for kind, size in report.captured_by_kind.items():
            done.by_kind[kind] = done.by_kind.get(kind, 0) + size
        yield done
    progress("pages", len(waiting), len(waiting))


def capture_page(space: Space, page: StoredPage) -> tuple[bytes, ReuseReport]:
    """Compute a page's state, as far as it is not stored, and store it: the key of its last chunk,
    and what that took. A store that cannot be written is told in the report."""
    computed = compute_prompt(
        space.engine,
        space.chunks,
        page.ids,
        salt=space.salt,
        keep=Keep.BLOCKS,
        cuts=(len(page.ids),),
        load=space.load,
    )
    computed.context.close()
    return computed.key, computed.report


def forecast(space: Space, collection: Collection, folder: Path) -> Forecast:
    """What `capture` has before it."""
    rates = space.chunks.rates(space.engine.fingerprint.digest)
    tokens = [count for _, count in collection.pending()]
    seconds: float | None = 0.0
    size_bytes = 0
    for count in tokens:
        calls = plan_calls(count, space.engine.form, space.engine.context_tokens)
        took = rates.compute_seconds(calls)
        seconds = None if took is None or seconds is None else seconds + took
        size_bytes += _state_bytes(space.engine.spec, calls)
    free_bytes = shutil.disk_usage(folder).free
    return Forecast(len(tokens), sum(tokens), size_bytes, seconds, free_bytes)


def _state_bytes(spec: StateSpec, calls: Sequence[Call]) -> int:
    """Bytes of a page's state: tensors alone, without headers and padding."""
    kept = kept_roles(spec, calls, len(calls), tail=False)
    return sum(
        sum(spec.bytes_by_kind(role, call.count).values())
        for call, roles in zip(calls, kept, strict=True)
        for role in roles
    )


def split(space: Space, layout: Layout, page_tokens: int, document: Document) -> list[NewPage]:
    """A document's pages, none of which takes more than `page_tokens` with the preamble and what
    it is from.

    Raises:
        UsageError: the budget has no room for text beside those.
    """
    tokenizer = space.engine.tokenizer

    def ids_of(heading: str, text: str) -> tuple[int, ...]:
        return layout.page_ids(tokenizer, titled(document.title, heading, text))

    longest = max((one.heading for one in document.breaks), key=len, default="")
    frame = len(ids_of(longest, "0"))
    for spare in (0, 16, 64, 256):  # a joint may cost a token or two more than its parts
        budget = page_tokens - frame - spare
        if budget < MIN_PAGE_TOKENS // 2:
            raise UsageError(
                f"a page of {page_tokens} tokens has no room beside {frame} of its preamble and"
                " title",
                hint="give pages more tokens",
            )
        made = []
        for piece in pages(document, budget, lambda text: len(tokenizer.encode(text))):
            text = document.text[piece.start : piece.end]
            if text.strip():
                ids = ids_of(piece.heading, text)
                made.append(NewPage(piece, text, ids, _within(document, piece)))
        if all(len(page.ids) <= page_tokens for page in made):
            return made
    raise UsageError(f"no page of {page_tokens} tokens holds this text", hint="give pages more")


def _within(document: Document, page: Piece) -> tuple[Piece, ...]:
    """A page's passages, their places counted from the page's start."""
    return tuple(
        Piece(one.start - page.start, one.end - page.start, one.heading)
        for one in passages(document, page)
    )
