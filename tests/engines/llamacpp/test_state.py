"""A context's state bytes: put together again from chunks they are equal, and windows hold."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.llamacpp.incoming import Incoming
from kvgraft.errors import EngineError, FormatError
from kvgraft.plan import plan_calls
from kvgraft.reuse import Keep
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.grafting import (
    computed,
    expect_equal,
    logits_digest,
    prompt,
    run_all,
    run_digest,
)

WINDOW = 11
RING = 256  # cells of a sliding cache of these models
EngineOf = Callable[[str], Any]
Pieces = list[tuple[ChunkPlace, Role, list[np.ndarray]]]


@pytest.fixture(params=["llama", "gemma3"])
def engine(request: pytest.FixtureRequest, tiny_engine: EngineOf) -> Any:
    return tiny_engine(request.param)


def captured(engine: Any, context: Any, ids: np.ndarray) -> Pieces:
    """Every chunk of a prompt, exported as it was computed."""
    pieces: Pieces = []
    for call in plan_calls(len(ids), engine.form, engine.context_tokens):
        context.run(ids[call.start : call.end], call.rows)
        place = ChunkPlace(call.start, call.count, call.rows)
        for role in engine.spec.roles:
            views = context.export_views(role, place)
            pieces.append((place, role, [view.copy() for view in views]))
    return pieces


def incoming(engine: Any, length: int, pieces: Pieces) -> Incoming:
    """A state made of the chunks of a prompt that its windows still show."""
    state = Incoming(engine, length)
    near = engine.spec.near_start(length)
    for place, role, views in pieces:
        if role is Role.NEAR and place.start + place.count <= near:
            continue
        for view, target in zip(views, state.views(role, place.start, place.count), strict=True):
            assert view.shape == target.shape
            target[:] = view
    return state


@pytest.mark.parametrize(
    "tokens", [1, WINDOW - 1, WINDOW, WINDOW + 1, 16, 17, 27, 28, 32, 100, RING, RING + 5, 320]
)
def test_chunks_make_the_state_again(engine: Any, tokens: int) -> None:
    context = engine.open_context(tokens)
    pieces = captured(engine, context, prompt(engine, tokens))
    state = context._session().state()
    engine.layout.frame(0, tokens).check(state)
    assert np.array_equal(incoming(engine, tokens, pieces).finish(), state)
    context.close()


def test_a_chunk_is_read_straight_into_the_state(engine: Any) -> None:
    state = Incoming(engine, 48)
    data = state._data
    for role in engine.spec.roles:
        views = state.views(role, 32, 16)
        assert all(np.shares_memory(view, data) for view in views)
    first = state.views(Role.KEEP, 0, 16)
    assert all(np.shares_memory(view, data) for view in first)


def test_rows_before_a_window_go_nowhere(tiny_engine: EngineOf) -> None:
    engine = tiny_engine("gemma3")
    state = Incoming(engine, 48)
    assert [view.shape[0] for view in state.views(Role.NEAR, 0, 16)] == [WINDOW] * 4
    assert not any(np.shares_memory(view, state._data) for view in state.views(Role.NEAR, 0, 16))


def test_a_chunk_over_the_edge_of_a_window_is_copied_in_part(tiny_engine: EngineOf) -> None:
    engine = tiny_engine("gemma3")
    length = 20  # rows 9..19 are seen: the first chunk's last 7, and the second one's 4
    state = Incoming(engine, length)
    state.views(Role.KEEP, 0, 16)
    state.views(Role.KEEP, 16, 4)
    for view in state.views(Role.NEAR, 0, 16):
        view[:] = np.arange(5, 16)[:, None, None]
    for view in state.views(Role.NEAR, 16, 4):
        view[:] = np.arange(16, 20)[:, None, None]
    data = state.finish()
    for tensor in engine.layout.frame(0, length).tensors(data, 1):
        assert np.array_equal(tensor[:, 0], np.arange(9, 20))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_state_with_a_hole_is_not_taken(engine: Any, lost: int) -> None:
    context = engine.open_context(48)
    pieces = captured(engine, context, prompt(engine, 40))
    context.close()
    kept = [piece for piece in pieces if piece[0].start != 16 * lost]
    with pytest.raises(EngineError, match="not imported"):
        incoming(engine, 40, kept).finish()


def test_commit_takes_only_what_was_imported(engine: Any) -> None:
    context = engine.open_context(64)
    with pytest.raises(EngineError, match="nothing was imported"):
        context.commit(16)
    context.import_views(Role.KEEP, ChunkPlace(0, 16, 16), 16)
    for length in (0, 15, 17, 65):
        with pytest.raises(EngineError):
            context.commit(length)
    assert context.length == 0
    context.close()


def test_what_is_exported_follows_the_place(engine: Any) -> None:
    """A chunk that was fetched is not given out for another one with the same end."""
    context = engine.open_context(48)
    pieces = captured(engine, context, prompt(engine, 40))
    short = context.export_views(Role.KEEP, ChunkPlace(32, 8, 8))
    long = context.export_views(Role.KEEP, ChunkPlace(16, 24, 24))
    middle = next(views for place, role, views in pieces if place.start == 16 and role is Role.KEEP)
    for one, two, between in zip(short, long, middle, strict=True):
        assert np.array_equal(two[16:], one)
        assert np.array_equal(two[:16], between)
    context.decode(3)
    with pytest.raises(EngineError, match="ended at 41"):
        context.export_views(Role.KEEP, ChunkPlace(32, 8, 8))
    context.close()


# --- windows --------------------------------------------------------------------------------------


def test_window_edges_and_far_past(tiny_engine: EngineOf) -> None:
    engine = tiny_engine("gemma3")
    assert {layer.window for layer in engine.spec.layers} == {0, WINDOW + 1}
    seen = []
    for tokens in (WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 5 * WINDOW, 300):
        ids = prompt(engine, tokens)
        cold, _ = run_digest(engine, None, ids, steps=20)
        for stored in sorted({tokens, max(1, tokens // 16 * 16)}):
            store = ChunkStore(MemoryStore(), Index(None))
            run_digest(engine, store, ids[:stored], steps=0)
            warm, report = run_digest(engine, store, ids, keep=Keep.NOTHING, steps=20)
            store.close()
            reused = stored if stored == tokens else stored // 16 * 16
            seen += [
                ((tokens, stored, "digest"), warm, cold),
                ((tokens, stored, "reused"), report.reused_tokens, reused),
            ]
    expect_equal(seen)


# Lengths at which a window that was never restored would lie around the end of its ring.
ROUND_THE_RING = (RING + 1, RING + 4, RING + 9)


def decoded(engine: Any, tokens: int, *, restored: bool, steps: int = 12) -> str:
    """The digest of decoding after `tokens` tokens, from a state that was restored or not."""
    context = engine.open_context(tokens + steps)
    run_all(engine, context, prompt(engine, tokens))
    if restored:
        session = context._session()
        state = session.state()
        session.clear()
        session.restore(state)
    digest = logits_digest(context, steps)
    context.close()
    return digest


def test_a_window_around_the_end_of_its_ring_gives_the_same_bits(tiny_engine: EngineOf) -> None:
    engine = tiny_engine("gemma3")
    expect_equal(
        (tokens, decoded(engine, tokens, restored=True), decoded(engine, tokens, restored=False))
        for tokens in ROUND_THE_RING
    )


def test_without_settling_it_would_not(
    tiny_engine: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the test above can tell."""
    engine = tiny_engine("gemma3")
    from kvgraft.engines.llamacpp.session import Session

    settled = [decoded(engine, tokens, restored=True) for tokens in ROUND_THE_RING]
    restore = Session.restore

    def only_whole(self: Session, data: np.ndarray, *, windows_only: bool = False) -> None:
        if not windows_only:
            restore(self, data)

    monkeypatch.setattr(Session, "restore", only_whole)
    monkeypatch.setattr(engine, "check_positions", lambda session, length: None)
    unsettled = [decoded(engine, tokens, restored=False) for tokens in ROUND_THE_RING]
    assert all(a != b for a, b in zip(settled, unsettled, strict=True))


