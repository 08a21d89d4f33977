"""What an answer cost: counts add up, and what was not measured stays unknown."""

from __future__ import annotations

from dataclasses import replace

from kvgraft.meter import Cost, Stopwatch

ONE = Cost(attempts=1, prefill_tokens=2, reused_tokens=3, decode_tokens=4, seconds=0.5)
OTHER = Cost(attempts=10, prefill_tokens=20, reused_tokens=30, decode_tokens=40, seconds=5.0)


def test_costs_add_up() -> None:
    assert (ONE + OTHER).as_dict() == {
        "attempts": 11,
        "prefill_tokens": 22,
        "reused_tokens": 33,
        "decode_tokens": 44,
        "seconds": 5.5,
        "joules": None,
    }
    assert ONE + Cost() == ONE


def test_energy_that_is_unknown_in_part_is_unknown() -> None:
    measured, free = replace(ONE, joules=3.0), replace(ONE, joules=0.0)
    assert (measured + free).joules == 3.0
    assert (free + free).joules == 0.0  # measured, and nothing
    assert (measured + ONE).joules is None
    assert (ONE + measured).joules is None


def test_a_stopwatch_does_not_run_backwards() -> None:
    watch = Stopwatch()
    assert 0 <= watch.seconds <= watch.seconds
