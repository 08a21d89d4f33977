"""Opening, checking, reindexing and counting a store."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import KvgraftError, StoreError
from kvgraft.reuse import Keep
from kvgraft.state import Role
from kvgraft.store.check import INDEX_NAME, MARK_NAME, check_store, open_local, reindex, stats
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.testing.stores import write
from toys import cold, listed, prompt, run

IDS = prompt(37)
OTHER = prompt(20, seed=1)


@pytest.fixture(scope="module")
def engine() -> ToyEngine:
    return ToyEngine()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path, engine: ToyEngine):
    """Two packs: 3 chunks with two end points, and 2 with two."""
    store = open_local(root)
    run(engine, store, IDS)
    run(engine, store, OTHER)
    yield store
    store.close()


def pack_paths(root: Path) -> list[Path]:
    """The packs' files, the larger first."""
    return sorted(root.rglob("*.pack"), key=lambda path: -path.stat().st_size)


def codes(store: ChunkStore) -> list[str]:
    return sorted(problem.code for problem in check_store(store).problems)


def tree(root: Path) -> dict[str, bytes]:
    """Every blob and what is in it."""
    return {str(p.relative_to(root)): p.read_bytes() for p in (root / "blobs").rglob("*.*")}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


# --- opening ----------------------------------------------------------------------------------


def test_a_store_is_opened_again(root: Path, store: ChunkStore, engine: ToyEngine) -> None:
    assert json.loads((root / MARK_NAME).read_text()) == {"format": 1}
    again = open_local(root)
    bits, report = run(engine, again, IDS)
    assert (bits, report.reused_tokens) == (cold(engine, IDS), 37)
    again.close()


def test_parents_are_made(tmp_path: Path) -> None:
    open_local(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / MARK_NAME).exists()


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_store_of_another_version_is_refused_and_left_alone(root: Path, version: object) -> None:
    root.mkdir()
    text = json.dumps({"format": version, "new": "things"})
    (root / MARK_NAME).write_text(text)
    with pytest.raises(StoreError, match="this release reads 1") as caught:
        open_local(root)
    assert "upgrade" in caught.value.hint
    assert (root / MARK_NAME).read_text() == text
    assert [path.name for path in root.iterdir()] == [MARK_NAME]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "1", "[" * 5000, "\udc80", " " * 9999])
def test_a_damaged_mark_is_refused_and_left_alone(root: Path, text: str) -> None:
    root.mkdir()
    (root / MARK_NAME).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreError, match="version is unreadable") as caught:
        open_local(root)
    assert caught.value.where == str(root / MARK_NAME)
    assert [path.name for path in root.iterdir()] == [MARK_NAME]


def test_a_file_that_is_no_index_is_named(root: Path, store: ChunkStore) -> None:
    store.close()
    for name in (INDEX_NAME + "-wal", INDEX_NAME + "-shm"):
        (root / name).unlink(missing_ok=True)
    (root / INDEX_NAME).write_bytes(b"this is not a database, " * 100)
    with pytest.raises(StoreError) as caught:
        open_local(root)
    assert caught.value.where == str(root / INDEX_NAME)
    assert "reindex" in caught.value.hint
    # What the hint says helps.
    (root / INDEX_NAME).unlink()
    again = open_local(root)
    assert again.find(b"x") == {}
    assert reindex(again).ok
    assert check_store(again).ok
    again.close()


def test_an_index_of_a_newer_release_is_refused(root: Path, store: ChunkStore) -> None:
    store.close()
    with sqlite3.connect(root / INDEX_NAME) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match="newer") as caught:
        open_local(root)
    assert "upgrade" in caught.value.hint


# --- checking ---------------------------------------------------------------------------------


def test_a_sound_store_passes(root: Path, store: ChunkStore) -> None:
    before = tree(root)
    seen: list[tuple[int, int]] = []
    report = check_store(store, lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.packs, report.objects, report.fingerprints) == (2, 14, 1)
    assert report.unlisted_objects == 0
    size = sum(len(data) for data in before.values())
    assert report.size_bytes == size
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert tree(root) == before
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True


