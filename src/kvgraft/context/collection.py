"""A collection: documents as pages that fit a model, their text, and where their states are.

One SQLite file each, beside the store. It keeps the text of every page, so a state can be evicted
and made again at any time; the states themselves lie in the chunk store, under keys that follow
from the text (`layout`). A page is listed as captured once its state is durable, never before.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kvgraft.context import dense, lexical
from kvgraft.context.about import About
from kvgraft.context.pages import Piece
from kvgraft.errors import InputError, RecordNotFound, StoreError
from kvgraft.sqlite import naming_errors, open_database, statements, transaction

_APPLICATION_ID = 0x6B76_636F  # "kvco"

_TABLES = statements(
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE documents (
        id INTEGER PRIMARY KEY,
        path TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        kind TEXT NOT NULL,
        digest BLOB NOT NULL,                -- BLAKE3 of the file's bytes
        size_bytes INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL
    )""",
    """CREATE TABLE pages (
        id INTEGER PRIMARY KEY,
        document INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,             -- within the document, from 0
        start INTEGER NOT NULL,              -- characters of the document's text
        heading TEXT NOT NULL,
        text BLOB NOT NULL,                  -- UTF-8, zlib
        ids BLOB NOT NULL,                   -- preamble and page, uint32 little endian, zlib
        tokens INTEGER NOT NULL,             -- of these
        key BLOB                             -- of its state's last chunk, once it is durable
    )""",
    "CREATE INDEX pages_of ON pages (document, number)",
    """CREATE TABLE passages (
        id INTEGER PRIMARY KEY,
        page INTEGER NOT NULL REFERENCES pages (id) ON DELETE CASCADE,
        start INTEGER NOT NULL,              -- characters of the page's text
        end INTEGER NOT NULL,
        heading TEXT NOT NULL
    )""",
    "CREATE INDEX passages_of ON passages (page)",
)
_MIGRATIONS = (_TABLES, lexical.migrate, dense.migrate)


@dataclass(frozen=True)
class StoredDocument:
    """A document that is in, and the file that it was read from."""

    id: int
    path: str
    title: str
    kind: str
    digest: bytes
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class StoredPage:
    """A page with its text. `ids` are preamble and page, as every prompt about it begins; `key` is
    None while its state was never captured."""

    id: int
    path: str
    title: str
    number: int
    start: int
    heading: str
    text: str
    ids: tuple[int, ...]
    key: bytes | None


@dataclass(frozen=True)
class StoredPassage:
    """A piece of a page that is searched for and quoted: characters `[start, end)` of the page."""

    id: int
    page: int
    start: int
    end: int
    heading: str


@dataclass(frozen=True)
class NewPage:
    """A page to be stored: its text, the ids of preamble and page, and its passages (offsets within
    the page)."""

    piece: Piece
    text: str
    ids: tuple[int, ...]
    passages: tuple[Piece, ...]


