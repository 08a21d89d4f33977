"""The engine suite's first half: same bits however a prompt came to be, and what is reported."""

from __future__ import annotations

import numpy as np
import pytest

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.base import Context, Engine
from kvgraft.errors import EngineError
from kvgraft.plan import plan_calls
from kvgraft.points import seen_calls
from kvgraft.reuse import Keep
from kvgraft.state import LayerKind, Role
from kvgraft.testing.grafting import (
    DAMAGES,
    STEPS,
    EngineCases,
    StoreFactory,
    Watched,
    computed,
    damage,
    entries_of,
    expect_equal,
    logits_digest,
    prompt,
    raw_digests,
    run_all,
    run_digest,
    telling_lengths,
    vocabulary,
)

FINGERPRINT_FIELDS = (
    "adapters",
    "attention",
    "config",
    "device",
    "dtype",
    "engine",
    "engine_version",
    "kv_dtype",
    "plan",
    "threads",
    "weights",
)


class BitCases(EngineCases):
    """See `kvgraft.testing.engines`."""

    # --- bits (I1) ---------------------------------------------------------------------------

    def test_cold_captured_and_restored_runs_agree(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        seen = []
        for tokens in telling_lengths(engine):
            ids = prompt(engine, tokens)
            store = new_store()
            cold, _ = run_digest(engine, None, ids)
            captured, first = run_digest(engine, store, ids)
            restored, second = run_digest(engine, store, ids)
            store.close()
            calls = len(plan_calls(tokens, engine.form, engine.context_tokens))
            seen += [
                (("captured", tokens), captured, cold),
                (("restored", tokens), restored, cold),
                (("made", tokens), (first.calls_made, second.calls_made), (calls, 0)),
                (("reused", tokens), (first.reused_tokens, second.reused_tokens), (0, tokens)),
                (("misses", tokens), second.misses, []),
            ]
        expect_equal(seen)

    def test_resuming_in_the_middle_equals_cold(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        block = engine.form.block
        seen = []
        for tokens in (n for n in telling_lengths(engine) if n > block):
            ids = prompt(engine, tokens)
            cold, _ = run_digest(engine, None, ids, steps=2)
            for stored in sorted({block, block + 1, tokens // 2, tokens - 1} - {tokens}):
                store = new_store()
                run_digest(engine, store, ids[:stored], steps=0)
                resumed, report = run_digest(engine, store, ids, keep=Keep.NOTHING, steps=2)
                store.close()
                case = f"{stored} of {tokens}"
                seen += [
                    ((case, "digest"), resumed, cold),
                    ((case, "reused"), report.reused_tokens, stored // block * block),
                ]
        assert len(seen) > 4
        expect_equal(seen)

    def test_reuse_never_exceeds_what_is_shared(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        block, words = engine.form.block, vocabulary(engine)
        store = new_store()
        run_digest(engine, store, long, steps=0)
        seen = []
        lengths = {1, block - 1, block, block + 1, 2 * block - 1, 2 * block, len(long) - 1}
        for shared in sorted(lengths):
            for visit in (1, 2):
                other = long.copy()
                other[shared:] = (other[shared:] + visit) % words
                cold, _ = run_digest(engine, None, other, steps=2)
                warm, report = run_digest(engine, store, other, keep=Keep.BLOCKS, steps=2)
                reused, whole = report.reused_tokens, shared // block * block
                # Where a window or a recurrent state is needed, the first visit may have to leave
                # it behind; the second one finds it.
                in_full = reused == whole or (visit == 1 and 0 <= reused < whole)
                seen += [
                    ((shared, visit, "digest"), warm, cold),
                    ((shared, visit, "reused"), in_full, True),
                ]
        expect_equal(seen)

    def test_windows_and_states_are_kept_at_points_only(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        store = new_store()
        _, report = run_digest(engine, store, long, steps=0)
        spec, calls = engine.spec, plan_calls(len(long), engine.form, engine.context_tokens)
        stored = entries_of(engine, store, long)
        assert all(Role.KEEP in objects for objects in stored)
        points = {len(long) // engine.form.block, len(calls)}
        near = [number for number, objects in enumerate(stored) if Role.NEAR in objects]
        assert near == sorted({n for done in points for n in seen_calls(spec, calls, done)})
        ends = [number + 1 for number, objects in enumerate(stored) if Role.END in objects]
        assert ends == sorted(points)
        kinds = report.captured_by_kind
        assert kinds["ids"] > 0
        assert sum(kinds.values()) <= report.captured_bytes
        assert kinds.get("full", 0) == len(long) * sum(
            layer.token_bytes for layer in spec.layers if layer.kind is LayerKind.FULL
        )

    def test_a_block_is_reused_only_after_its_own_beginning(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        block, store = engine.form.block, new_store()
        one, two = (prompt(engine, 2 * block + 1, seed) for seed in (5, 6))
        for ids in (one[:block], one, two):
            run_digest(engine, store, ids, steps=0)
        mixed = np.concatenate([one[:block], two[block:]])
        cold, _ = run_digest(engine, None, mixed)
        warm, report = run_digest(engine, store, mixed, keep=Keep.NOTHING)
        assert not np.array_equal(one[:block], two[:block])
        assert (warm, report.reused_tokens) == (cold, block)

    def test_behind_a_cut_all_is_reused(self, engine: Engine, new_store: StoreFactory) -> None:
        block = engine.form.block
        seen = []
        for cut in telling_lengths(engine, room=block + 1 + STEPS):
            for more in {1, block + 1}:
                ids, cuts = prompt(engine, cut + more), (cut // 2, cut)
                cold, _ = run_digest(engine, None, ids, steps=2, cuts=cuts)
                store = new_store()
                run_digest(engine, store, ids[:cut], keep=Keep.BLOCKS, steps=0, cuts=cuts)
                warm, report = run_digest(engine, store, ids, keep=Keep.NOTHING, steps=2, cuts=cuts)
                store.close()
                case = f"{more} behind {cut}"
                seen += [
                    ((case, "digest"), warm, cold),
                    ((case, "reused"), report.reused_tokens, cut),
                ]
        expect_equal(seen)

    def test_a_cut_is_part_of_the_request(self, engine: Engine, new_store: StoreFactory) -> None:
        block = engine.form.block
        ids, store = prompt(engine, 2 * block + 1), new_store()
        cut = (block + 1,)
        plain, _ = run_digest(engine, store, ids)
        with_cut, first = run_digest(engine, store, ids, cuts=cut)
        again, second = run_digest(engine, store, ids, cuts=cut)
        after, third = run_digest(engine, store, ids)
        # Blocks of one token end at every length anyway; windows may be stored further on only.
        assert first.reused_tokens <= (block if block > 1 else len(ids))
        assert second.reused_tokens == len(ids)
        assert (after, third.reused_tokens) == (plain, len(ids))
        assert again == with_cut

    def test_decoding_on_after_a_restore_equals_never_evicted(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        steps = max(2 * engine.form.block, 24)  # over the edges of small windows and of the room
        starts = {2, *(layer.window - 3 for layer in engine.spec.layers if layer.window > 3)}
        seen = []
        for tokens in sorted(n for n in starts if n <= engine.context_tokens - steps):
            ids = prompt(engine, tokens)
            store = new_store()
            live, _ = run_digest(engine, store, ids, steps=steps)
            restored, report = run_digest(engine, store, ids, steps=steps)
            store.close()
            seen += [
                ((tokens, "digest"), restored, live),
                ((tokens, "made"), report.calls_made, 0),
            ]
        expect_equal(seen)

    def test_logits_do_not_depend_on_the_room(self, engine: Engine, long: np.ndarray) -> None:
        digests = set()
        for room in (STEPS, 40, engine.context_tokens - len(long)):
            if STEPS <= room <= engine.context_tokens - len(long):
                with computed(engine, None, long, room=room) as result:
                    digests.add(logits_digest(result.context))
        assert len(digests) == 1

    def test_live_and_restarted_chats_agree(self, engine: Engine, new_store: StoreFactory) -> None:
        grown = [(turn + 1) * (engine.form.block + 3) for turn in range(5)]
        turns = [tokens for tokens in grown if tokens <= engine.context_tokens - STEPS]
        ids = prompt(engine, turns[-1])
        store = new_store()
        seen = []
        for tokens in turns:
            live, report = run_digest(engine, store, ids[:tokens], keep=Keep.BLOCKS)
            restarted, _ = run_digest(engine, None, ids[:tokens])
            seen.append(((tokens, "digest"), live, restarted))
        expect_equal(seen)
        assert report.reused_tokens == turns[-2] // engine.form.block * engine.form.block

    # --- what is reported --------------------------------------------------------------------

    def test_the_report_says_what_was_done(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        store, watched = new_store(), Watched(engine)
        block = engine.form.block
        stored = 2 * block
        run_digest(engine, store, long[:stored], keep=Keep.BLOCKS, steps=0)
        _, report = run_digest(watched, store, long, steps=0)
        calls = plan_calls(len(long), engine.form, engine.context_tokens)
        assert watched.tokens_run == len(long) - stored
        assert watched.committed == [stored]
        assert (report.tokens, report.reused_tokens) == (len(long), stored)
        assert report.computed_tokens == watched.tokens_run
        assert (report.calls_planned, report.calls_made) == (len(calls), len(calls) - 2)
        assert report.loaded_bytes >= stored * engine.spec.bytes_per_token(Role.KEEP)
        assert report.captured_bytes > 0
        assert report.misses == ["not_stored: no chunk after 2 calls"]
        assert report.drifted == []
        assert report.capture_error is None

    def test_blocks_alone_leave_the_tail_to_be_computed(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        block = engine.form.block
        seen = []
        tail = (2 * block + 1, 1, ["not_stored"]) if block > 1 else (3, 0, [])
        for tokens, made, why in ((2 * block, 0, []), tail):
            ids, store = prompt(engine, tokens), new_store()
            cold, _ = run_digest(engine, store, ids, keep=Keep.BLOCKS)
            warm, report = run_digest(engine, store, ids, keep=Keep.BLOCKS)
            misses = [miss.partition(":")[0] for miss in report.misses]
            seen.append((tokens, (warm, report.calls_made, misses), (cold, made, why)))
        expect_equal(seen)

    # --- artifacts (I4) ----------------------------------------------------------------------

    def test_a_rebuilt_artifact_has_the_same_raw_digests(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        whole, again, resumed = new_store(), new_store(), new_store()
        for store in (whole, again):
            run_digest(engine, store, long, steps=0)
        run_digest(engine, resumed, long[: engine.form.block], keep=Keep.BLOCKS, steps=0)
        _, report = run_digest(engine, resumed, long, steps=0)
        assert report.reused_tokens == engine.form.block
        assert raw_digests(again) == raw_digests(whole)
        # It was kept after the first block too, with a window or a state there.
        assert raw_digests(whole).items() <= raw_digests(resumed).items()

    def test_export_restore_export_gives_equal_bytes(
        self, engine: Engine, new_store: StoreFactory
    ) -> None:
        roles = [*engine.spec.roles, Role.END]
        for tokens in telling_lengths(engine):
            ids, store = prompt(engine, tokens), new_store()
            call = plan_calls(tokens, engine.form, engine.context_tokens)[-1]
            place = ChunkPlace(call.start, call.count, call.rows)
            with computed(engine, store, ids) as live:
                out = [_exported(live.context, role, place) for role in roles]
            with computed(engine, store, ids) as restored:
                assert restored.report.calls_made == 0
                again = [_exported(restored.context, role, place) for role in roles]
            store.close()
            assert again == out, f"{tokens} tokens"

    @pytest.mark.parametrize("field", FINGERPRINT_FIELDS)
    def test_another_fingerprint_reuses_nothing_and_names_the_field(
        self, engine: Engine, new_store: StoreFactory, field: str
    ) -> None:
        ids, store = prompt(engine, engine.form.block + 1), new_store()
        cold, _ = run_digest(engine, store, ids)
        other = Watched(engine, **{field: "another"})
        digest, report = run_digest(other, store, ids, keep=Keep.NOTHING)
        assert field in dict(engine.fingerprint.fields)
        assert (report.reused_tokens, other.committed) == (0, [])
        assert report.misses == [f"fingerprint: {field} differ"]
        assert digest == cold

    def test_another_tenant_reuses_nothing(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray
    ) -> None:
        store = new_store()
        for salt, reused in ((b"a" * 32, 0), (b"b" * 32, 0), (b"a" * 32, len(long))):
            with computed(engine, store, long, salt=salt) as result:
                assert result.report.reused_tokens == reused

    # --- damage (I2) -------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", sorted(DAMAGES))
    def test_a_damaged_object_never_reaches_the_engine(
        self, engine: Engine, new_store: StoreFactory, long: np.ndarray, kind: str
    ) -> None:
        cold, _ = run_digest(engine, None, long)
        other = prompt(engine, len(long), seed=2)
        untouched, _ = run_digest(engine, None, other)
        calls = plan_calls(len(long), engine.form, engine.context_tokens)
        for role in (*engine.spec.roles, Role.END):
            number = len(calls) - (2 if role is Role.KEEP else 1)
            store, watched = new_store(), Watched(engine)
            run_digest(engine, store, long, steps=0)
            damage(store, entries_of(engine, store, long)[number][role], kind)
            digest, report = run_digest(watched, store, long)
            assert digest == cold
            assert all(length <= calls[number].start for length in watched.committed)
            assert any(miss.startswith("artifact_") for miss in report.misses), report.misses
            assert run_digest(engine, None, other)[0] == untouched
            healed, report = run_digest(engine, store, long)
            assert (healed, report.reused_tokens) == (cold, len(long))
            store.close()

    def test_a_failed_restore_leaves_the_context_untouched(
        self, engine: Engine, long: np.ndarray
    ) -> None:
        cold, _ = run_digest(engine, None, long)
        context = engine.open_context(len(long) + STEPS)
        calls = plan_calls(len(long), engine.form, engine.context_tokens)
        for call in calls:
            place = ChunkPlace(call.start, call.count, call.rows)
            end = [Role.END] if call is calls[-1] else []
            for role in (*engine.spec.roles, *end):
                for view in context.import_views(role, place, len(long)):
                    view.reshape(-1).view(np.uint8)[:] = 0xFF  # not a number, in every dtype
        assert context.length == 0
        with pytest.raises(EngineError):
            context.logits()
        run_all(engine, context, long)
        assert logits_digest(context) == cold
        context.close()


def _exported(context: Context, role: Role, place: ChunkPlace) -> list[bytes]:
    return [view.tobytes() for view in context.export_views(role, place)]
