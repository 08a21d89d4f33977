"""A collection's file: what it was made for, and what it refuses."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kvgraft.context.about import About, collection_path
from kvgraft.context.collection import Collection, NewPage, StoredDocument
from kvgraft.context.pages import Piece
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import InputError, RecordNotFound, StoreError, UsageError

ABOUT = About(
    name="manuals",
    tenant="public",
    model="toy:0",
    fingerprint="f",
    tokenizer_digest="k",
    template_digest="t",
    page_tokens=100,
    preamble="Answer.",
)
DOCUMENT = StoredDocument(0, "/a/one.txt", "One", "text", b"d" * 32, 5, 6)


def page(text: str = "hello there") -> NewPage:
    ids = (1, 2, len(text))
    return NewPage(Piece(0, len(text), "Top"), text, ids, (Piece(0, 5, "Top"),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return collection_path(tmp_path, "public", "manuals")


def test_what_is_put_in_comes_out(path: Path) -> None:
    with Collection.create(path, ABOUT) as held:
        assert held.put_document(DOCUMENT, [page(), page("and more of it")]) == []
        held.captured(held.page_ids()[0], b"k" * 32)
    with Collection.open(path, read_only=True) as held:
        assert held.about == ABOUT
        (document,) = held.documents()
        assert replace(document, id=0) == DOCUMENT
        first, second = (held.page(id) for id in held.page_ids())
        assert (first.text, first.ids, first.heading, first.number) == (
            "hello there",
            (1, 2, 11),
            "Top",
            0,
        )
        assert (first.key, second.key) == (b"k" * 32, None)
        assert held.pending() == [(second.id, 3)]
        (passage,) = held.passages_of(first.id)
        assert held.passage(passage.id) == passage
        assert held.totals() == {
            "documents": 1,
            "pages": 2,
            "captured": 1,
            "passages": 2,
            "tokens": 6,
        }


def test_a_document_is_replaced_as_a_whole(path: Path) -> None:
    with Collection.create(path, ABOUT) as held:
        held.put_document(DOCUMENT, [page(), page("b")])
        held.captured(held.page_ids()[0], b"k" * 32)
        with pytest.raises(InputError, match="surrogate"):
            held.put_document(DOCUMENT, [page("new"), page("\ud800")])
        assert held.totals()["pages"] == 2  # as it was
        assert held.put_document(replace(DOCUMENT, title="Two"), [page("c")]) == [b"k" * 32]
        assert [held.page(id).text for id in held.page_ids()] == ["c"]
        assert held.totals()["passages"] == 1
        assert held.remove_document(DOCUMENT.path) == []
        assert held.totals() == {
            "documents": 0,
            "pages": 0,
            "captured": 0,
            "passages": 0,
            "tokens": 0,
        }
        with pytest.raises(RecordNotFound):
            held.remove_document(DOCUMENT.path)


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_digest": "other"},
        {"template_digest": "other"},
        {"page_tokens": 101},
        {"preamble": "Say."},
        {"embedder": "e"},
    ],
    ids=str,
)
def test_other_pages_are_refused(path: Path, change: dict[str, object]) -> None:
    Collection.create(path, ABOUT).close()
    with pytest.raises(UsageError, match=next(iter(change))):
        Collection.create(path, replace(ABOUT, **change))  # type: ignore[arg-type]
    Collection.create(path, replace(ABOUT, model="another name", fingerprint="g")).close()


def test_a_model_with_another_tokenizer_is_refused() -> None:
    engine = ToyEngine()
    with pytest.raises(UsageError, match="another tokenizer"):
        ABOUT.check_engine(engine)
    tokenizer = engine.tokenizer
    mine = replace(
        ABOUT, tokenizer_digest=tokenizer.digest, template_digest=tokenizer.template_digest
    )
    mine.check_engine(engine)


def test_files_that_are_no_collections(path: Path) -> None:
    with pytest.raises(RecordNotFound, match="no such collection"):
        Collection.open(path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database at all, but long enough to be read as one" * 40)
    with pytest.raises(StoreError):
        Collection.open(path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE things (x)")
    other.commit()
    other.close()
    with pytest.raises(StoreError, match="another program"):
        Collection.create(path, ABOUT)


@pytest.mark.parametrize("column", ["text", "ids"])
def test_a_damaged_page_is_named(path: Path, column: str) -> None:
    with Collection.create(path, ABOUT) as held:
        held.put_document(DOCUMENT, [page()])
        held.db.execute(f"UPDATE pages SET {column}=?", (b"\x78\x9cgarbage",))
        with pytest.raises(StoreError, match="damaged"):
            held.page(held.page_ids()[0])
        held.db.execute("UPDATE about SET value='{' WHERE name='name'")
        with pytest.raises(StoreError, match="damaged"):
            _ = held.about


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        collection_path(tmp_path, "public", name)


def test_tenants_and_names_do_not_meet(tmp_path: Path) -> None:
    pairs = [("a", "b"), ("ab", ""), ("a", "c"), ("b", "b"), ('a", "b', "c")]
    paths = {collection_path(tmp_path, tenant, name or "x") for tenant, name in pairs}
    assert len(paths) == len(pairs)
