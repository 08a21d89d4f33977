"""Which passages mean what a question means: vectors in the collection's file, compared with all.

A vector of a long text says little of any one sentence in it, so a passage has several, one for
each sentence, and counts as near as its nearest one. They are kept as float16, which moves a
product by less than 0.001. Search is exact: a product with every vector, some at a time.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvgraft.context.embed import Embedder
from kvgraft.errors import EngineError, StoreError, UsageError
from kvgraft.limits import MAX_PASSAGE_VECTORS, VECTOR_SCAN_ROWS
from kvgraft.sqlite import statements, transaction

_AGAIN = "embed the collection again"
_LEAST_WORDS, _MOST_WORDS = 6, 40  # of a window

migrate = statements(
    "CREATE TABLE vectors_by (digest TEXT NOT NULL, dimensions INTEGER NOT NULL)",
    """CREATE TABLE vectors (
        passage INTEGER PRIMARY KEY,
        windows BLOB NOT NULL                -- float16 little endian [windows, dimensions]
    )""",
)
"""Makes the tables."""

_WRAPPED = re.compile(
    r"(?<=[^\n]{50})(?<![.!?:;。！？])[ \t]*\n[ \t]*(?=\S)"
)  # a line that goes on
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？])|\s*\n\s*")
_WORD = re.compile(r"\S{1,24}")  # what writes no spaces counts by its length


@dataclass(frozen=True)
class Text:
    """A passage to be embedded. Its title and headings are not: before every sentence of a
    document they would make all of them alike."""

    passage: int
    text: str


def windows(text: str) -> list[str]:
    """Pieces of a text that are embedded by themselves: single sentences or lines, with the next
    one where they are very short, and cut where they are very long. They cover the text in order,
    without overlap, up to `limits.MAX_PASSAGE_VECTORS` of them."""
    made: list[str] = []
    held: list[str] = []
    for sentence in filter(None, _SENTENCE.split(_WRAPPED.sub(" ", text).strip())):
        words = _WORD.findall(sentence)
        for at in range(0, len(words), _MOST_WORDS):
            held += words[at : at + _MOST_WORDS]
            if len(held) >= _LEAST_WORDS:
                made.append(" ".join(held))
                held = []
    if held:
        made.append(" ".join(held))
    return made[:MAX_PASSAGE_VECTORS]


def add(db: sqlite3.Connection, embedder: Embedder, texts: Sequence[Text]) -> None:
    """Embed passages and write their vectors, in the place of earlier ones; all or none.

    Raises:
        UsageError: the collection's vectors were made by another embedder.
        EngineError: the embedder gave what are no vectors of unit length.
    """
    check(db, embedder)
    pieces = [windows(one.text) or [""] for one in texts]
    flat = [piece for some in pieces for piece in some]
    vectors = _checked(embedder, embedder.embed(flat), len(flat)).astype("<f2")
    with transaction(db):
        check(db, embedder)  # another process may have written since
        if not _made_by(db):
            row = (embedder.digest, embedder.dimensions)
            db.execute("INSERT INTO vectors_by VALUES (?,?)", row)
        at = 0
        for one, some in zip(texts, pieces, strict=True):
            blob = vectors[at : at + len(some)].tobytes()
            db.execute("INSERT OR REPLACE INTO vectors VALUES (?,?)", (one.passage, blob))
            at += len(some)


def remove(db: sqlite3.Connection, passages: Iterable[int]) -> None:
    """Take passages out; those that are not in are no error."""
    db.executemany("DELETE FROM vectors WHERE passage=?", ((passage,) for passage in passages))


def clear(db: sqlite3.Connection) -> None:
    """Take all vectors out, so that another embedder may write its own."""
    with transaction(db):
        db.execute("DELETE FROM vectors")
        db.execute("DELETE FROM vectors_by")


def missing(db: sqlite3.Connection) -> list[int]:
    """The passages that have no vectors yet, the first ones first."""
    rows = db.execute(
        "SELECT id FROM passages WHERE id NOT IN (SELECT passage FROM vectors) ORDER BY id"
    )
    return [passage for (passage,) in rows]


def check(db: sqlite3.Connection, embedder: Embedder) -> None:
    """Refuse an embedder whose vectors cannot be compared with those that are stored.

    Raises:
        UsageError: they were made by another one.
    """
    made_by = _made_by(db)
    if made_by is not None and made_by != (embedder.digest, embedder.dimensions):
        raise UsageError(
            "the collection's vectors were made by another embedding model",
            where=embedder.name,
            hint="use that model, embed the collection again with this one, or search by words",
        )


def search(
    db: sqlite3.Connection, embedder: Embedder, question: str, count: int
) -> list[tuple[int, float]]:
    """Up to `count` passages with their similarities (cosine, -1 to 1), the nearest first.

    Raises:
        UsageError: the collection's vectors were made by another embedder.
        EngineError: the embedder gave what is no vector of unit length.
        StoreError: a stored vector is damaged.
    """
    check(db, embedder)
    asked = _checked(embedder, embedder.embed([question]), 1)[0]
    passages, best = np.zeros(0, np.int64), np.zeros(0, np.float32)
    cursor = db.execute("SELECT passage, windows FROM vectors ORDER BY passage")
    while rows := cursor.fetchmany(VECTOR_SCAN_ROWS):
        nearest = _nearest([blob for _, blob in rows], asked)
        best = np.concatenate([best, nearest])
        passages = np.concatenate([passages, np.array([row[0] for row in rows], np.int64)])
        order = np.argsort(-best, kind="stable")[:count]  # of equals the earlier passage
        best, passages = best[order], passages[order]
    return list(zip(passages.tolist(), best.tolist(), strict=True))


def _nearest(blobs: Sequence[bytes], asked: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Of each passage's windows, the greatest product with `asked`: float32 [passages]."""
    width = 2 * len(asked)
    sizes = np.array([len(blob) for blob in blobs])
    if (sizes % width).any() or not sizes.all():
        raise StoreError("stored vectors are damaged", hint=_AGAIN)
    vectors = np.frombuffer(b"".join(blobs), "<f2").astype(np.float32)
    products = vectors.reshape(-1, len(asked)) @ asked
    if not np.isfinite(products).all():
        raise StoreError("stored vectors are damaged", hint=_AGAIN)
    ends = np.cumsum(sizes // width)
    return np.maximum.reduceat(products, ends - sizes // width)


def _made_by(db: sqlite3.Connection) -> tuple[str, int] | None:
    row: tuple[str, int] | None = db.execute("SELECT digest, dimensions FROM vectors_by").fetchone()
    return row


def _checked(
    embedder: Embedder, vectors: npt.NDArray[np.float32], count: int
) -> npt.NDArray[np.float32]:
    fits = vectors.shape == (count, embedder.dimensions) and vectors.dtype == np.float32
    if not fits or not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3):
        raise EngineError(
            f"the embedder gave no float32 unit vectors [{count}, {embedder.dimensions}]",
            where=embedder.name,
        )
    return vectors
