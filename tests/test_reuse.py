"""The one path of a prompt, with the toy engine: whatever the store holds, the bits are the same.

Numbers in parentheses are rows of the fault list that these tests answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgraft.blob.payload import ChunkPlace, PayloadCheck, payload_head
from kvgraft.engines.toy import RECURRENT, ToyContext, ToyEngine, ToyShape
from kvgraft.errors import (
    ContextTooLong,
    EngineError,
    FormatError,
    InputError,
    StoreError,
    StoreFull,
    UsageError,
)
from kvgraft.identity import Fingerprint
from kvgraft.plan import PUBLIC_SALT, as_token_ids
from kvgraft.reuse import Keep, ReuseReport, compute_prompt
from kvgraft.state import LayerKind, LayerSpec, Role, StateSpec
from kvgraft.store import chunks
from kvgraft.store.chunks import ChunkStore, ObjectRead
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from toys import CountingToy, cold, listed, logits_bits, memory_chunks, prompt, run

SHAPES = {
    "mixed": ToyShape(),
    "full only": ToyShape(windows=(0, 0)),
    "sliding only": ToyShape(windows=(7, 24)),
    "window over many blocks": ToyShape(windows=(0, 100), block=8, rungs=(2, 8)),
    "one rung": ToyShape(windows=(0, 5), rungs=(16,)),
    "bare tail": ToyShape(rungs=()),
    "recurrent": ToyShape(windows=(RECURRENT, RECURRENT), rungs=()),
    "recurrent beside the others": ToyShape(windows=(RECURRENT, 0, 9, RECURRENT), rungs=()),
}


@pytest.fixture(params=SHAPES)
def engine(request: pytest.FixtureRequest) -> CountingToy:
    return CountingToy(shape=SHAPES[request.param])


@pytest.fixture
def toy() -> CountingToy:
    return CountingToy()


def calls_made(
    engine: CountingToy, store: ChunkStore | None, ids: Any, **options: Any
) -> tuple[list[int], ReuseReport]:
    """The rows of every forward pass that computing a prompt took, and what the report says."""
    before = len(engine.forwards)
    done = compute_prompt(engine, store, ids, **options)
    done.context.close()
    return engine.forwards[before:], done.report


# --- reuse is what was not computed (1) -------------------------------------------------------


def test_reuse_is_counted_by_the_engine_not_by_the_report() -> None:
    engine = CountingToy(shape=ToyShape(block=4, rungs=(1, 2, 4)))
    store, ids = memory_chunks(), prompt(105)
    rows, report = calls_made(engine, store, ids[:100], keep=Keep.ALL)
    assert (rows, report.reused_tokens) == ([4] * 25, 0)
    rows, report = calls_made(engine, store, ids)
    assert rows == [4, 1]
    assert (report.reused_tokens, report.computed_tokens) == (100, 5)
    assert (report.calls_planned, report.calls_made) == (27, 2)


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 37, 48, 100])
def test_the_report_tells_what_happened(engine: CountingToy, tokens: int) -> None:
    store, ids = memory_chunks(), prompt(tokens)
    for keep in (Keep.NOTHING, Keep.BLOCKS, Keep.ALL, Keep.NOTHING):
        rows, report = calls_made(engine, store, ids, keep=keep)
        assert len(rows) == report.calls_made
        assert report.reused_tokens + report.computed_tokens == report.tokens == tokens
        reused_calls = report.calls_planned - report.calls_made
        assert (report.loaded_bytes > 0) is (reused_calls > 0) is (report.reused_tokens > 0)
        assert (report.misses == []) is (report.calls_made == 0)
        assert (report.captured_bytes > 0) is (bool(rows) and _captures(engine, tokens, keep))
    assert report.calls_made == 0


def test_the_report_has_the_bytes_of_the_store_and_the_times_of_what_was_done() -> None:
    engine, store, ids = CountingToy(shape=SHAPES["full only"]), memory_chunks(), prompt(37)
    _, report = calls_made(engine, store, ids, keep=Keep.ALL)
    assert {report.captured_bytes} == set(store.index.packs().values())
    assert min(report.compute_seconds, report.capture_seconds) > 0 == report.restore_seconds
    _, report = calls_made(engine, store, ids)
    assert min(report.lookup_seconds, report.restore_seconds) > 0 == report.compute_seconds
    needed = [
        entry.object.stored_length
        for entry in store.index.all_entries()
        if entry.object.role is Role.KEEP or entry.object.start == 32
    ]
    assert report.loaded_bytes == sum(needed)


def test_the_key_is_that_of_the_end_point(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(37)
    for _ in range(2):  # computed, and restored
        done = compute_prompt(toy, store, ids, keep=Keep.ALL)
        done.context.close()
        assert listed(store) & {(done.key, Role.END)}


def _captures(engine: ToyEngine, tokens: int, keep: Keep) -> bool:
    return keep is Keep.ALL or (keep is Keep.BLOCKS and tokens >= engine.form.block)


def test_blocks_alone_are_kept_unless_all_is_asked_for(toy: CountingToy) -> None:
    ids = prompt(100)
    counts = {}
    for keep in Keep:
        store = memory_chunks()
        calls_made(toy, store, ids, keep=keep)
        roles = [entry.object.role for entry in store.index.all_entries()]
        counts[keep] = tuple(roles.count(role) for role in Role)
    assert counts == {Keep.NOTHING: (0, 0, 0), Keep.BLOCKS: (6, 2, 1), Keep.ALL: (7, 3, 2)}


def test_prompts_that_are_none(toy: CountingToy) -> None:
    store = memory_chunks()
    with pytest.raises(InputError, match="empty"):
        compute_prompt(toy, store, [])
    with pytest.raises(InputError):
        compute_prompt(toy, store, [1.5])
    with pytest.raises(ContextTooLong):
        compute_prompt(toy, store, prompt(2049))
    with pytest.raises(ContextTooLong, match="2048 prompt tokens and 1 new"):
        compute_prompt(toy, store, prompt(2048), room=1)
    assert toy.forwards == []
    assert store.index.all_entries() == []


def test_a_prompt_that_fills_the_context(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(2048)
    first, _ = calls_made(toy, store, ids, keep=Keep.ALL)
    again, report = calls_made(toy, store, ids)
    assert (len(first), again, report.reused_tokens) == (128, [], 2048)


# --- each state is its own (3, 7) -------------------------------------------------------------


def test_long_and_short_states_do_not_mix(engine: CountingToy) -> None:
    store = memory_chunks()
    long, short = prompt(150), prompt(20, seed=1)
    expected = {len(ids): cold(engine, ids) for ids in (long, short)}
    for ids in (long, short):
        run(engine, store, ids)
    for ids in (long, short, long, short):
        before = len(engine.forwards)
        bits, report = run(engine, store, ids)
        assert bits == expected[len(ids)]
        assert report.reused_tokens == len(ids)
        assert engine.forwards[before:] == [1] * 4  # decoding alone


def test_contexts_that_live_together_do_not_mix(toy: CountingToy) -> None:
    store = memory_chunks()
    prompts = [prompt(60, seed=seed) for seed in range(4)]
    expected = [cold(toy, ids) for ids in prompts]
    for _ in range(2):
        contexts = [compute_prompt(toy, store, ids, keep=Keep.ALL, room=4) for ids in prompts]
        assert [logits_bits(done.context) for done in contexts] == expected
        for done in contexts:
            done.context.close()


def digests(store: ChunkStore) -> dict[str, str]:
    found = {}
    for name in store.blobs.names():
        reader = store.blobs.open(name)
        data = bytearray(reader.size_bytes)
        reader.read_into(0, [memoryview(data)])
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def test_generating_does_not_touch_what_is_stored(engine: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(61)
    run(engine, store, ids)
    before = digests(store)
    answers = {run(engine, store, ids)[0] for _ in range(3)}
    assert len(answers) == 1
    assert digests(store) == before


def test_after_a_restore_every_layer_has_every_token(engine: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(61)
    run(engine, store, ids)
    done = compute_prompt(engine, store, ids, room=2)
    assert done.report.reused_tokens == 61
    for more in range(3):
        lengths = {layer.length for layer in done.context.arena.layers}  # type: ignore[attr-defined]
        assert lengths == {61 + more}
        assert done.context.length == 61 + more
        if more < 2:
            done.context.decode(5)
    done.context.close()


# --- boundaries of tokens and chunks (5, 8, 16) -----------------------------------------------


def test_only_the_common_ids_are_reused_not_the_common_text(toy: CountingToy) -> None:
    text = "twenty letters only." + "<eos>" + "and what comes behind it"
    usual = toy.tokenizer.encode(text)
    unusual = list(text.encode())  # the same text, its special token split into letters
    assert usual[:20] == unusual[:20]
    assert usual[20] != unusual[20]
    store = memory_chunks()
    run(toy, store, unusual)
    run(toy, store, usual[:16])
    bits, report = run(toy, store, usual)
    assert bits == cold(toy, usual)
    assert report.reused_tokens == 16


@pytest.mark.parametrize("tokens", [1, 4, 16, 17, 32, 37, 64])
@pytest.mark.parametrize("keep", [Keep.BLOCKS, Keep.ALL])
def test_asking_with_exactly_the_stored_ids(engine: CountingToy, tokens: int, keep: Keep) -> None:
    store, ids = memory_chunks(), prompt(tokens)
    first, _ = run(engine, store, ids, keep=keep)
    for _ in range(2):
        bits, report = run(engine, store, ids, keep=keep)
        assert bits == first
        tail = tokens % engine.form.block if keep is Keep.BLOCKS else 0
        assert report.computed_tokens == tail
        assert report.reused_tokens == tokens - tail
        assert report.calls_made == bool(tail)


@pytest.mark.parametrize("shared", [31, 32, 33, 36, 37, 38])
@pytest.mark.parametrize("keep", [Keep.BLOCKS, Keep.ALL])
def test_reuse_never_exceeds_what_is_shared(engine: CountingToy, shared: int, keep: Keep) -> None:
    store, base = memory_chunks(), prompt(60)
    run(engine, store, base[:37], keep=keep)
    common = min(shared, 37) // engine.form.block * engine.form.block
    for visit in (1, 2, 3):
        other = np.concatenate([base[:shared], (base[shared:] + visit) % 256])
        bits, report = run(engine, store, other, keep=Keep.BLOCKS)
        assert bits == cold(engine, other)
        # The first visit may find no window where the two part; it leaves one.
        assert report.reused_tokens == common or (visit == 1 and report.reused_tokens < common)
    bits, report = run(engine, store, base[:shared], keep=Keep.NOTHING)
    assert bits == cold(engine, base[:shared])
    assert report.reused_tokens <= min(shared, 37)


def test_a_shared_beginning_is_resumed_from_its_second_visit_on(toy: CountingToy) -> None:
    store, preamble = memory_chunks(), prompt(80)
    questions = [np.concatenate([preamble, prompt(40, seed=seed)]) for seed in range(1, 5)]
    reports = [run(toy, store, ids, keep=Keep.BLOCKS)[1] for ids in questions]
    assert [report.reused_tokens for report in reports] == [0, 0, 80, 80]
    assert reports[1].misses[-1] == "no_window: windows at 80 tokens are not stored"
    assert sum(report.captured_by_kind["sliding"] for report in reports[2:]) > 0


LONG = ToyShape(windows=(0, 24, 7), context_tokens=4096)


@pytest.fixture(scope="module")
def long_store() -> tuple[CountingToy, ChunkStore, np.ndarray]:
    """131 chunks and a tail, stored."""
    engine, store, ids = CountingToy(shape=LONG), memory_chunks(), prompt(131 * 16 + 5)
    run(engine, store, ids)
    return engine, store, ids


@pytest.mark.parametrize("count", [63, 64, 65, 113, 114, 115, 127, 128, 129])
def test_reuse_at_many_chunks(
    count: int, long_store: tuple[CountingToy, ChunkStore, np.ndarray]
) -> None:
    engine, store, base = long_store
    for shared in (count * 16 - 1, count * 16, count * 16 + 1):
        run(engine, store, base[: shared // 16 * 16], keep=Keep.BLOCKS)  # a point to resume at
        ids = np.concatenate([base[:shared], (base[shared : shared + 20] + 1) % 256])
        before = len(engine.forwards)
        bits, report = run(engine, store, ids, keep=Keep.NOTHING)
        assert report.reused_tokens == shared // 16 * 16
        assert len(engine.forwards) - before == report.calls_made + 4
        assert bits == cold(engine, ids)


# --- cold and hit alike (18) ------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [3, 16, 40, 129])
def test_cold_hit_hit(engine: CountingToy, tokens: int) -> None:
    store, ids = memory_chunks(), prompt(tokens)
    first, miss = run(engine, store, ids)
    second, hit = run(engine, store, ids)
    third, _ = run(engine, store, ids)
    assert first == second == third == cold(engine, ids)
    assert (miss.reused_tokens, hit.reused_tokens) == (0, tokens)


PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=45)


@settings(max_examples=60)
@given(
    shape=st.sampled_from(list(SHAPES)),
    prompts=st.lists(PROMPTS, min_size=1, max_size=5),
    keeps=st.lists(st.sampled_from(Keep), min_size=5, max_size=5),
    lost=st.lists(st.integers(0, 10_000), max_size=6),
)
def test_bits_do_not_depend_on_what_the_store_holds(
    shape: str, prompts: list[list[int]], keeps: list[Keep], lost: list[int]
) -> None:
    engine, store = ToyEngine(shape=SHAPES[shape]), memory_chunks()
    prompts = [*prompts, [n for ids in prompts for n in ids][:100]]
    for ids, keep in zip(prompts, [*keeps, Keep.ALL], strict=False):
        bits, report = run(engine, store, ids, keep=keep)
        assert bits == cold(engine, ids)
        assert report.drifted == []
        entries = store.index.all_entries()
        for number in lost:
            if entries:  # anything may be evicted between two requests
                store.index.remove(entries[number % len(entries)])
    assert store.index.alarms() == []


# --- layers that disagree, windows that are gone (12) -----------------------------------------


def forget(store: ChunkStore, role: Role, start: int) -> None:
    (entry,) = (
        entry
        for entry in store.index.all_entries()
        if (entry.object.role, entry.object.start) == (role, start)
    )
    store.index.remove(entry)


def test_a_prefix_whose_windows_were_pruned_is_a_miss(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(80)
    for tokens in (40, 80):
        run(toy, store, ids[:tokens])
    for start in (0, 16):
        forget(store, Role.NEAR, start)
    # The whole is resumable: no window reaches back that far.
    bits, report = run(toy, store, ids)
    assert (bits, report.reused_tokens) == (cold(toy, ids), 80)
    # A shorter prefix of it is not, at any length: its windows are gone.
    bits, report = run(toy, store, ids[:40], keep=Keep.NOTHING)
    assert (bits, report.reused_tokens) == (cold(toy, ids[:40]), 0)
    assert "no_window: windows at 40 tokens are not stored" in report.misses


def test_a_window_that_is_gone_falls_back_to_the_last_point(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(80)
    for tokens in (48, 80):
        run(toy, store, ids[:tokens])
    forget(store, Role.NEAR, 48)
    bits, report = run(toy, store, ids)
    assert (bits, report.reused_tokens) == (cold(toy, ids), 48)
    assert any(miss.startswith("no_window: windows at 80") for miss in report.misses)
    bits, report = run(toy, store, ids)  # stored again by that run
    assert (bits, report.reused_tokens) == (cold(toy, ids), 80)


def test_a_window_that_ends_at_a_chunk_does_not_need_the_chunk() -> None:
    # The token at 80 sees 64 to 80: the chunk from 48 to 64 lies just outside.
    engine = CountingToy(shape=ToyShape(windows=(0, 17)))
    store, ids = memory_chunks(), prompt(80)
    run(engine, store, ids)
    for entry in store.index.all_entries():
        if (entry.object.role, entry.object.start) == (Role.NEAR, 48):
            store.index.remove(entry)
    bits, report = run(engine, store, ids, keep=Keep.NOTHING)
    assert (bits, report.reused_tokens) == (cold(engine, ids), 80)


@pytest.mark.parametrize("start", [0, 32, 64])
def test_a_chunk_that_is_gone_ends_the_prefix(toy: CountingToy, start: int) -> None:
    store, ids = memory_chunks(), prompt(80)
    for tokens in (start, 80):
        run(toy, store, ids[: tokens or 80])
    forget(store, Role.KEEP, start)
    bits, report = run(toy, store, ids)
    assert (bits, report.reused_tokens) == (cold(toy, ids), start)
    assert f"not_stored: no chunk after {start // 16} calls" in report.misses


def test_an_end_point_that_is_gone(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(80)
    for tokens in (64, 80):
        run(toy, store, ids[:tokens])
    forget(store, Role.END, 64)
    bits, report = run(toy, store, ids)
    assert (bits, report.reused_tokens) == (cold(toy, ids), 64)
    assert report.misses == ["no_end_point: the last call is computed for its logits"]


def test_a_recurrent_state_that_is_gone_falls_back_to_the_last_point() -> None:
    engine = CountingToy(shape=SHAPES["recurrent beside the others"])
    store, ids = memory_chunks(), prompt(80)
    for tokens in (32, 70):
        run(engine, store, ids[:tokens], keep=Keep.BLOCKS)
    forget(store, Role.END, 48)
    bits, report = run(engine, store, ids, keep=Keep.NOTHING)
    assert (bits, report.reused_tokens) == (cold(engine, ids), 32)
    assert report.misses[-1] == "no_state: recurrent states at 64 tokens are not stored"


# --- other models, dtypes, tenants (11, 14) ---------------------------------------------------


def test_another_model_reuses_nothing(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(40)
    run(toy, store, ids)
    other = CountingToy(seed=1)
    bits, report = run(other, store, ids)
    assert (bits, report.reused_tokens) == (cold(other, ids), 0)
    assert report.misses
    assert run(toy, store, ids)[1].reused_tokens == 40


@pytest.mark.parametrize("field", ["dtype", "engine_version", "device", "threads", "attention"])
def test_a_fingerprint_that_differs_is_named(toy: CountingToy, field: str) -> None:
    store, ids = memory_chunks(), prompt(40)
    run(toy, store, ids)
    other = CountingToy()
    other.fingerprint = Fingerprint.of({**dict(toy.fingerprint.fields), field: "another"})
    _, report = run(other, store, ids)
    assert report.reused_tokens == 0
    assert report.misses == [f"fingerprint: {field} differ"]


def test_the_closest_fingerprint_is_the_one_that_is_named(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(16)
    for fields in (["device", "dtype", "threads"], ["dtype"], ["device", "dtype"]):
        other = CountingToy()
        others = {**dict(toy.fingerprint.fields), **dict.fromkeys(fields, "another")}
        other.fingerprint = Fingerprint.of(others)
        run(other, store, ids)
    assert run(toy, store, ids)[1].misses == ["fingerprint: dtype differ"]


def test_a_prefix_that_was_found_is_of_this_model_whatever_else_is_known(
    toy: CountingToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = memory_chunks(), prompt(40)
    run(toy, store, ids[:16])
    monkeypatch.setattr(store.index, "has_fingerprint", lambda digest: False)
    assert "not_stored: no chunk after 1 calls" in run(toy, store, ids)[1].misses


def sized(dtype: str) -> StateSpec:
    return StateSpec((LayerSpec(LayerKind.FULL, 2, 128, 128, dtype),), 8, "F32")


def test_bfloat16_bits_survive_and_are_not_read_as_float16() -> None:
    spec, place = sized("BF16"), ChunkPlace(0, 128, 128)
    ids = as_token_ids(list(range(128)))
    bits = np.arange(2**16, dtype=np.uint16)  # every pattern: infinities, payloads of NaN, zeros
    store = memory_chunks()
    capture = store.capture(Fingerprint.of({"dtype": "BF16"}))
    head = payload_head(spec, Role.KEEP, place)
    parts = [head, ids.tobytes(), bits[: 2**15].tobytes(), bits[2**15 :].tobytes()]
    capture.add(Role.KEEP, b"k" * 32, (0, 128, 128), parts)
    capture.commit()

    def read(wanted: StateSpec) -> tuple[ObjectRead, np.ndarray]:
        check = PayloadCheck(wanted, Role.KEEP, place, ids)
        out = np.zeros(2**16, np.uint16)
        buffers = [*check.buffers(), memoryview(out.view(np.uint8))]
        item = ObjectRead(store.find(b"k" * 32)[Role.KEEP], buffers, check.verify)
        store.read([item])
        return item, out

    item, out = read(spec)
    assert item.error is None
    assert out.tobytes() == bits.tobytes()
    item, _ = read(sized("F16"))
    assert isinstance(item.error, FormatError)


def test_tenants_do_not_see_each_other(engine: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(40)
    a, b = b"a" * 32, b"b" * 32
    expected = cold(engine, ids)
    for salt, reused in [(a, 0), (b, 0), (PUBLIC_SALT, 0), (a, 40), (b, 40), (PUBLIC_SALT, 40)]:
        bits, report = run(engine, store, ids, salt=salt)
        assert (bits, report.reused_tokens) == (expected, reused)
        if not reused:
            assert report.misses
            assert len(digests(store)) > 1
    keys = [entry.object.key for entry in store.index.all_entries()]
    raw = {entry.object.raw_digest for entry in store.index.all_entries()}
    # Equal states have equal raw digests under different addresses (invariant I4).
    assert len(set(keys)) == 3 * -(-40 // engine.form.block)
    assert 3 * len(raw) == len(keys)


# --- a store that fails (33) ------------------------------------------------------------------


class FaultyStore(MemoryStore):
    """The disk is full at one place: `writer`, `publish`, `fingerprint`, or the n-th `write`."""

    def __init__(self, fails: str, writes: int = 0) -> None:
        super().__init__()
        self.fails = fails
        self.writes = writes
        self.aborted = 0

    def writer(self) -> Any:
        self.check("writer")
        return FaultyWriter(self, super().writer())

    def check(self, place: str) -> None:
        if self.fails == place:
            raise StoreFull("no space left while testing")


class FaultyWriter:
    def __init__(self, store: FaultyStore, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def write(self, data: Any) -> None:
        self._store.writes -= 1
        if self._store.writes < 0:
            self._store.check("write")
        self._inner.write(data)

    def publish(self, name: str) -> None:
        self._store.check("publish" if name.endswith(".pack") else "fingerprint")
        self._inner.publish(name)

    def abort(self) -> None:
        self._store.aborted += 1
        self._inner.abort()


FAULTS = {
    "no writer": ("writer", 0),
    "the first write": ("write", 0),
    "in the second chunk": ("write", 17),
    "publishing": ("publish", 0),
    "publishing the fingerprint": ("fingerprint", 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_capture_that_fails_does_not_fail_the_prompt(fault: str, toy: CountingToy) -> None:
    blobs = FaultyStore(*FAULTS[fault])
    store, ids = ChunkStore(blobs, Index(None)), prompt(48)
    expected = cold(toy, ids)
    bits, report = run(toy, store, ids)
    assert bits == expected
    assert report.capture_error == "no space left while testing"
    assert report.captured_bytes == 0
    assert store.index.all_entries() == []
    assert [name for name in blobs.names() if name.endswith(".pack")] == []
    assert fault == "no writer" or blobs.aborted
    blobs.fails = "nothing"
    assert run(toy, store, ids)[1].capture_error is None
    bits, report = run(toy, store, ids)
    assert (bits, report.reused_tokens) == (expected, 48)


class FaultyIndex(Index):
    """An index of which one method fails."""

    def __init__(self, method: str) -> None:
        super().__init__(None)
        self.armed = True
        original = getattr(self, method)

        def fails(*arguments: Any) -> Any:
            if self.armed:
                raise StoreError("database is locked", where="index")
            return original(*arguments)

        setattr(self, method, fails)


@pytest.mark.parametrize(
    "method", ["find", "add_pack", "has_fingerprint", "note_fingerprint", "fingerprints"]
)
def test_an_index_that_fails_does_not_fail_the_prompt(method: str, toy: CountingToy) -> None:
    index = FaultyIndex(method)
    store, ids = ChunkStore(MemoryStore(), index), prompt(48)
    expected = cold(toy, ids)
    bits, report = run(toy, store, ids)
    assert bits == expected
    assert [*report.misses, report.capture_error or ""] != [""]
    assert "database is locked" in " ".join([*report.misses, report.capture_error or ""])
    index.armed = False
    run(toy, store, ids)
    bits, report = run(toy, store, ids)
    assert (bits, report.reused_tokens) == (expected, 48)


@pytest.mark.parametrize("method", ["remove", "alarm"])
def test_what_cannot_be_noted_does_not_fail_the_prompt(method: str, toy: CountingToy) -> None:
    index = FaultyIndex(method)
    store, ids = ChunkStore(MemoryStore(), index), prompt(48)
    run(toy, store, ids)
    for name in list(store.blobs.names()):
        if name.endswith(".pack"):
            store.blobs.delete(name)
    bits, report = run(toy, store, ids, keep=Keep.NOTHING)
    assert (bits, report.reused_tokens) == (cold(toy, ids), 0)
    assert any(miss.startswith("artifact_truncated: the pack is gone") for miss in report.misses)


def test_a_capture_of_more_objects_than_a_pack_holds(
    toy: CountingToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a pack could be read by its index, and never be checked or indexed again.
    store, ids = memory_chunks(), prompt(48)
    monkeypatch.setattr(chunks, "MAX_PACK_OBJECTS", 5)
    bits, report = run(toy, store, ids)  # 3 chunks, windows of 2 of them, and an end point
    assert bits == cold(toy, ids)
    assert report.capture_error is not None
    assert "at most 5 objects" in report.capture_error
    assert store.index.all_entries() == []
    assert run(toy, store, ids[:40], keep=Keep.BLOCKS)[1].capture_error is None
    assert run(toy, store, ids)[1].reused_tokens == 32


def test_a_prompt_that_fails_leaves_nothing_behind(toy: CountingToy) -> None:
    blobs = FaultyStore("nothing")
    store, ids = ChunkStore(blobs, Index(None)), prompt(48)

    def stop(call: Any, context: Any) -> None:
        if call.start == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_prompt(toy, store, ids, on_call=stop)
    assert blobs.aborted
    assert list(blobs.names()) == []
    assert store.index.all_entries() == []
    assert run(toy, store, ids)[0] == cold(toy, ids)


def test_a_prompt_that_fails_closes_its_context(toy: CountingToy) -> None:
    seen: list[Any] = []

    def stop(call: Any, context: Any) -> None:
        seen.append(context)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_prompt(toy, None, prompt(48), on_call=stop)
    (context,) = seen
    with pytest.raises(EngineError, match="the context is closed"):
        context.logits()


def test_an_interrupted_restore_waits_for_its_readers(
    toy: CountingToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a reader would go on writing into a context that is in use again.
    store, ids = memory_chunks(), prompt(48)
    run(toy, store, ids)
    running: list[int] = []
    original: Callable[..., None] = chunks._read_object

    def slow(want: ObjectRead, reader: Any) -> None:
        if want.entry.object.start == 0:
            raise KeyboardInterrupt
        running.append(1)
        for _ in range(200):
            original(replace(want), reader)
        running.pop()

    monkeypatch.setattr(chunks, "_read_object", slow)
    with pytest.raises(KeyboardInterrupt):
        compute_prompt(toy, store, ids)
    assert running == []
    monkeypatch.undo()
    assert run(toy, store, ids)[0] == cold(toy, ids)


# --- an engine that is less deterministic than it says ----------------------------------------


def drifting(engine: ToyEngine) -> CountingToy:
    """The same fingerprint, other bits."""
    other = CountingToy(seed=99)
    other.fingerprint = engine.fingerprint
    return other


def test_drift_is_recorded_and_the_stored_object_stays(toy: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(32)
    for tokens in (16, 32):
        run(toy, store, ids[:tokens], keep=Keep.BLOCKS)
    forget(store, Role.END, 16)
    before, entries = digests(store), store.index.all_entries()
    # Without an end point the last block is computed again, now with other bits.
    _, report = run(drifting(toy), store, ids, keep=Keep.BLOCKS)
    assert report.reused_tokens == 16
    (key,) = {entry.object.key.hex() for entry in entries if entry.object.start == 16}
    assert report.drifted == [key, key]  # keys and values of full layers, and of windows
    alarms = store.index.alarms()
    assert [(alarm["kind"], alarm["key"]) for alarm in alarms] == [("drift", key)] * 2
    for alarm, role in zip(alarms, (Role.KEEP, Role.NEAR), strict=True):
        (entry,) = (e for e in entries if e.object.key.hex() == key and e.object.role is role)
        assert entry.object.raw_digest.hex() in alarm["detail"]
        assert alarm["role"] == str(role.value)
    kept = [e for e in store.index.all_entries() if e.object.role is not Role.END]
    assert kept == [e for e in entries if e.object.role is not Role.END]
    assert before.items() <= digests(store).items()
    forget(store, Role.END, 16)
    bits, _ = run(toy, store, ids, keep=Keep.NOTHING)
    assert bits == cold(toy, ids)


def test_an_engine_that_is_what_it_says_does_not_drift(engine: CountingToy) -> None:
    store, ids = memory_chunks(), prompt(64)
    for _ in range(3):
        _, report = run(engine, store, ids, keep=Keep.BLOCKS)
        assert report.drifted == []
    assert store.index.alarms() == []


@pytest.mark.parametrize("points", [[-1], [-1000], [16, -5], [1.5], [True], ["16"]])
def test_points_that_are_no_lengths(toy: CountingToy, points: Any) -> None:
    with pytest.raises(UsageError, match="lengths in tokens"):
        compute_prompt(toy, memory_chunks(), prompt(40), points=points)
    assert toy.forwards == []


@pytest.mark.parametrize("cuts", [[-1], [41], [1.5], [True], ["16"], [[16]]])
def test_cuts_that_are_no_lengths_within_the_prompt(toy: CountingToy, cuts: Any) -> None:
    with pytest.raises(UsageError, match="cuts are"):
        compute_prompt(toy, memory_chunks(), prompt(40), cuts=cuts)
    assert toy.forwards == []


@pytest.mark.parametrize("cuts", [[20], [20, 20, 3], [np.int64(20)], (33, 20), [20, 40]], ids=str)
def test_what_ends_at_a_cut_is_kept_like_a_block(toy: CountingToy, cuts: Any) -> None:
    ids, store = prompt(40), memory_chunks()
    run(toy, store, ids[:20], keep=Keep.BLOCKS, cuts=[cut for cut in cuts if cut <= 20])
    warm, report = run(toy, store, ids, keep=Keep.BLOCKS, cuts=cuts)
    assert report.reused_tokens == 20
    assert warm == run(toy, None, ids, cuts=cuts)[0]
    # Without the cuts it is another request, which shares the first block at most.
    bits, report = run(toy, store, ids)
    assert report.reused_tokens <= 16
    assert bits == cold(toy, ids)


@pytest.mark.parametrize("name", SHAPES)
def test_a_cut_in_the_middle_is_a_point_too(name: str) -> None:
    engine, store, ids = CountingToy(shape=SHAPES[name]), memory_chunks(), prompt(90)
    run(engine, store, ids, keep=Keep.BLOCKS, cuts=(37, 61))
    for cut, cuts in ((37, (37,)), (61, (37, 61))):
        other = np.concatenate([ids[:cut], prompt(11, seed=9)])
        bits, report = run(engine, store, other, keep=Keep.NOTHING, cuts=cuts)
        assert report.reused_tokens == cut
        assert bits == run(engine, None, other, cuts=cuts)[0]


@pytest.mark.parametrize("points", [[0], [10**9], [17, 17, 16], [np.int64(20)]])
def test_points_anywhere(toy: CountingToy, points: Any) -> None:
    ids, store = prompt(70), memory_chunks()
    bits, _ = run(toy, store, ids, points=points)
    assert bits == cold(toy, ids) == run(toy, store, ids)[0]
    shared = min(min(points[0], 70) // 16 * 16, 64)
    other = np.concatenate([ids[:shared], prompt(20, seed=9)])
    assert run(toy, store, other, keep=Keep.NOTHING)[1].reused_tokens == shared


def test_a_state_that_the_engine_refuses_is_a_miss(
    engine: CountingToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = memory_chunks(), prompt(70)
    run(engine, store, ids)

    def refuse(context: Any, length: int) -> None:
        context.arena.place(length)  # half-way, then no more
        raise EngineError("not this one")

    monkeypatch.setattr(ToyContext, "commit", refuse)
    bits, report = run(engine, store, ids)
    assert (bits, report.reused_tokens) == (cold(engine, ids), 0)
    assert report.misses[-1] == "engine: not this one"
    monkeypatch.undo()
    assert run(engine, store, ids)[0] == bits


def test_nothing_counts_as_stored_where_publishing_failed(toy: CountingToy) -> None:
    store = ChunkStore(FaultyStore("publish"), Index(None))
    _, report = run(toy, store, prompt(48))
    assert report.capture_error is not None
    assert (report.captured_bytes, report.captured_by_kind) == (0, {})
