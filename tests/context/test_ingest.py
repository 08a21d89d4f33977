"""Files into a collection: pages that fit, states that are durable, and runs that go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from context.embedders import TinyEmbedder
from kvgraft.context import ingest as module
from kvgraft.context.about import collection_path
from kvgraft.context.collection import Collection
from kvgraft.context.files import find_files
from kvgraft.context.ingest import (
    Captured,
    Taken,
    about_for,
    capture,
    embed,
    forecast,
    remove,
    remove_missing,
    take_in,
)
from kvgraft.context.layout import titled
from kvgraft.context.question import ask_collection
from kvgraft.context.route import route
from kvgraft.context.space import Space
from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import RecordNotFound, StoreFull, UsageError
from kvgraft.plan import PUBLIC_SALT
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.store.check import open_local

PAGE_TOKENS = 400
ENGINE = ToyShape(context_tokens=2_048)
TEXT = "\n\n".join(f"Paragraph {n} says that thing {n} weighs {7 * n} stones." for n in range(40))


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    chunks = open_local(tmp_path / "store")
    yield Space(ToyEngine(shape=ENGINE), chunks, "public", PUBLIC_SALT)
    chunks.close()


@pytest.fixture
def held(tmp_path: Path, space: Space) -> Iterator[Collection]:
    path = collection_path(tmp_path / "store", space.tenant, "manuals")
    with Collection.create(path, about_for(space, "manuals", PAGE_TOKENS)) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "documents"
    (root / "deep").mkdir(parents=True)
    (root / "one.txt").write_text(TEXT)
    (root / "deep" / "two.md").write_text("# Two\n\nA short one.\n")
    return root


def taken(space: Space, held: Collection, *paths: Path) -> dict[str, Taken]:
    seen = take_in(space, held, find_files(paths), lambda stage, done, total: None)
    return {Path(one.path).name: one for one in seen}


def captured(space: Space, held: Collection) -> Captured:
    done = Captured()
    for one in capture(space, held):
        done = one
    return done


def test_pages_fit_and_hold_the_whole_text(space: Space, held: Collection, folder: Path) -> None:
    seen = taken(space, held, folder)
    assert {name: one.outcome for name, one in seen.items()} == {
        "one.txt": "added",
        "two.md": "added",
    }
    pages = [held.page(id) for id in held.page_ids()]
    assert len(pages) == sum(one.pages for one in seen.values()) > 4
    for page in pages:
        assert len(page.ids) <= PAGE_TOKENS
        text = titled(page.title, page.heading, page.text)
        assert page.ids == held.about.layout.page_ids(space.engine.tokenizer, text)
        assert page.key is None
    mine = [page for page in pages if page.path.endswith("one.txt")]
    assert "".join(page.text for page in mine).split() == TEXT.split()
    assert [page.number for page in mine] == list(range(len(mine)))
    for page in mine:
        assert TEXT[page.start :].startswith(page.text[:20])
        for passage in held.passages_of(page.id):
            assert 0 <= passage.start < passage.end <= len(page.text)


def test_states_are_captured_to_the_pages_end(space: Space, held: Collection, folder: Path) -> None:
    taken(space, held, folder)
    ahead = forecast(space, held, folder)
    assert ahead.pages == held.totals()["pages"]
    assert ahead.tokens == held.totals()["tokens"]
    done = captured(space, held)
    assert (done.pages, done.tokens, done.drifted) == (ahead.pages, ahead.tokens, 0)
    assert sum(done.by_kind.values()) <= done.size_bytes
    # Less than forecast: the preamble's blocks are all pages', and stored once.
    assert sum(done.by_kind.values()) < ahead.size_bytes
    assert held.pending() == []
    assert forecast(space, held, folder).pages == 0
    for id in held.page_ids():
        page = held.page(id)
        more = (*page.ids, 65, 66)
        grafted = compute_prompt(
            space.engine, space.chunks, more, cuts=(len(page.ids),), keep=Keep.NOTHING
        )
        assert grafted.report.reused_tokens == len(page.ids)
        cold = compute_prompt(space.engine, None, more, cuts=(len(page.ids),))
        assert grafted.context.logits().tobytes() == cold.context.logits().tobytes()
        grafted.context.close()
        cold.context.close()


def test_what_one_page_takes_is_known_before(space: Space, held: Collection, folder: Path) -> None:
    taken(space, held, folder / "deep")
    ahead = forecast(space, held, folder)
    assert (ahead.pages, ahead.seconds) == (1, None)
    assert ahead.free_bytes > 0
    assert sum(captured(space, held).by_kind.values()) == ahead.size_bytes


def test_only_what_is_new_or_changed_is_read(
    space: Space, held: Collection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(space, held, folder)
    captured(space, held)
    keys = {id: held.page(id).key for id in held.page_ids()}
    read: list[str] = []
    read_file = module.read_file
    monkeypatch.setattr(module, "read_file", lambda file: read.append(file.path) or read_file(file))
    assert {one.outcome for one in taken(space, held, folder).values()} == {"unchanged"}
    assert read == []
    (folder / "one.txt").touch()
    assert taken(space, held, folder)["one.txt"].outcome == "unchanged"
    assert [Path(path).name for path in read] == ["one.txt"]
    assert {id: held.page(id).key for id in held.page_ids()} == keys
    assert taken(space, held, folder)["one.txt"].outcome == "unchanged"
    assert len(read) == 1  # its new times were noted
    (folder / "deep" / "two.md").write_text("# Two\n\nAnother one.\n")
    assert taken(space, held, folder)["two.md"].outcome == "changed"
    assert len(held.pending()) == 1
    assert captured(space, held).pages == 1


def test_pages_that_did_not_change_keep_their_states(
    space: Space, held: Collection, folder: Path
) -> None:
    taken(space, held, folder)
    captured(space, held)
    path = folder / "one.txt"
    before = [held.page(id) for id in held.page_ids() if held.page(id).path == str(path)]
    path.write_text(f"{TEXT}\n\nOne more paragraph at the end, that says something new.")
    assert taken(space, held, folder)["one.txt"].outcome == "changed"
    after = [held.page(id) for id in held.page_ids() if held.page(id).path == str(path)]
    same = [page for page in after if page.key is not None]
    assert len(same) >= len(before) - 1 > 1
    assert [page.key for page in same] == [page.key for page in before[: len(same)]]
    assert all(space.chunks.find(page.key or b"") for page in same)
    assert captured(space, held).pages == len(after) - len(same)


def test_a_changed_documents_states_are_deleted(
    space: Space, held: Collection, folder: Path
) -> None:
    taken(space, held, folder)
    captured(space, held)
    old = [held.page(id) for id in held.page_ids() if held.page(id).path.endswith("two.md")]
    before = space.chunks.index.totals()
    (folder / "deep" / "two.md").write_text("Another.")
    taken(space, held, folder)
    for page in old:
        assert page.key is not None
        assert space.chunks.find(page.key) == {}
    assert space.chunks.index.totals() != before
    packs = {name for name in space.chunks.blobs.names() if name.endswith(".pack")}
    assert packs == set(space.chunks.index.packs())


def test_a_run_that_ended_early_goes_on(space: Space, held: Collection, folder: Path) -> None:
    taken(space, held, folder)
    running = capture(space, held)
    next(running)
    next(running)
    running.close()
    total = held.totals()
    assert total["captured"] == 2
    assert captured(space, held).pages == total["pages"] - 2
    assert held.pending() == []


def test_bad_files_are_told_and_do_not_stop_the_rest(
    space: Space, held: Collection, folder: Path
) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "binary.txt").write_bytes(b"\x00\x01\x02" * 100)
    (folder / "wrong.txt").write_bytes(b"caf\xe9 in Latin-1")
    seen = taken(space, held, folder)
    assert {name for name, one in seen.items() if one.outcome == "failed"} == {
        "empty.txt",
        "binary.txt",
        "wrong.txt",
    }
    assert all(one.detail for one in seen.values() if one.outcome == "failed")
    assert held.totals()["documents"] == 2


def test_a_full_disk_loses_nothing(
    space: Space, held: Collection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(space, held, folder)
    running = capture(space, held)
    next(running)
    running.close()

    def full(*arguments: object) -> object:
        raise StoreFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(space.chunks.blobs, "writer", full)
        with pytest.raises(StoreFull, match="a page was not stored"):
            captured(space, held)
    assert held.totals()["captured"] == 1
    assert captured(space, held).pages == held.totals()["pages"] - 1


def test_a_document_is_removed_with_its_pages_and_states(
    space: Space, held: Collection, folder: Path
) -> None:
    taken(space, held, folder)
    captured(space, held)
    path = str(folder / "one.txt")
    pages = [held.page(id) for id in held.page_ids() if held.page(id).path == path]
    assert remove(space, held, path) > 0
    assert held.document(path) is None
    for page in pages:
        with pytest.raises(RecordNotFound):
            held.page(page.id)
        assert page.key is not None
        assert space.chunks.find(page.key) == {}
    assert held.totals()["documents"] == 1
    with pytest.raises(RecordNotFound):
        remove(space, held, path)


def test_documents_whose_files_are_gone(space: Space, held: Collection, folder: Path) -> None:
    taken(space, held, folder)
    (folder / "one.txt").unlink()
    there = {file.path for file in find_files([folder])}
    gone = remove_missing(space, held, [folder / "deep"], there)
    assert gone == []  # it was not below that folder
    gone = remove_missing(space, held, [folder], there)
    assert [Path(one.path).name for one in gone] == ["one.txt"]
    assert held.totals()["documents"] == 1


def test_two_documents_of_one_text_share_their_state(
    space: Space, held: Collection, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text("The same words in two places.")
    taken(space, held, tmp_path / "a", tmp_path / "b")
    captured(space, held)
    first, second = (held.page(id) for id in held.page_ids())
    assert first.key == second.key is not None
    remove(space, held, first.path)
    assert space.chunks.find(second.key) != {}  # the other one still needs it
    remove(space, held, second.path)
    assert space.chunks.find(second.key) == {}


def test_vectors_are_made_once_and_go_with_their_passages(
    space: Space, folder: Path, tmp_path: Path
) -> None:
    embedder = TinyEmbedder()
    path = tmp_path / "m.sqlite3"
    with Collection.create(path, about_for(space, "m", PAGE_TOKENS, embedder)) as held:
        taken(space, held, folder)
        passages = held.totals()["passages"]

        def made() -> int:
            return embed(held, embedder, lambda stage, done, total: None)

        assert (made(), made()) == (passages, 0)
        (folder / "deep" / "two.md").write_text("# Two\n\nThe automobile was purchased in May.\n")
        taken(space, held, folder)
        assert made() == 1
        with pytest.raises(UsageError, match="another embedding model"):
            embed(held, TinyEmbedder("other"), lambda stage, done, total: None)
        question = "bought a car"  # none of its words is in the text
        (best, *_) = route(held.db, question, embedder=embedder).pages
        assert "purchased" in held.page(best.page).text
        reply = ask_collection(
            space, held, question, embedder=embedder, max_new_tokens=2, anyway=True
        )
        assert reply.cost.reused_tokens == len(held.page(best.page).ids)
        with pytest.raises(UsageError, match="no embedding model is open"):
            ask_collection(space, held, question)
    with pytest.raises(UsageError, match="embedder"):
        Collection.create(path, about_for(space, "m", PAGE_TOKENS))


@pytest.mark.parametrize("tokens", [0, 63, 2_048, 10_000])
def test_pages_that_the_model_has_no_room_for(space: Space, tokens: int) -> None:
    with pytest.raises(UsageError, match="pages of"):
        about_for(space, "x", tokens)


def test_a_title_that_leaves_no_room(space: Space, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite3"
    (tmp_path / "long.md").write_text("# " + "very " * 60 + "long\n\nText.\n")
    with Collection.create(path, about_for(space, "x", 250)) as held:
        (one,) = taken(space, held, tmp_path / "long.md").values()
    assert one.outcome == "failed"
    assert "no room" in one.detail
