"""Budgets of tokens, seconds and joules, and what is left of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvgraft import limits
from kvgraft.energy import EnergyMeter
from kvgraft.errors import UsageError
from kvgraft.library import budget as budgets
from kvgraft.library.budget import Allowance, Budget
from kvgraft.meter import Cost
from powercap import Powercap


@pytest.mark.parametrize("name", ["tokens", "seconds", "joules"])
@pytest.mark.parametrize("cap", [0, -1, float("inf"), float("nan")])
def test_a_budget_that_is_none_is_refused(name: str, cap: float) -> None:
    with pytest.raises(UsageError, match=name):
        Budget(**{name: cap})  # type: ignore[arg-type]


def test_without_a_budget_everything_is_allowed() -> None:
    allowance = Allowance()
    allowance.spend(10**9)
    allowance.spend(None)
    assert allowance.allows(10**9)
    assert (allowance.ran_out, allowance.tokens_left, allowance.seconds_left) == ("", None, None)


def test_tokens_are_counted_to_the_last() -> None:
    allowance = Allowance(Budget(tokens=10), spent=Cost(prefill_tokens=2, decode_tokens=1))
    assert (allowance.tokens_left, allowance.allows(7)) == (7, True)
    allowance.spend(5)
    assert allowance.allows(2)
    assert not allowance.allows(3)
    assert allowance.ran_out == "tokens"
    assert not allowance.allows(1)  # it does not come back
    used_up = Allowance(Budget(tokens=10), spent=Cost(decode_tokens=10))
    assert not used_up.allows()


def test_tokens_that_nobody_counted_end_a_budget_in_tokens() -> None:
    allowance = Allowance(Budget(tokens=10))
    allowance.spend(None)
    assert not allowance.allows(1)
    assert allowance.ran_out == "tokens (not all were counted)"
    assert not Allowance(Budget(tokens=10), spent=Cost(prefill_tokens=None)).allows(1)


class Clock:
    """A stopwatch that is set by hand."""

    seconds = 0.0


def test_seconds_end_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "Stopwatch", Clock)
    monkeypatch.setattr(Clock, "seconds", 0.0)
    allowance = Allowance(Budget(seconds=10), spent=Cost(seconds=4))
    Clock.seconds = 5.5
    assert (allowance.seconds_left, allowance.allows()) == (0.5, True)
    Clock.seconds = 6.0
    assert not allowance.allows()
    assert allowance.ran_out == "seconds"


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Powercap:
    """Counters of a machine that is not there, looked at without waiting."""
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setattr(budgets, "Stopwatch", Clock)
    monkeypatch.setattr(Clock, "seconds", limits.ENERGY_CHECK_SECONDS)
    return Powercap(tmp_path / "powercap")


def test_joules_end_a_budget(powercap: Powercap) -> None:
    meter = EnergyMeter(root=powercap.root)
    Budget(joules=5).check_meter(meter)
    allowance = Allowance(Budget(joules=5), spent=Cost(joules=1.0), meter=meter)
    for microjoules, enough in ((2_000_000, True), (3_500_000, True), (4_500_000, False)):
        powercap.write(microjoules)
        assert allowance.allows() is enough
    assert allowance.ran_out == "joules"


def test_counters_are_not_asked_more_often_than_they_move(
    powercap: Powercap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "seconds", limits.ENERGY_CHECK_SECONDS / 2)
    allowance = Allowance(Budget(joules=5), meter=EnergyMeter(root=powercap.root))
    powercap.write(9_000_000)
    assert allowance.allows()
    Clock.seconds *= 2
    assert not allowance.allows()


def test_joules_that_cannot_be_read_any_more_end_a_budget(powercap: Powercap) -> None:
    allowance = Allowance(Budget(joules=5), meter=EnergyMeter(root=powercap.root))
    powercap.write("garbage")
    assert not allowance.allows()
    assert allowance.ran_out == "joules (they could not be measured)"


def test_joules_that_an_earlier_run_did_not_measure_end_a_budget(powercap: Powercap) -> None:
    meter = EnergyMeter(root=powercap.root)
    assert not Allowance(Budget(joules=5), spent=Cost(seconds=3.0), meter=meter).allows()


def test_a_budget_in_joules_needs_a_meter(powercap: Powercap, tmp_path: Path) -> None:
    without = EnergyMeter(root=tmp_path / "absent")
    for meter in (None, without):
        with pytest.raises(UsageError, match="needs a meter"):
            Budget(joules=5).check_meter(meter)
        Budget(tokens=5, seconds=5).check_meter(meter)
    Budget(joules=5).check_meter(EnergyMeter(watts=65, root=tmp_path / "absent"))
