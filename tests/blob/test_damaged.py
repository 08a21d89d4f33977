"""Damaged packs: each refused by its error, delisted, alarmed; the prompt is computed instead."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from damaged.make import COMMITTED, DAMAGES, HERE, MARKER, Sound, golden_sound, trap
from golden.read import Golden
from kvgraft import errors
from kvgraft.blob.pack import TRAILER_BYTES, pack_name
from kvgraft.blob.payload import ChunkPlace, PayloadCheck, payload_length
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import KvgraftError, StoreError, Truncated
from kvgraft.reuse import Keep
from kvgraft.store.check import check_store, reindex
from kvgraft.store.chunks import ChunkStore, ObjectRead
from kvgraft.store.index import Index
from kvgraft.store.local import LocalStore
from kvgraft.store.memory import MemoryStore
from kvgraft.store.scan import Scan, read_entries
from toys import cold, listed, prompt, run

MANIFEST: dict[str, dict[str, Any]] = json.loads((HERE / "manifest.json").read_text())
FORGED = {name for name, line in MANIFEST.items() if line["scan"] is None}
IDS = prompt(48)  # one end point: a restore of the whole reads every object


@pytest.fixture(autouse=True)
def no_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing that was read has run: a pickle would have made a folder here."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(MARKER).exists()


def put(store: MemoryStore, name: str, data: bytes) -> None:
    writer = store.writer()
    writer.write(data)
    writer.publish(name)


def sound_store(sound: Sound, name: str) -> ChunkStore:
    blobs = MemoryStore()
    put(blobs, name, sound.data)
    store = ChunkStore(blobs, Index(None))
    store.index.add_pack(name, len(sound.data), sound.entries)
    return store


def damaged_store(sound: Sound, name: str, data: bytes, forged: bool) -> tuple[ChunkStore, str]:
    """A store whose pack was damaged after it was listed, or one listed as the forger made it."""
    store = sound_store(sound, name)
    if not forged:
        put(store.blobs, name, data)  # type: ignore[arg-type]
        return store, name
    store.blobs.delete(name)
    name = pack_name(data[-TRAILER_BYTES - 136 * len(sound.entries) :])
    put(store.blobs, name, data)  # type: ignore[arg-type]
    assert reindex(store).problems == []
    return store, name


def read_all(store: ChunkStore, sound: Sound, ids: Any) -> list[ObjectRead]:
    reads = []
    for entry in store.index.all_entries():
        item = entry.object
        place = ChunkPlace(item.start, item.count, item.rows)
        check = PayloadCheck(
            sound.spec, item.role, place, ids[item.start : item.start + item.count]
        )
        size = payload_length(sound.spec, item.role, place) - len(check.head) - len(check.ids)
        buffers = [*check.buffers(), memoryview(bytearray(size))]
        reads.append(ObjectRead(entry, buffers, check.verify))
    store.read(reads)
    return reads


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden("mixed")


@pytest.fixture(scope="module")
def golden_pack(golden: Golden) -> Sound:
    reader = golden.store().blobs.open(golden.facts["pack"])
    entries = read_entries(reader, golden.facts["pack"])
    return Sound(golden.pack, tuple(entries), golden.engine.spec)


@dataclass
class Fresh:
    """A pack that this machine's toy wrote, and what a cold run of its prompt gives."""

    engine: ToyEngine
    sound: Sound
    name: str
    cold: bytes


@pytest.fixture(scope="module")
def fresh() -> Fresh:
    engine = ToyEngine()
    store = ChunkStore(MemoryStore(), Index(None))
    _, report = run(engine, store, IDS)
    (name,) = store.index.packs()
    data = bytearray(report.captured_bytes)
    reader = store.blobs.open(name)
    reader.read_into(0, [memoryview(data)])
    sound = Sound(bytes(data), tuple(read_entries(reader, name)), engine.spec)
    return Fresh(engine, sound, name, cold(engine, IDS))


def expect(name: str, key: str) -> type[KvgraftError] | None:
    wanted = MANIFEST[name][key]
    return getattr(errors, wanted) if wanted else None


def test_the_manifest_lists_every_damage() -> None:
    assert MANIFEST.keys() == DAMAGES.keys()
    assert len(MANIFEST) > 40