def test_full_attention_needs_no_settling(tiny_engine: EngineOf) -> None:
    engine = tiny_engine("llama")
    for tokens in (40, RING + 4):
        assert decoded(engine, tokens, restored=True) == decoded(engine, tokens, restored=False)


# --- failures -------------------------------------------------------------------------------------


def damaged(state: np.ndarray) -> list[np.ndarray]:
    """State bytes that llama.cpp itself refuses: cut short, of another kind, of other layers."""
    flipped = [state.copy() for _ in range(3)]
    flipped[0][0] ^= 1  # magic number
    flipped[1][8] ^= 1  # streams
    flipped[2][12] ^= 2  # cells
    return [*flipped, state[: len(state) // 2].copy(), state[:-1].copy(), state[:20].copy()]


def test_a_state_that_llama_cpp_refuses_leaves_nothing_behind(engine: Any) -> None:
    ids = prompt(engine, 40)
    cold, _ = run_digest(engine, None, ids)
    context = engine.open_context(60)
    run_all(engine, context, ids)
    state = context._session().state()
    context.close()
    for number, bad in enumerate(damaged(state)):
        context = engine.open_context(60)
        session = context._session()
        with pytest.raises(EngineError, match="state bytes"):
            session.restore(bad)
        assert session.positions() == (-1, -1), number
        run_all(engine, context, ids)
        assert logits_digest(context) == cold, number
        context.close()


def test_a_failed_commit_leaves_the_context_empty(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(engine, 40)
    cold, _ = run_digest(engine, None, ids)
    store = ChunkStore(MemoryStore(), Index(None))
    run_digest(engine, store, ids, steps=0)

    def wrong(session: Any, length: int) -> None:
        raise EngineError("other positions")

    context = engine.open_context(60)
    with computed(engine, store, ids) as other:
        state = other.context._session().state()
    for role in engine.spec.roles:
        for start, count in ((0, 16), (16, 16), (32, 8)):
            context.import_views(role, ChunkPlace(start, count, count), 40)
    with monkeypatch.context() as patched:
        patched.setattr(engine, "check_positions", wrong)
        with pytest.raises(EngineError, match="other positions"):
            context.commit(40)
    assert context.length == 0
    assert context._session().positions() == (-1, -1)
    run_all(engine, context, ids)
    assert np.array_equal(context._session().state(), state)
    assert logits_digest(context) == cold
    context.close()
    store.close()


def test_a_call_that_fails_half_way_spoils_only_its_context(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvgraft.engines.llamacpp.session import Session

    ids = prompt(engine, 40)
    cold, _ = run_digest(engine, None, ids)

    def fail(self: Session, row: int, out: np.ndarray) -> None:
        raise MemoryError

    with computed(engine, None, ids) as result:
        with monkeypatch.context() as patched:
            patched.setattr(Session, "logits", fail)
            with pytest.raises(MemoryError):
                result.context.decode(0)
        for attempt in (result.context.logits, lambda: result.context.decode(0)):
            with pytest.raises(EngineError, match="failed"):
                attempt()
    assert run_digest(engine, None, ids)[0] == cold


def test_an_unexpected_state_is_not_exported(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvgraft.engines.llamacpp.session import Session

    given = Session.state
    for change in (
        lambda data: data[:-1],
        lambda data: np.append(data, np.uint8(0)),
        lambda data: np.concatenate([data[:16] ^ 1, data[16:]]),
    ):
        context = engine.open_context(16)
        context.run(prompt(engine, 16), 16)

        def changed(
            self: Session, sequence: int, change: Callable[..., np.ndarray] = change
        ) -> np.ndarray:
            return change(given(self, sequence))

        with monkeypatch.context() as patched:
            patched.setattr(Session, "state", changed)
            with pytest.raises(FormatError):
                context.export_views(Role.KEEP, ChunkPlace(0, 16, 16))
        context.close()


def test_what_is_closed_is_closed(tiny_gguf: Callable[[str], Any], tmp_path: Any) -> None:
    from kvgraft.engines.llamacpp.engine import load

    engine = load(tiny_gguf("llama"), source="tiny", threads=1, cache=tmp_path)
    context = engine.open_context(20)
    context.decode(1)
    lanes = context.fork(2, 3)
    engine.close()
    engine.close()
    attempts: list[Callable[[], object]] = [
        lambda: context.decode(1),
        context.logits,
        lambda: lanes.step(np.zeros(2, np.int64)),
        lambda: engine.open_context(20),
        lambda: engine.monolithic_logits(np.zeros(3, np.uint32)),
        lambda: engine.tokenizer.encode("a"),
        lambda: engine.tokenizer.decode([5]),
    ]
    for attempt in attempts:
        with pytest.raises(EngineError, match="closed"):
            attempt()
    context.close()
    lanes.close()


# --- lanes ----------------------------------------------------------------------------------------


def test_lanes_go_far_past_a_window(engine: Any) -> None:
    """Shared cells of a window are never given up, and yet there is room."""
    steps, lanes = 60, 5
    with computed(engine, None, prompt(engine, 40), room=steps) as result:
        many = result.context.fork(lanes, steps)
        for step in range(steps):
            many.step((np.arange(lanes) + step) % 200)
        last = many.logits().copy()
        many.close()
        for step in range(steps):
            result.context.decode((2 + step) % 200)
        alone = result.context.logits()
    assert float(np.abs(last[2] - alone).max()) <= 0.05 * float(np.ptp(alone))


def test_more_lanes_than_sequences_are_refused(engine: Any) -> None:
    import llama_cpp

    with computed(engine, None, prompt(engine, 5)) as result:
        with pytest.raises(EngineError, match="sequences"):
            result.context.fork(llama_cpp.llama_max_parallel_sequences() + 1, 1)
        lanes = result.context.fork(2, 1)
        for wanted in ([0, 1, 0], []):
            with pytest.raises(EngineError, match="keep"):
                lanes.keep(wanted)
        lanes.close()
