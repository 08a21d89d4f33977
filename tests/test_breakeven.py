"""Load or compute (I7): from measured costs, and never at the price of a bit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.breakeven import Line, Load, Rates
from kvgraft.engines.toy import ToyEngine
from kvgraft.plan import Call
from kvgraft.reuse import Keep
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore
from toys import CountingToy, cold, memory_chunks, prompt, run

BLOCKS = [Call(start, 16, 16) for start in range(0, 160, 16)]


def known(load: float, call: float, slope: float = 0.0) -> Rates:
    """Rates of a store with so many seconds per megabyte, an engine with so many per call."""
    rates = Rates()
    for number in range(12):
        rates.note_load((number + 1) * 100_000, load * (number + 1) / 10)
        rates.note_call(BLOCKS[number % 10], call + slope * BLOCKS[number % 10].start)
    return rates


@given(a=st.floats(0, 1), b=st.floats(0, 1e-3), xs=st.lists(st.integers(0, 10_000), min_size=8))
def test_a_straight_line_is_found_again(a: float, b: float, xs: list[int]) -> None:
    line = Line()
    for x in (0, 5_000, *xs):
        line.add(x, a + b * x)
    for x in (0, 100, 10_000):
        assert line.at(x) == pytest.approx(a + b * x, rel=1e-3, abs=1e-6)


def test_what_was_seen_too_little_is_not_known() -> None:
    line = Line()
    for _ in range(4):
        assert line.at(1) is None
        line.add(1, 0.5)
    line.add(1, 0.5)
    assert line.at(1) == pytest.approx(0.5)
    assert line.at(1_000) == pytest.approx(0.5)  # one size says nothing about another


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 100)), min_size=5, max_size=50))
def test_a_prediction_is_a_time(seen: list[tuple[float, float]]) -> None:
    line = Line()
    for x, seconds in seen:
        line.add(x, seconds)
    for x in (0.0, 1.0, 1e9):
        found = line.at(x)
        assert found is not None
        assert math.isfinite(found)
        assert found >= 0


def test_short_loads_keep_their_precision_beside_long_ones() -> None:
    line = Line()
    for _ in range(3):  # a line that reads small things one by one, and large ones in parallel
        for x in (1, 2, 4, 8):
            line.add(x, 0.02 + 0.01 * x)
        for x in (64, 128, 256, 512):
            line.add(x, 0.02 + 0.005 * x)
    for x in (1, 2, 4):
        assert line.at(x) == pytest.approx(0.02 + 0.01 * x, rel=0.25)
    assert line.at(512) == pytest.approx(0.02 + 0.005 * 512, rel=0.25)


def test_older_observations_fade() -> None:
    line = Line()
    for seconds in [1.0] * 300 + [2.0] * 300:
        line.add(10, seconds)
    assert line.at(10) == pytest.approx(2.0, rel=0.01)


def test_what_is_predicted_to_be_faster_is_chosen() -> None:
    calls = BLOCKS[:4]
    assert known(load=1.0, call=0.001).prefers_computing(1_000_000, calls)
    assert not known(load=0.001, call=0.1).prefers_computing(1_000_000, calls)
    # What one call costs, and what the position adds.
    assert known(load=0.01, call=0.001, slope=1e-4).compute_seconds(BLOCKS) == pytest.approx(
        10 * 0.001 + 1e-4 * sum(call.start for call in BLOCKS)
    )


def test_what_is_not_known_is_loaded() -> None:
    rates = known(load=1.0, call=0.001)
    assert not rates.prefers_computing(1_000_000, [Call(0, 200, 256)])
    assert not Rates().prefers_computing(1_000_000, BLOCKS)


def test_a_slow_store_is_tried_again_now_and_then() -> None:
    rates = known(load=1.0, call=0.001)
    chosen = [rates.prefers_computing(1_000_000, BLOCKS) for _ in range(64)]
    assert chosen.count(False) == 4
    assert chosen[0]


def test_rates_are_kept_for_the_next_process() -> None:
    rates = known(load=0.5, call=0.01, slope=1e-5)
    again = Rates.from_json(rates.to_json())
    assert again.load_seconds(777) == rates.load_seconds(777)
    assert again.compute_seconds(BLOCKS) == rates.compute_seconds(BLOCKS)


def damaged(**line: object) -> str:
    return json.dumps({"declined": 0, "lines": {"load": line}})


NO_RATES = (
    "",
    "{",
    "[]",
    "7",
    "[" * 200_000,
    '{"lines": 1, "declined": 0}',
    '{"lines": {"16": {}}, "declined": 0}',
    '{"lines": {"load": {}}}',
    '{"lines": {"load": {}}, "declined": true}',
    '{"lines": {"load": {}, "many": {}}, "declined": 0}',
    damaged(wait=1),
    damaged(x="1"),
    damaged(x=float("nan")),
    damaged(count=9.0, weight=9.0, x=0.0, y=-1.0),
    damaged(count=9.0, weight=9.0, x=1e300),
    damaged(weight=10**400),
)


@pytest.mark.parametrize("text", NO_RATES)
def test_what_is_no_record_of_rates_counts_as_none(text: str) -> None:
    rates = Rates.from_json(text)
    assert rates.load_seconds(1) is None
    assert rates.compute_seconds(BLOCKS) is None


# --- on the path of a prompt ------------------------------------------------------------------


def with_rates(store: ChunkStore, engine: ToyEngine, rates: Rates) -> ChunkStore:
    store._rates[engine.fingerprint.digest] = rates
    return store


def slow_store(engine: ToyEngine) -> ChunkStore:
    return with_rates(memory_chunks(), engine, known(load=1e3, call=1e-4))


def test_a_store_slower_than_the_engine_is_left_alone() -> None:
    engine, ids = CountingToy(), prompt(64)
    store = slow_store(engine)
    expected = cold(engine, ids)
    run(engine, store, ids)
    for load, reused in ((Load.MEASURED, 0), (Load.ALWAYS, 64), (Load.NEVER, 0)):
        bits, report = run(engine, store, ids, load=load, keep=Keep.NOTHING)
        assert (bits, report.reused_tokens) == (expected, reused)
        why = [miss for miss in report.misses if miss.startswith("break_even: 64 stored tokens")]
        assert len(why) == (load is Load.MEASURED)


def test_a_store_faster_than_the_engine_is_used() -> None:
    engine, ids = CountingToy(), prompt(64)
    store = with_rates(memory_chunks(), engine, known(load=1e-4, call=1e3))
    run(engine, store, ids)
    bits, report = run(engine, store, ids, load=Load.MEASURED)
    assert (bits, report.reused_tokens, report.misses) == (cold(engine, ids), 64, [])


def test_costs_are_measured_where_nothing_was_known_and_kept(tmp_path: Path) -> None:
    engine, store = CountingToy(), open_local(tmp_path / "store")
    for seed in range(6):
        for load in (Load.NEVER, Load.MEASURED):
            run(engine, store, prompt(37, seed=seed), load=load)
    store.close()
    store = open_local(tmp_path / "store")
    rates = store.rates(engine.fingerprint.digest)
    assert rates.load_seconds(50_000) is not None
    assert rates.compute_seconds([Call(0, 16, 16), Call(16, 16, 16), Call(32, 5, 8)]) is not None
    assert store.rates(b"another model" + bytes(19)).load_seconds(50_000) is None
    store.close()


def test_declining_a_load_captures_nothing_twice() -> None:
    engine, ids = CountingToy(), prompt(64)
    store = slow_store(engine)
    run(engine, store, ids)
    before = store.index.all_entries()
    _, report = run(engine, store, ids, load=Load.MEASURED)
    assert (report.captured_bytes, report.drifted) == (0, [])
    assert store.index.all_entries() == before


def test_short_processes_explore_as_one_long_one_does() -> None:
    text, loads = known(load=1.0, call=0.001).to_json(), 0
    for _ in range(64):
        rates = Rates.from_json(text)
        loads += not rates.prefers_computing(1_000_000, BLOCKS)
        assert rates.unsaved or not rates.declined
        text = rates.to_json()
    assert loads == 4