def test_an_empty_store_passes(root: Path) -> None:
    store = open_local(root)
    assert check_store(store).as_dict() == {
        "ok": True,
        "packs": 0,
        "objects": 0,
        "fingerprints": 0,
        "size_bytes": 0,
        "unlisted_objects": 0,
        "problems": [],
    }
    store.close()


def test_checking_writes_nothing(root: Path, store: ChunkStore) -> None:
    flip(pack_paths(root)[0], 300)
    entries, alarms = store.index.all_entries(), store.index.alarms()
    before = tree(root)
    assert not check_store(store).ok
    assert tree(root) == before
    assert store.index.all_entries() == entries
    assert store.index.alarms() == alarms


def test_a_damaged_object_is_named_with_its_place(root: Path, store: ChunkStore) -> None:
    path = pack_paths(root)[0]
    entry = store.index.of_pack(path.name)[2]
    flip(path, entry.offset + 300)
    report = check_store(store)
    assert [(problem.code, problem.where) for problem in report.problems] == [
        ("artifact_digest", f"{path.name}@{entry.offset}"),
        ("index_other_place", f"{path.name}@{entry.offset}"),
    ]
    assert (report.packs, report.objects) == (2, 13)


def test_a_damaged_pack_does_not_hide_the_others(root: Path, store: ChunkStore) -> None:
    path = pack_paths(root)[0]
    path.write_bytes(path.read_bytes()[:-1])
    report = check_store(store)
    assert (report.packs, report.objects) == (1, 6)
    assert "artifact_truncated" in {problem.code for problem in report.problems}


def test_a_pack_that_is_gone(root: Path, store: ChunkStore) -> None:
    path = pack_paths(root)[1]
    path.unlink()
    (problem,) = check_store(store).problems
    assert (problem.code, problem.where) == ("index_missing_pack", path.name)


def test_a_renamed_pack(root: Path, store: ChunkStore) -> None:
    path = pack_paths(root)[1]
    data = path.read_bytes()
    path.unlink()
    write(store.blobs, "0" * 64 + ".pack", data)
    assert codes(store) == ["artifact_address", "index_missing_pack"]


def test_things_that_are_no_blobs(root: Path, store: ChunkStore, tmp_path: Path) -> None:
    folder = pack_paths(root)[0].parent
    (folder / "notes.txt").write_text("mine")
    (folder / f"link{folder.name}.pack").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / f"pipe{folder.name}.pack")
    (folder / "Upper.pack").write_text("")
    (folder / "misplaced.pack").write_text("")
    found = {problem.where: problem.code for problem in check_store(store).problems}
    assert found == {
        "notes.txt": "unknown_blob",
        f"link{folder.name}.pack": "blob_name_refused",
        f"pipe{folder.name}.pack": "blob_name_refused",
        "'Upper.pack'": "blob_name_refused",
        "misplaced.pack": "blob_not_found",  # its name belongs into another folder
    }


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "artifact_format"),
        (b"[]", "artifact_format"),
        (b'{"a":1}', "artifact_format"),
        (b'{"a": "b"}', "artifact_format"),  # white space: not canonical
        (b'{"b":"","a":""}', "artifact_format"),
        (b'{"a":"b","a":"b"}', "artifact_format"),
        (b"[" * 100_000, "artifact_format"),
        (b"\xff", "artifact_format"),
        (b'{"engine":"other"}', "artifact_address"),
    ],
)
def test_a_damaged_fingerprint(
    root: Path, store: ChunkStore, engine: ToyEngine, content: bytes, code: str
) -> None:
    write(store.blobs, f"{engine.fingerprint.hex}.fingerprint", content)
    assert codes(store) == [code, "fingerprint_missing"]
    report = reindex(store)
    assert [problem.code for problem in report.problems] == [code]
    assert (report.fingerprints, report.objects) == (0, 14)  # objects stay as good as they were


def test_an_absurdly_large_fingerprint_is_not_read(store: ChunkStore) -> None:
    write(store.blobs, "0" * 64 + ".fingerprint", bytes(4 * 1024 * 1024 + 1))
    (problem,) = check_store(store).problems
    assert (problem.code, problem.what) == ("artifact_format", "a fingerprint of 4194305 bytes")


