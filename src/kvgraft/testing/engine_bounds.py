"""The engine suite's second half: nothing aliased, bounds kept, lanes, settings refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.base import Engine
from kvgraft.errors import ContextTooLong, EngineError, InputError, KvgraftError
from kvgraft.plan import as_token_ids, plan_calls
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.state import Role
from kvgraft.testing.grafting import (
    STEPS,
    EngineCases,
    StoreFactory,
    blob_digests,
    computed,
    expect_equal,
    logits_digest,
    prompt,
    run_all,
    run_digest,
    vocabulary,
)

LANE_STEPS = 3


class BoundsCases(EngineCases):
    """See `kvgraft.testing.engines`."""

    # Of the spread of the logits: how far another shape of the same computation may be from it.
    # bfloat16 differs by a tenth of this; engines that quantise activations need more.
    near = 0.05

    # --- no aliasing -------------------------------------------------------------------------

    def test_generating_changes_neither_the_store_nor_another_context(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        store = new_store()
        expected, _ = run_digest(engine, store, long)
        before = blob_digests(store.blobs)
        with computed(engine, store, long) as first, computed(engine, store, long) as second:
            assert first.report.calls_made == second.report.calls_made == 0
            assert logits_digest(first.context) == expected
            assert second.context.length == len(long)
            assert logits_digest(second.context) == expected
        assert blob_digests(store.blobs) == before

    def test_a_used_arena_leaks_nothing(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        short, store = prompt(engine, 3, seed=3), new_store()
        expected = {len(ids): run_digest(engine, None, ids)[0] for ids in (long, short)}
        for ids in (long, short, long, short, short, long):
            assert run_digest(engine, store, ids)[0] == expected[len(ids)]
            assert run_digest(engine, None, ids)[0] == expected[len(ids)]

    # --- bounds ------------------------------------------------------------------------------

    def test_every_layer_goes_from_n_to_n_plus_one(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        store = new_store()
        run_digest(engine, store, long, steps=0)
        with computed(engine, store, long) as result:
            # `length` is one number only if all layers agree
            assert result.context.length == len(long)
            result.context.decode(0)
            assert result.context.length == len(long) + 1

    def test_a_full_context_works_and_takes_no_more(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        ids, store = prompt(engine, engine.context_tokens), new_store()
        for keep in (Keep.ALL, Keep.NOTHING):
            with computed(engine, store, ids, keep=keep, room=0) as result:
                assert result.context.length == engine.context_tokens
                before = result.context.logits()
                with pytest.raises(EngineError):
                    result.context.decode(0)
                assert np.array_equal(result.context.logits(), before)
        assert result.report.calls_made == 0

    def test_the_last_token_of_the_context_can_be_decoded(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        ids, store = prompt(engine, engine.context_tokens - 1), new_store()
        assert len({run_digest(engine, store, ids, steps=1)[0] for _ in range(2)}) == 1

    def test_what_cannot_be_computed_is_refused(self, engine: Engine, long: np.ndarray) -> None:
        longest = engine.context_tokens
        for tokens, room, error in (
            (0, 0, InputError),
            (longest + 1, 0, ContextTooLong),
            (longest, 1, ContextTooLong),
            (1, longest, ContextTooLong),
        ):
            with pytest.raises(error):
                compute_prompt(engine, None, prompt(engine, tokens), room=room)
        for capacity in (0, -1, longest + 1):
            with pytest.raises(KvgraftError):
                engine.open_context(capacity)
        with pytest.raises(InputError):
            compute_prompt(engine, None, [vocabulary(engine)])

    def test_a_refused_call_leaves_the_context_as_it_was(self, engine: Engine) -> None:
        block = engine.form.block
        ids = prompt(engine, 3)
        context = engine.open_context(3 + STEPS)
        run_all(engine, context, ids)
        too_many = prompt(engine, block + 1)
        for tokens, rows in (([], block), (too_many, block), (ids[:1], block + 1), (ids, 2)):
            with pytest.raises(EngineError):
                context.run(as_token_ids(tokens), rows)
        with pytest.raises(InputError):
            context.decode(vocabulary(engine))
        assert context.length == 3
        assert logits_digest(context) == run_digest(engine, None, ids)[0]
        context.close()

    def test_only_an_empty_context_takes_an_import(self, engine: Engine) -> None:
        context = engine.open_context(8)
        context.decode(0)
        before = context.logits()
        place = ChunkPlace(0, 1, engine.form.tail_rows(1))
        with pytest.raises(EngineError):
            context.import_views(engine.spec.roles[0], place, 1)
        with pytest.raises(EngineError):
            context.commit(1)
        assert np.array_equal(context.logits(), before)
        context.close()

    def test_closing_twice_is_closing_once(self, engine: Engine) -> None:
        first = engine.open_context(8)
        first.close()
        first.close()
        contexts = [engine.open_context(8) for _ in range(2)]
        for number, context in enumerate(contexts):
            context.decode(number)
        assert not np.array_equal(contexts[0].logits(), contexts[1].logits())
        with pytest.raises(EngineError):
            first.decode(0)
        for context in contexts:
            context.close()

    def test_logits_stay_what_they_were(self, engine: Engine, long: np.ndarray) -> None:
        with computed(engine, None, long) as result:
            first = result.context.logits()
            kept = first.copy()
            assert np.array_equal(result.context.logits(), kept)
            result.context.decode(0)
            assert not np.array_equal(result.context.logits(), kept)
            assert np.array_equal(first, kept)
            assert first.dtype == np.float32
            assert first.shape == (vocabulary(engine),)

    def test_call_logits_are_those_of_the_last_call(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        """The same when the call is made again, and when what lies before it was restored."""
        block, store = engine.form.block, new_store()
        ids = prompt(engine, block + 3)
        tail = plan_calls(len(ids), engine.form, engine.context_tokens)[-1].count
        seen = []
        run_digest(engine, store, ids[:block], keep=Keep.BLOCKS, steps=0)
        for stored in (None, None, store):
            with computed(engine, stored, ids, keep=Keep.NOTHING) as result:
                rows = result.context.call_logits()
                every = engine.capabilities.row_logits
                assert rows.shape == (tail if every else 1, vocabulary(engine))
                _assert_near(self.near, rows[-1], result.context.logits())
                seen.append(rows.tobytes())
        assert result.report.reused_tokens == block
        assert len(set(seen)) == 1

    def test_an_empty_context_has_nothing_to_give(self, engine: Engine) -> None:
        context = engine.open_context(8)
        place = ChunkPlace(0, 1, engine.form.tail_rows(1))
        assert context.length == 0
        with pytest.raises(EngineError):
            context.logits()
        with pytest.raises(EngineError):
            context.call_logits()
        for role in (*engine.spec.roles, Role.END):
            with pytest.raises(EngineError):
                context.export_views(role, place)
        with pytest.raises(EngineError):
            context.commit(0)
        assert context.length == 0
        context.close()

    def test_long_and_short_states_in_turn(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        store, short = new_store(), prompt(engine, 3, seed=4)
        cold = {len(ids): run_digest(engine, store, ids)[0] for ids in (long, short)}
        seen = []
        for turn, ids in enumerate((long, short, long, short)):
            digest, report = run_digest(engine, store, ids)
            seen.append(((turn, len(ids)), (digest, report.calls_made), (cold[len(ids)], 0)))
        expect_equal(seen)

    # --- settings and capabilities -----------------------------------------------------------

    def test_another_thread_count_is_refused(
        self,
        engine: Engine,
        new_store: StoreFactory,
        set_threads: Callable[[int], None] | None,
        long: np.ndarray,
    ) -> None:
        threads = getattr(engine, "threads", None)
        assert (threads is None) == (set_threads is None), "give the fixture set_threads"
        if threads is None or set_threads is None:
            assert dict(engine.fingerprint.fields)["threads"] == "any"
            return
        store = new_store()
        expected, _ = run_digest(engine, store, long)
        with computed(engine, store, long) as result:
            set_threads(threads + 1)
            try:
                # A context that was restored whole computes nothing but its head.
                with pytest.raises(EngineError, match="threads"):
                    result.context.logits()
                with pytest.raises(EngineError, match="threads"):
                    result.context.decode(0)
            finally:
                set_threads(threads)
            assert logits_digest(result.context) == expected

    def test_a_monolithic_run_is_near_the_plan_or_refused(
        self, engine: Engine, long: np.ndarray
    ) -> None:
        if not engine.capabilities.monolithic:
            with pytest.raises(EngineError):
                engine.monolithic_logits(long)
            return
        with computed(engine, None, long) as result:
            _assert_near(self.near, engine.monolithic_logits(long), result.context.logits())

    def test_lanes_leave_their_context_as_it_was(self, engine: Engine, long: np.ndarray) -> None:
        with computed(engine, None, long) as result:
            context = result.context
            if not engine.capabilities.lanes:
                with pytest.raises(KvgraftError):
                    context.fork(2, LANE_STEPS)
                return
            before = context.logits()
            lanes = context.fork(3, LANE_STEPS)
            assert lanes.count == 3
            assert all(np.array_equal(row, before) for row in lanes.logits())
            for token in range(LANE_STEPS):
                lanes.step(np.full(3, token))
            with pytest.raises(EngineError):  # the room is used up
                lanes.step(np.zeros(3, np.int64))
            lanes.close()
            lanes.close()
            with pytest.raises(EngineError):
                lanes.step(np.zeros(3, np.int64))
            assert context.length == len(long)
            assert logits_digest(context) == run_digest(engine, None, long)[0]

    def test_lanes_say_what_single_decoding_says(self, engine: Engine, long: np.ndarray) -> None:
        if not engine.capabilities.lanes:
            return  # `test_lanes_leave_their_context_as_it_was` saw the refusal
        alone = _alone(engine, long)
        tokens = [3, 1, 2]
        with computed(engine, None, long) as result:
            lanes = result.context.fork(3, LANE_STEPS)
            lanes.step(np.array(tokens))
            for row, token in enumerate(tokens):
                _assert_near(self.near, lanes.logits()[row], alone[(token,)])
            order = [2, 0, 0]
            rows = lanes.logits()[order]
            lanes.keep(order)
            assert lanes.count == len(order)
            assert np.array_equal(lanes.logits(), rows)
            lanes.step(np.array([3, 2, 1]))
            for row, said in enumerate(((2, 3), (3, 2), (3, 1))):
                _assert_near(self.near, lanes.logits()[row], alone[said])
            lanes.keep([1])
            lanes.step(np.array([1]))
            _assert_near(self.near, lanes.logits()[0], alone[(3, 2, 1)])
            lanes.close()

    def test_lanes_that_cannot_be_are_refused(self, engine: Engine) -> None:
        with computed(engine, None, prompt(engine, 5)) as result:
            context = result.context
            for count, new_tokens in ((0, 1), (1, -1), (1, engine.context_tokens)):
                with pytest.raises(KvgraftError):
                    context.fork(count, new_tokens)
            if engine.capabilities.lanes:
                lanes = context.fork(2, 1)
                with pytest.raises(EngineError):
                    lanes.step(np.zeros(3, np.int64))
                with pytest.raises(InputError):
                    lanes.step(np.full(2, vocabulary(engine)))
                lanes.step(np.zeros(2, np.int64))
                lanes.close()


def _alone(engine: Engine, ids: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Logits after tokens decoded one by one at batch 1, for the paths the lanes take."""
    out = {}
    for path in ((1,), (2, 3), (3, 1), (3, 2, 1)):
        with computed(engine, None, ids) as result:
            for step, token in enumerate(path, 1):
                result.context.decode(token)
                out[path[:step]] = result.context.logits()
    return out


def _assert_near(near: float, got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal in content: another shape of the same computation, so other bits."""
    bound = near * float(np.ptp(wanted))
    assert float(np.abs(got - wanted).max()) <= bound, (got, wanted)