class Collection:
    """One collection's file. Not for several threads at once; close it, or use it in a `with`."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self.db = db

    @classmethod
    def create(cls, path: Path, about: About) -> Collection:
        """A new, empty collection, or the one that is there if it was made for the same.

        Raises:
            UsageError: another one is there, made for another tokenizer, template or page size.
            StoreReadOnly, StoreFull, StoreError: it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        made = cls(path, open_database(path, _MIGRATIONS, application_id=_APPLICATION_ID))
        try:
            with made._named(), transaction(made.db):
                if made._about_rows():
                    made.about.check_same(about)
                else:
                    made._write_about(about)
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False, name: str = "") -> Collection:
        """The collection that is there. `name` is for the error where it is not.

        Raises:
            RecordNotFound: there is none.
            StoreError: the file is damaged, or of a newer release.
        """
        if not path.exists():
            raise RecordNotFound(
                "there is no such collection", hint="'kvgraft ingest' makes one", where=name
            )
        db = open_database(path, _MIGRATIONS, application_id=_APPLICATION_ID, read_only=read_only)
        return cls(path, db)

    @property
    def about(self) -> About:
        """Raises: StoreError: the file is damaged."""
        rows = self._about_rows()
        try:
            return About(**{name: json.loads(value) for name, value in rows.items()})
        except (TypeError, ValueError) as error:
            raise StoreError("the collection is damaged", where=str(self.path)) from error

    def _about_rows(self) -> dict[str, str]:
        with self._named():
            return dict(self.db.execute("SELECT name, value FROM about").fetchall())

    def _write_about(self, about: About) -> None:
        rows = [(name, json.dumps(value)) for name, value in vars(about).items()]
        self.db.executemany("INSERT OR REPLACE INTO about VALUES (?,?)", rows)

    # --- documents ----------------------------------------------------------------------------

    def documents(self) -> Iterator[StoredDocument]:
        """All documents, by path."""
        with self._named():
            rows = self.db.execute(f"{_DOCUMENT} ORDER BY path").fetchall()
        return (StoredDocument(*row) for row in rows)

    def document(self, path: str) -> StoredDocument | None:
        """The document that was read from a file."""
        with self._named():
            row = self.db.execute(f"{_DOCUMENT} WHERE path=?", (path,)).fetchone()
        return None if row is None else StoredDocument(*row)

    def put_document(self, document: StoredDocument, pages: Sequence[NewPage]) -> list[bytes]:
        """Take a document in, in the place of an earlier version of it; whole or not at all. Pages
        that are as they were keep their states. The keys of states that nothing lists any more."""
        with self._named(), transaction(self.db):
            before = self._remove(document.path)
            number = self.db.execute(
                "INSERT INTO documents (path, title, kind, digest, size_bytes, mtime_ns)"
                " VALUES (?,?,?,?,?,?)",
                (
                    *(document.path, document.title, document.kind, document.digest),
                    *(document.size_bytes, document.mtime_ns),
                ),
            ).lastrowid
            for place, page in enumerate(pages):
                self._put_page(number, place, document.title, page, before)
            return self._unlisted(before)

    def _put_page(
        self,
        document: int | None,
        number: int,
        title: str,
        page: NewPage,
        before: Mapping[bytes, bytes],
    ) -> None:
        try:
            text = zlib.compress(page.text.encode(), 6)
        except UnicodeEncodeError as error:
            raise InputError("text holds a lone surrogate, which no encoding carries") from error
        ids = zlib.compress(np.array(page.ids, "<u4").tobytes(), 1)
        piece = page.piece
        row = self.db.execute(
            "INSERT INTO pages (document, number, start, heading, text, ids, tokens, key)"
            " VALUES (?,?,?,?,?,?,?,?)",
            (
                *(document, number, piece.start, piece.heading, text, ids, len(page.ids)),
                before.get(ids),
            ),
        ).lastrowid
        for passage in page.passages:
            id = self.db.execute(
                "INSERT INTO passages (page, start, end, heading) VALUES (?,?,?,?)",
                (row, passage.start, passage.end, passage.heading),
            ).lastrowid
            assert id is not None
            words = page.text[passage.start : passage.end]
            lexical.add(self.db, id, title, passage.heading, words)

    def touch(self, document: StoredDocument, size_bytes: int, mtime_ns: int) -> None:
        """Note that a file has other times, and the same bytes."""
        with self._named(), transaction(self.db):
            self.db.execute(
                "UPDATE documents SET size_bytes=?, mtime_ns=? WHERE id=?",
                (size_bytes, mtime_ns, document.id),
            )

    def remove_document(self, path: str) -> list[bytes]:
        """Forget a document and its pages; the keys of their states.

        Raises:
            RecordNotFound: there is no such document.
        """
        if self.document(path) is None:
            raise RecordNotFound("the collection has no such document", where=path)
        with self._named(), transaction(self.db):
            return self._unlisted(self._remove(path))

    def _remove(self, path: str) -> dict[bytes, bytes]:
        """The keys of the document's states, by what its pages' ids are kept as."""
        rows = self.db.execute(
            "SELECT p.id, p.ids, p.key FROM pages p JOIN documents d ON d.id = p.document"
            " WHERE d.path=?",
            (path,),
        ).fetchall()
        for page, _, _ in rows:
            found = self.db.execute("SELECT id FROM passages WHERE page=?", (page,)).fetchall()
            passages = [row[0] for row in found]
            lexical.remove(self.db, passages)
            dense.remove(self.db, passages)
        self.db.execute("DELETE FROM documents WHERE path=?", (path,))
        return {ids: key for _, ids, key in rows if key is not None}

    def _unlisted(self, keys: Mapping[bytes, bytes]) -> list[bytes]:
        listed = "SELECT 1 FROM pages WHERE key=? LIMIT 1"
        return [key for key in set(keys.values()) if not self.db.execute(listed, (key,)).fetchone()]

    # --- pages --------------------------------------------------------------------------------

    def page(self, id: int) -> StoredPage:
        """A page with its text.

        Raises:
            RecordNotFound: there is none; its document was removed or changed meanwhile.
            StoreError: its text is damaged.
        """
        with self._named():
            row = self.db.execute(f"{_PAGE} WHERE p.id=?", (id,)).fetchone()
        if row is None:
            raise RecordNotFound("the collection has no such page", where=str(id))
        return self._page(row)

    def pending(self) -> list[tuple[int, int]]:
        """The pages whose states were never captured, with their tokens, in the order of
        documents."""
        with self._named():
            return self.db.execute(
                "SELECT p.id, p.tokens FROM pages p JOIN documents d ON d.id = p.document"
                " WHERE p.key IS NULL ORDER BY d.path, p.number"
            ).fetchall()

    def page_ids(self) -> list[int]:
        """All pages, in the order of documents."""
        with self._named():
            rows = self.db.execute(
                "SELECT p.id FROM pages p JOIN documents d ON d.id = p.document"
                " ORDER BY d.path, p.number"
            ).fetchall()
        return [row[0] for row in rows]

    def captured(self, page: int, key: bytes) -> None:
        """Note that a page's state is durable, under the key of its last chunk."""
        with self._named(), transaction(self.db):
            self.db.execute("UPDATE pages SET key=? WHERE id=?", (key, page))

    def forget_states(self) -> None:
        """List no state any more: they are to be made again."""
        with self._named(), transaction(self.db):
            self.db.execute("UPDATE pages SET key=NULL")

    def passage(self, id: int) -> StoredPassage:
        """Where a passage is.

        Raises:
            RecordNotFound: there is none.
        """
        with self._named():
            row = self.db.execute(
                "SELECT id, page, start, end, heading FROM passages WHERE id=?", (id,)
            ).fetchone()
        if row is None:
            raise RecordNotFound("the collection has no such passage", where=str(id))
        return StoredPassage(*row)

    def passages_of(self, page: int) -> list[StoredPassage]:
        """A page's passages, in its order."""
        with self._named():
            rows = self.db.execute(
                "SELECT id, page, start, end, heading FROM passages WHERE page=? ORDER BY start",
                (page,),
            ).fetchall()
        return [StoredPassage(*row) for row in rows]

    def totals(self) -> dict[str, int]:
        """Counts of documents, pages, captured pages, passages and tokens."""
        with self._named():
            documents = self.db.execute("SELECT count(*) FROM documents").fetchone()[0]
            passages = self.db.execute("SELECT count(*) FROM passages").fetchone()[0]
            pages, captured, tokens = self.db.execute(
                "SELECT count(*), count(key), coalesce(sum(tokens), 0) FROM pages"
            ).fetchone()
        return {
            "documents": documents,
            "pages": pages,
            "captured": captured,
            "passages": passages,
            "tokens": tokens,
        }

    def _page(self, row: Sequence[Any]) -> StoredPage:
        id, path, title, number, start, heading, packed_text, packed_ids, key = row
        try:
            text = zlib.decompress(packed_text).decode()
            ids = tuple(np.frombuffer(zlib.decompress(packed_ids), "<u4").tolist())
        except (zlib.error, ValueError) as error:
            raise StoreError(
                "the text of a page is damaged",
                where=f"page {number + 1} of {path}",
                hint="ingest its document again",
            ) from error
        return StoredPage(id, path, title, number, start, heading, text, ids, key)

    @contextmanager
    def _named(self) -> Iterator[None]:
        with naming_errors(str(self.path), "ingest the documents again"):
            yield

    def close(self) -> None:
        """Idempotent."""
        self.db.close()

    def __enter__(self) -> Collection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_DOCUMENT = "SELECT id, path, title, kind, digest, size_bytes, mtime_ns FROM documents"
_PAGE = (
    "SELECT p.id, d.path, d.title, p.number, p.start, p.heading, p.text, p.ids, p.key"
    " FROM pages p JOIN documents d ON d.id = p.document"
)