@pytest.mark.parametrize("name", DAMAGES)
def test_reading_and_scanning_refuse_by_the_listed_error(
    name: str, golden: Golden, golden_pack: Sound
) -> None:
    data = DAMAGES[name](golden_pack)
    assert data != golden_pack.data
    store, pack = damaged_store(golden_pack, golden.facts["pack"], data, name in FORGED)
    scan = Scan(store.blobs, lambda done, total: None)
    scan.pack(pack)
    wanted = expect(name, "scan")
    assert {problem.code for problem in scan.problems} == ({wanted.code} if wanted else set())
    # That store has the pack alone, so its fingerprint is missing too.
    codes = {problem.code for problem in check_store(store).problems} - {"fingerprint_missing"}
    assert (wanted.code in codes) if wanted else (codes == set())

    reads = read_all(store, golden_pack, golden.ids)
    bad = [read for read in reads if read.error is not None]
    wanted = expect(name, "read")
    assert {type(read.error) for read in bad} == ({wanted} if wanted else set())
    count = MANIFEST[name]["bad_objects"]
    assert len(bad) == (len(reads) if count == "all" else count)
    gone = {(read.entry.object.key, read.entry.object.role) for read in bad}
    assert listed(store) == {(e.key, e.role) for e in golden_pack.entries} - gone
    assert [alarm["kind"] for alarm in store.index.alarms()] == ["damaged"] * len(bad)


@pytest.mark.parametrize("name", DAMAGES)
def test_the_prompt_is_computed_instead(name: str, fresh: Fresh) -> None:
    data = DAMAGES[name](fresh.sound)
    store, _ = damaged_store(fresh.sound, fresh.name, data, name in FORGED)
    bits, report = run(fresh.engine, store, IDS, keep=Keep.NOTHING)
    assert bits == fresh.cold
    wanted = expect(name, "read")
    if wanted is None:
        assert (report.misses, report.reused_tokens) == ([], len(IDS))
        return
    assert any(miss.startswith(f"{wanted.code}: ") for miss in report.misses)
    assert report.reused_tokens < len(IDS)
    assert report.reused_tokens + report.computed_tokens == len(IDS)
    alarms = {(alarm["key"], alarm["role"]) for alarm in store.index.alarms()}
    count = MANIFEST[name]["bad_objects"]
    assert len(alarms) == (len(fresh.sound.entries) if count == "all" else count)
    assert not alarms & {(key.hex(), str(role.value)) for key, role in listed(store)}

    # Computed once more with capture, it is whole again.
    assert run(fresh.engine, store, IDS)[0] == fresh.cold
    bits, report = run(fresh.engine, store, IDS)
    assert (bits, report.computed_tokens) == (fresh.cold, 0)


@pytest.mark.parametrize("name", DAMAGES)
def test_an_index_built_from_it_lists_only_what_is_sound(name: str, fresh: Fresh) -> None:
    data = DAMAGES[name](fresh.sound)
    blobs = MemoryStore()
    put(blobs, fresh.name, data)
    store = ChunkStore(blobs, Index(None))
    report = reindex(store)
    assert report.problems
    assert report.objects == len(listed(store))
    # Damaged padding leaves every object as good as it was.
    assert (report.objects < len(fresh.sound.entries)) is (name != "flip_padding")
    bits, _ = run(fresh.engine, store, IDS, keep=Keep.NOTHING)
    assert bits == fresh.cold
    assert store.index.alarms() == []


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_files_are_what_the_script_makes(name: str) -> None:
    sound = golden_sound()
    data = (HERE / "v1" / f"{name}.pack").read_bytes()
    assert data == DAMAGES[name](sound)
    golden = Golden("plain")
    store, _ = damaged_store(sound, golden.facts["pack"], data, name in FORGED)
    found = {type(read.error) for read in read_all(store, sound, golden.ids) if read.error}
    assert found == {expect(name, "read")}


def test_every_committed_file_is_tested() -> None:
    assert sorted(path.stem for path in (HERE / "v1").glob("*")) == sorted(COMMITTED)


def test_the_trap_is_live() -> None:
    pickle.loads(trap())
    Path(MARKER).rmdir()  # it was there


# --- while it is open -------------------------------------------------------------------------


class TruncatingStore(LocalStore):
    """Cuts every blob right after it was opened: its size was read before."""

    cut: int

    def open(self, name: str) -> Any:
        reader = super().open(name)
        os.truncate(self._path(name), self.cut)
        return reader


@pytest.mark.parametrize("cut", [0, 100, 20_000, -1])
def test_a_file_truncated_while_it_is_open(cut: int, tmp_path: Path, fresh: Fresh) -> None:
    blobs = TruncatingStore(tmp_path)
    size = len(fresh.sound.data)
    blobs.cut = cut if cut >= 0 else fresh.sound.table_offset - 4000  # inside the end point
    put(blobs, fresh.name, fresh.sound.data)  # type: ignore[arg-type]
    store = ChunkStore(blobs, Index(None))
    store.index.add_pack(fresh.name, size, fresh.sound.entries)
    bits, report = run(fresh.engine, store, IDS, keep=Keep.NOTHING)
    assert bits == fresh.cold
    assert any(miss.startswith("artifact_truncated: the blob ends") for miss in report.misses)
    reads = read_all(store, fresh.sound, IDS)
    assert all(isinstance(read.error, Truncated) for read in reads if read.error)
    store.close()


