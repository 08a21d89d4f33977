"""Search by meaning: windows of passages as float16 in the collection's file, compared exactly."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.embedders import TinyEmbedder
from kvgraft.context import dense
from kvgraft.errors import EngineError, StoreError, UsageError
from kvgraft.limits import MAX_PASSAGE_VECTORS
from kvgraft.sqlite import open_database, statements

TABLE = statements("CREATE TABLE passages (id INTEGER PRIMARY KEY, page INTEGER NOT NULL)")
TEXTS = (
    "The weather is fine. She bought a car yesterday. Nobody slept well that night.",
    "Bread is baked in the morning. It is sold until noon in the small town.",
    "",
    "A long walk through the wood ends at the old lake.",
)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    opened = open_database(None, (TABLE, dense.migrate))
    for number in range(1, len(TEXTS) + 1):
        opened.execute("INSERT INTO passages VALUES (?,?)", (number, 1))
    yield opened
    opened.close()


@pytest.fixture
def embedder() -> TinyEmbedder:
    return TinyEmbedder()


def add_all(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    dense.add(db, embedder, [dense.Text(n, text) for n, text in enumerate(TEXTS, start=1)])


def test_another_word_of_the_same_meaning_is_found(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    add_all(db, embedder)
    found = dense.search(db, embedder, "She acquired an automobile yesterday", 10)
    assert len(found) == 4
    assert found[0][0] == 1
    assert found[0][1] > 0.4 > found[1][1]
    assert found == sorted(found, key=lambda one: -one[1])
    assert dense.search(db, embedder, "She acquired an automobile yesterday", 1) == found[:1]


def test_a_passage_is_as_near_as_its_nearest_window(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    add_all(db, embedder)
    windows = dense.windows(TEXTS[0])
    assert len(windows) == 2
    exact = [float((embedder.embed([w]) @ embedder.embed(["bought car"]).T)[0, 0]) for w in windows]
    found = dict(dense.search(db, embedder, "bought car", 10))
    assert found[1] == pytest.approx(max(exact), abs=1e-3)


def test_search_in_slices_equals_search_at_once(
    db: sqlite3.Connection, embedder: TinyEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [dense.Text(n, f"number {n} is here. And {n % 7} follows it.") for n in range(1, 40)]
    dense.add(db, embedder, texts)
    whole = dense.search(db, embedder, "number 3 follows", 12)
    for rows in (1, 7, 38):
        monkeypatch.setattr(dense, "VECTOR_SCAN_ROWS", rows)
        sliced = dense.search(db, embedder, "number 3 follows", 12)
        assert [passage for passage, _ in sliced] == [passage for passage, _ in whole]
    # And it is what comparing everything gives.
    asked = embedder.embed(["number 3 follows"])[0]
    near = {text.passage: max(embedder.embed(dense.windows(text.text)) @ asked) for text in texts}
    assert {p for p, _ in whole[:5]} == set(sorted(near, key=lambda p: -near[p])[:5])


def test_what_is_missing_is_known_and_removal_is_complete(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    assert dense.missing(db) == [1, 2, 3, 4]
    dense.add(db, embedder, [dense.Text(2, TEXTS[1]), dense.Text(4, TEXTS[3])])
    assert dense.missing(db) == [1, 3]
    dense.remove(db, [2, 77])
    assert dense.missing(db) == [1, 2, 3]
    assert [passage for passage, _ in dense.search(db, embedder, "bread", 5)] == [4]
    dense.add(db, embedder, [dense.Text(4, "bread bread bread")])  # in the place of the earlier
    assert dense.search(db, embedder, "bread", 5)[0][1] == pytest.approx(1, abs=1e-3)


def test_no_vectors_are_no_error(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    assert dense.search(db, embedder, "bread", 5) == []
    dense.add(db, embedder, [])
    assert dense.search(db, embedder, "bread", 5) == []


def test_another_embedder_is_refused_until_the_vectors_are_cleared(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    add_all(db, embedder)
    other = TinyEmbedder("tiny-2")
    before = list(db.iterdump())
    with pytest.raises(UsageError, match="another embedding model"):
        dense.search(db, other, "bread", 5)
    with pytest.raises(UsageError, match="another embedding model"):
        dense.add(db, other, [dense.Text(1, "bread")])
    assert other.embedded == 0  # refused before the work, not after it
    assert list(db.iterdump()) == before
    dense.clear(db)
    assert dense.missing(db) == [1, 2, 3, 4]
    add_all(db, other)
    assert dense.search(db, other, "bread baked", 1)[0][0] == 2


class _Bad(TinyEmbedder):
    def __init__(self, make: object) -> None:
        super().__init__()
        self._make = make

    def embed(self, texts: object) -> np.ndarray:
        vectors = super().embed(texts)  # type: ignore[arg-type]
        return self._make(vectors)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    "make",
    [
        lambda v: v * 2,
        lambda v: v * np.nan,
        lambda v: v[:, :10],
        lambda v: v[:-1],
        lambda v: v.astype(np.float64),
    ],
)
def test_what_is_no_unit_vector_is_not_written(db: sqlite3.Connection, make: object) -> None:
    with pytest.raises(EngineError, match="unit vectors"):
        add_all(db, _Bad(make))
    assert db.execute("SELECT count(*) FROM vectors").fetchone()[0] == 0
    assert db.execute("SELECT count(*) FROM vectors_by").fetchone()[0] == 0
    with pytest.raises(EngineError, match="unit vectors"):
        dense.search(db, _Bad(make), "bread", 5)


@pytest.mark.parametrize("blob", [b"", b"\0" * 127, b"\0" * 130, b"\xff" * 128])
def test_damaged_vectors_are_named(
    db: sqlite3.Connection, embedder: TinyEmbedder, blob: bytes
) -> None:
    add_all(db, embedder)
    db.execute("UPDATE vectors SET windows=? WHERE passage=2", (blob,))
    with pytest.raises(StoreError, match="damaged"):
        dense.search(db, embedder, "bread", 5)


def test_a_batch_is_written_whole_or_not_at_all(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON vectors WHEN new.passage = 3"
        " BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(sqlite3.IntegrityError):
        add_all(db, embedder)
    assert dense.missing(db) == [1, 2, 3, 4]
    assert db.execute("SELECT count(*) FROM vectors_by").fetchone()[0] == 0


# --- windows --------------------------------------------------------------------------------------


def test_windows_are_sentences_and_lines() -> None:
    wrapped = (
        "This is a long line of a wrapped text that goes on and\n"
        "on until it ends here. Another sentence follows it, not much longer.\n\n"
        "Option one of the small list\nOption two of the small list\n"
        "Yes.\nNo, or perhaps it is yes after all?"
    )
    assert dense.windows(wrapped) == [
        "This is a long line of a wrapped text that goes on and on until it ends here.",
        "Another sentence follows it, not much longer.",
        "Option one of the small list",
        "Option two of the small list",
        "Yes. No, or perhaps it is yes after all?",
    ]


def test_long_sentences_are_cut_and_there_is_an_end() -> None:
    assert [len(one.split()) for one in dense.windows("word " * 100)] == [40, 40, 20]
    assert len(dense.windows("one two three four five six.\n" * 500)) == MAX_PASSAGE_VECTORS
    assert len(dense.windows("x" * 5_000)[0]) < 1_100
    assert dense.windows(" \n ") == []
    assert len(dense.windows("水を飲む。" * 300)) > 10


@given(st.text(max_size=600))
def test_windows_keep_every_character_in_order(text: str) -> None:
    joined = "".join("".join(dense.windows(text)).split())
    assert joined == "".join(text.split())