def test_an_object_that_cannot_be_read_does_not_hide_the_others(
    root: Path, store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack_paths(root)[0]
    entry = store.index.of_pack(path.name)[2]
    objects = len(listed(store))
    original = os.preadv

    def fails(fd: int, buffers: Any, offset: int) -> int:
        if offset == entry.offset and os.path.sameopenfile(fd, watched.fileno()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(fd, buffers, offset)

    with path.open("rb") as watched:
        monkeypatch.setattr(os, "preadv", fails)
        report = check_store(store)
    assert (report.packs, report.objects) == (2, objects - 1)
    assert {problem.code for problem in report.problems} == {"store", "index_other_place"}


def test_a_pack_that_grows_meanwhile_does_not_pass_the_total(root: Path, store: ChunkStore) -> None:
    path = pack_paths(root)[0]
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        if not seen:
            with path.open("ab") as file:
                file.write(bytes(1_000_000))
        seen.append((done, total))

    assert not check_store(store, progress).ok
    assert seen[-1] == (seen[0][1],) * 2
    assert all(done <= total for done, total in seen)


@pytest.mark.parametrize("call", [check_store, reindex])
def test_whatever_is_opened_is_closed(
    call: Any, store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    original = store.blobs.open

    def noted(name: str) -> Any:
        opened.append(original(name))
        return opened[-1]

    monkeypatch.setattr(store.blobs, "open", noted)
    call(store)
    assert len(opened) == 6  # each blob for its size, and to be read
    assert {reader._fd for reader in opened} == {-1}


def test_an_index_that_lists_another_place(root: Path, store: ChunkStore) -> None:
    entry = store.index.all_entries()[0]
    store.index.remove(entry)
    moved = replace(entry.object, offset=entry.object.offset + 4096)
    store.index.add_pack(entry.pack, entry.pack_bytes, [moved])
    assert codes(store) == ["index_other_place"]


def test_an_index_with_a_role_that_is_none(root: Path, store: ChunkStore) -> None:
    with sqlite3.connect(root / INDEX_NAME) as db:
        db.execute("UPDATE objects SET role=9 WHERE role=3")
    db.close()
    with pytest.raises(StoreError, match="role 9") as caught:
        check_store(store)
    assert "reindex" in caught.value.hint
    with pytest.raises(StoreError, match="role 9"):
        stats(store)
    assert reindex(store).ok
    assert check_store(store).ok


def test_a_capture_that_was_published_and_not_listed(root: Path, store: ChunkStore) -> None:
    store.index.clear()
    report = check_store(store)
    assert (report.ok, report.unlisted_objects) == (True, 14)


def drifting(engine: ToyEngine) -> ToyEngine:
    """Another model under the same fingerprint: other bits for the same keys."""
    other = ToyEngine(seed=1)
    other.fingerprint = engine.fingerprint
    return other


def test_two_packs_that_disagree_are_drift(
    root: Path, store: ChunkStore, engine: ToyEngine
) -> None:
    elsewhere = open_local(root.with_name("elsewhere"))
    run(drifting(engine), elsewhere, OTHER)
    (path,) = pack_paths(root.with_name("elsewhere"))
    elsewhere.close()
    write(store.blobs, path.name, path.read_bytes())
    before = listed(store)
    assert codes(store) == ["drift"] * 6
    report = reindex(store)
    assert [problem.code for problem in report.problems] == ["drift"] * 6
    assert [alarm["kind"] for alarm in store.index.alarms()] == ["drift"] * 6
    assert listed(store) == before


def test_drift_between_processes_is_noticed_at_listing(engine: ToyEngine, root: Path) -> None:
    # Both look before either has listed anything.
    store = open_local(root)
    captures = []
    for bits in (b"one", b"two"):
        capture = store.capture(engine.fingerprint)
        capture.add(Role.KEEP, b"k" * 32, (0, 16, 16), [bits])
        captures.append(capture)
    assert captures[0].commit().drifted == []
    assert captures[1].commit().drifted == [(b"k" * 32).hex()]
    (alarm,) = store.index.alarms()
    assert (alarm["kind"], alarm["key"]) == ("drift", (b"k" * 32).hex())
    (entry,) = store.index.all_entries()
    assert entry.pack == captures[0]._result.pack
    store.close()


# --- the index --------------------------------------------------------------------------------


def test_objects_of_a_pack_come_by_offset(root: Path, store: ChunkStore) -> None:
    entries = store.index.of_pack(pack_paths(root)[0].name)
    assert len(entries) > 2
    assert entries == sorted(entries, key=lambda entry: entry.offset)


def test_totals_count_what_is_listed(root: Path, store: ChunkStore) -> None:
    entries = [entry.object for entry in store.index.all_entries()]
    assert store.index.totals() == {
        "packs": 2,
        "pack_bytes": sum(path.stat().st_size for path in pack_paths(root)),
        "objects": len(entries),
        **{
            f"{role.name.lower()}_bytes": sum(e.stored_length for e in entries if e.role is role)
            for role in Role
        },
    }


def test_an_object_that_is_listed_elsewhere_by_now_stays(store: ChunkStore) -> None:
    # Two readers find one object damaged; the second is late, and it was stored again meanwhile.
    before = store.index.all_entries()[0]
    store.index.remove(before)
    store.index.add_pack("other.pack", 4096, [before.object])
    store.index.remove(before)
    (found,) = [e for e in store.index.all_entries() if e.object == before.object]
    assert found.pack == "other.pack"


def test_a_pack_of_another_size_than_listed_is_listed_anew(
    root: Path, store: ChunkStore, engine: ToyEngine
) -> None:
    with sqlite3.connect(root / INDEX_NAME) as db:
        db.execute("UPDATE packs SET size_bytes=size_bytes+1")
    db.close()
    assert run(engine, store, IDS)[1].reused_tokens == 0
    assert run(engine, store, IDS)[1].reused_tokens == 37


def test_a_fingerprint_is_new_once(store: ChunkStore) -> None:
    assert store.index.note_fingerprint(b"f" * 32, "{}") is True
    assert store.index.note_fingerprint(b"f" * 32, "{}") is False


# --- rebuilding the index ---------------------------------------------------------------------


def test_a_rebuilt_index_forgets_what_is_gone(
    root: Path, store: ChunkStore, engine: ToyEngine
) -> None:
    pack_paths(root)[1].unlink()
    (fingerprint,) = root.rglob("*.fingerprint")
    fingerprint.unlink()
    assert reindex(store).ok
    assert store.index.fingerprints() == {}
    assert stats(store)["fingerprints"][0]["fields"] is None  # type: ignore[index]
    assert codes(store) == ["fingerprint_missing"]
    run(engine, store, OTHER)  # stores what is missing again, the fingerprint too
    assert fingerprint.exists()
    assert codes(store) == []


def test_a_pack_without_a_sound_object_is_not_listed(root: Path, engine: ToyEngine) -> None:
    store = open_local(root)
    capture = store.capture(engine.fingerprint)
    capture.add(Role.KEEP, b"k" * 32, (0, 16, 16), [b"payload"])
    capture.commit()
    flip(pack_paths(root)[0], 256)
    report = reindex(store)
    assert (report.packs, report.objects, store.index.packs()) == (0, 0, {})
    store.close()


def test_a_capture_while_blobs_are_listed_stays_listed(
    store: ChunkStore, engine: ToyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, before = list(store.blobs.names()), listed(store)

    def slow() -> list[str]:
        run(engine, store, prompt(16, seed=2))  # published after the listing, and listed itself
        return names

    monkeypatch.setattr(store.blobs, "names", slow)
    assert reindex(store).objects == len(before)
    assert listed(store) > before


def test_the_index_is_rebuilt_as_it_was(root: Path, store: ChunkStore, engine: ToyEngine) -> None:
    entries, known = store.index.all_entries(), store.index.fingerprints()
    blobs = tree(root)
    store.index.alarm("drift", b"k" * 32, Role.KEEP, "kept")
    store.close()
    (root / INDEX_NAME).unlink()
    again = open_local(root)
    assert again.index.all_entries() == []
    seen: list[tuple[int, int]] = []
    report = reindex(again, lambda done, total: seen.append((done, total)))
    assert (report.ok, report.packs, report.objects, report.fingerprints) == (True, 2, 14, 1)
    assert seen[-1] == (report.size_bytes, report.size_bytes)
    assert again.index.all_entries() == entries
    assert again.index.fingerprints() == known
    assert tree(root) == blobs
    bits, used = run(engine, again, IDS)
    assert (bits, used.reused_tokens) == (cold(engine, IDS), 37)
    again.close()


def test_reindexing_twice_changes_nothing_and_keeps_alarms(store: ChunkStore) -> None:
    entries = store.index.all_entries()
    store.index.alarm("drift", b"k" * 32, Role.KEEP, "kept")
    for _ in range(2):
        assert reindex(store).ok
        assert store.index.all_entries() == entries
        assert len(store.index.alarms()) == 1


def test_what_fails_is_left_alone_and_listed_as_a_problem(
    root: Path, store: ChunkStore, engine: ToyEngine
) -> None:
    large, small = pack_paths(root)
    entry = store.index.of_pack(large.name)[2]
    flip(large, entry.offset + 300)
    small.write_bytes(small.read_bytes()[:5000])
    blobs = tree(root)
    before = listed(store)
    report = reindex(store)
    assert tree(root) == blobs
    assert {(problem.code, problem.where) for problem in report.problems} == {
        ("artifact_digest", f"{large.name}@{entry.offset}"),
        ("artifact_truncated", small.name),
    }
    assert (report.packs, report.objects) == (1, 7)
    assert listed(store) < before
    assert (entry.key, entry.role) not in listed(store)
    assert json.loads(json.dumps(report.as_dict()))["ok"] is False
    for ids in (IDS, OTHER):
        assert run(engine, store, ids, keep=Keep.NOTHING)[0] == cold(engine, ids)


def test_a_rebuilt_index_still_names_what_differs(store: ChunkStore, engine: ToyEngine) -> None:
    reindex(store)
    other = ToyEngine(shape=ToyShape(block=8, rungs=(4, 8)))
    _, report = run(other, store, IDS, keep=Keep.NOTHING)
    assert report.misses == ["fingerprint: plan differ"]


# --- counting ---------------------------------------------------------------------------------


def test_stats(root: Path, store: ChunkStore, engine: ToyEngine) -> None:
    other = ToyEngine(seed=1)
    run(other, store, OTHER)
    store.index.alarm("drift", b"k" * 32, Role.KEEP, "made up")
    found = stats(store)
    entries = [entry.object for entry in store.index.all_entries()]
    assert found["packs"] == 3
    assert found["pack_bytes"] == sum(path.stat().st_size for path in pack_paths(root))
    assert found["objects"] == len(entries) == 20
    assert found["alarms"] == 1
    assert found["roles"] == {
        role.name.lower(): {
            "objects": len([entry for entry in entries if entry.role is role]),
            "payload_bytes": sum(e.stored_length for e in entries if e.role is role),
        }
        for role in Role
    }
    makers = {maker["digest"]: maker for maker in found["fingerprints"]}  # type: ignore[attr-defined]
    assert makers.keys() == {engine.fingerprint.hex, other.fingerprint.hex}
    for fingerprint in (engine.fingerprint, other.fingerprint):
        own = [entry for entry in entries if entry.fingerprint == fingerprint.digest]
        maker = makers[fingerprint.hex]
        assert maker["fields"] == dict(fingerprint.fields)
        assert maker["objects"] == len(own)
        assert maker["payload_bytes"] == sum(entry.stored_length for entry in own)
    assert json.dumps(found)


def test_stats_of_an_empty_store(root: Path) -> None:
    store = open_local(root)
    found = stats(store)
    assert (found["packs"], found["objects"], found["fingerprints"]) == (0, 0, [])
    store.close()


def test_an_index_that_cannot_be_read_says_so(store: ChunkStore) -> None:
    closed = Index(None)
    closed.close()
    store.index.close()
    store.index = closed
    for call in (check_store, reindex, stats):
        with pytest.raises(KvgraftError):
            call(store)