# --- a store that cannot be read --------------------------------------------------------------


class FailingStore(MemoryStore):
    """Has every blob, and can read none; or not even open it."""

    opens = True

    def open(self, name: str) -> Any:
        if not self.opens:
            raise StoreError("Input/output error while opening a blob", where=name)
        reader = super().open(name)

        def fails(offset: int, buffers: Any) -> None:
            raise StoreError("Input/output error while reading a blob", where=name)

        reader.read_into = fails  # type: ignore[method-assign]
        return reader


@pytest.mark.parametrize("opens", [True, False])
def test_a_disk_that_fails_is_a_miss(opens: bool, fresh: Fresh) -> None:
    blobs = FailingStore()
    blobs.opens = opens
    store = ChunkStore(blobs, Index(None))
    put(blobs, fresh.name, fresh.sound.data)
    store.index.add_pack(fresh.name, len(fresh.sound.data), fresh.sound.entries)
    bits, report = run(fresh.engine, store, IDS, keep=Keep.NOTHING)
    assert (bits, report.reused_tokens) == (fresh.cold, 0)
    assert any(miss.startswith("store: Input/output error") for miss in report.misses)
    assert {alarm["kind"] for alarm in store.index.alarms()} == {"unreadable"}


class ReadOnlyIndex(Index):
    def remove(self, entry: Any) -> None:
        raise errors.StoreReadOnly("attempt to write a readonly database")

    def alarm(self, *_: Any) -> None:
        raise errors.StoreReadOnly("attempt to write a readonly database")


def test_what_cannot_be_delisted_is_not_found_again(fresh: Fresh) -> None:
    store = sound_store(fresh.sound, fresh.name)
    store.index = ReadOnlyIndex(None)
    store.index.add_pack(fresh.name, len(fresh.sound.data), fresh.sound.entries)
    put(store.blobs, fresh.name, DAMAGES["flip_tensor"](fresh.sound))  # type: ignore[arg-type]
    bits, report = run(fresh.engine, store, IDS, keep=Keep.NOTHING)
    assert bits == fresh.cold
    assert report.reused_tokens == 0
    assert f"no chunk after {fresh.sound.victim.start // 16} calls" in report.misses[-2]
    victim = fresh.sound.victim
    assert victim.role not in store.find(victim.key)
    assert victim.role in store.index.find(victim.key)


# --- any damage at all ------------------------------------------------------------------------

OFFSETS = st.one_of(
    st.integers(0, 60_000),
    st.builds(lambda page, byte: 4096 * page + byte, st.integers(0, 13), st.integers(0, 400)),
    st.integers(-1200, -1),  # table and trailer
)
EDITS = st.one_of(
    st.tuples(st.just("flip"), OFFSETS, st.integers(1, 255)),
    st.tuples(st.just("cut"), OFFSETS, st.just(0)),
    st.tuples(st.just("insert"), OFFSETS, st.integers(1, 5000)),
    st.tuples(st.just("zero"), OFFSETS, st.integers(1, 5000)),
    st.tuples(st.just("copy"), OFFSETS, OFFSETS),
)


def edited(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, offset, value in edits:
        if not out:
            break
        at = offset % len(out)
        if kind == "flip":
            out[at] ^= value
        elif kind == "cut":
            del out[at:]
        elif kind == "insert":
            out[at:at] = bytes(value)
        elif kind == "zero":
            out[at : at + value] = bytes(len(out[at : at + value]))
        else:
            page = 4096 * (value % len(out) // 4096)
            piece = out[page : page + 4096]
            out[at : at + len(piece)] = piece
    return bytes(out)


@settings(max_examples=150)
@given(edits=st.lists(EDITS, min_size=1, max_size=3), relisted=st.booleans())
@example(edits=[("flip", 12_288 + 300, 1)], relisted=False)
@example(edits=[("copy", 0, 12_288)], relisted=True)
def test_no_damage_is_restored_or_raises(
    fresh: Fresh, edits: list[tuple[str, int, int]], relisted: bool
) -> None:
    store = sound_store(fresh.sound, fresh.name)
    put(store.blobs, fresh.name, edited(fresh.sound.data, edits))  # type: ignore[arg-type]
    check_store(store)
    if relisted:
        reindex(store)
    bits, report = run(fresh.engine, store, IDS, keep=Keep.NOTHING)
    assert bits == fresh.cold
    assert report.reused_tokens + report.computed_tokens == len(IDS)
