"""What an answer cost: counts add up, and what was not measured stays unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvgraft import meter
from kvgraft.meter import Cost, Stopwatch, is_estimate, process_cpu_seconds

ONE = Cost(
    attempts=1,
    prefill_tokens=2,
    reused_tokens=3,
    decode_tokens=4,
    seconds=0.5,
    cpu_seconds=0.25,
    model_flops=6,
    joules=7.0,
    joules_from="rapl",
)
OTHER = Cost(10, 20, 30, 40, 5.0, 2.5, 60, 70.0, "rapl")
ESTIMATE = "estimate: 65 W stated"


# --- costs ------------------------------------------------------------------------------------


def test_costs_add_up() -> None:
    assert (ONE + OTHER).as_dict() == {
        "attempts": 11,
        "prefill_tokens": 22,
        "reused_tokens": 33,
        "decode_tokens": 44,
        "seconds": 5.5,
        "cpu_seconds": 2.75,
        "model_flops": 66,
        "joules": 77.0,
        "joules_from": "rapl",
    }


def test_what_nobody_measured_is_unknown_and_not_0() -> None:
    cost = Cost(attempts=1, seconds=2.0).as_dict()
    assert {name for name, value in cost.items() if value is None} == {
        *("cpu_seconds", "model_flops", "joules", "joules_from"),
    }
    assert json.loads(json.dumps(cost, allow_nan=False)) == cost


@pytest.mark.parametrize("name", ["cpu_seconds", "model_flops", "joules"])
def test_what_is_unknown_in_part_is_unknown(name: str) -> None:
    lacking = replace(ONE, **{name: None})
    for total in (lacking + OTHER, OTHER + lacking, lacking + lacking):
        unknown = {key for key, value in total.as_dict().items() if value is None}
        assert unknown - {"joules_from"} == {name}
        assert (total.joules_from is None) == (name == "joules")


def test_work_that_was_not_done_took_nothing_and_that_is_known() -> None:
    for cost in (ONE, replace(ONE, joules_from=ESTIMATE), Cost(attempts=1)):
        assert Cost.nothing() + cost == cost == cost + Cost.nothing()
    assert sum([ONE, OTHER], Cost.nothing()) == ONE + OTHER
    known = {name for name, value in Cost.nothing().as_dict().items() if value == 0}
    assert known == set(Cost.nothing().as_dict()) - {"joules_from"}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("rapl", "rapl", "rapl"),
        ("rapl", "nvml+rapl", "nvml+rapl; rapl"),
        ("rapl", ESTIMATE, f"{ESTIMATE}; rapl"),
        (ESTIMATE, "estimate: 100 W stated", f"estimate: 100 W stated; {ESTIMATE}"),
        (f"{ESTIMATE}; rapl", "nvml", f"{ESTIMATE}; nvml; rapl"),
        (None, "rapl", "rapl; unknown source"),
    ],
)
def test_joules_say_where_all_of_them_come_from(one, other, both: str) -> None:
    for first, second in ((one, other), (other, one)):
        total = replace(ONE, joules_from=first) + replace(OTHER, joules_from=second)
        assert (total.joules, total.joules_from) == (77.0, both)
        assert is_estimate(total.joules_from) == ("estimate" in both)


def test_an_estimate_in_part_is_an_estimate() -> None:
    total = ONE + replace(OTHER, joules_from=ESTIMATE)
    assert is_estimate(total.joules_from)
    assert is_estimate((total + ONE).joules_from)
    assert not is_estimate((ONE + OTHER).joules_from)
    assert not is_estimate(None)


def test_a_stopwatch_does_not_run_backwards() -> None:
    watch = Stopwatch()
    assert 0 <= watch.seconds <= watch.seconds


# --- CPU seconds ------------------------------------------------------------------------------

# Burns CPU in itself and, before that, in a process below it; says how much in all, and waits.
BURN = """
import subprocess, sys, time

used, below = 0.0, None
if sys.argv[1:]:
    pipes = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    below = subprocess.Popen([sys.executable, "-u", __file__], **pipes)
    used = float(below.stdout.readline())
while time.process_time() < 0.15:
    pass
print(used + time.process_time())
sys.stdin.readline()
if below is not None:
    below.communicate("\\n")
"""
SLACK_SECONDS = 0.1  # of the kernel's clock, for two processes, and what they take to end


def test_children_are_counted_while_they_run_and_after_they_ended(tmp_path: Path) -> None:
    script = tmp_path / "burn.py"
    script.write_text(BURN)
    before = process_cpu_seconds()
    assert before is not None
    with subprocess.Popen(
        [sys.executable, "-u", script, "with one below"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        used = float(process.stdout.readline())
        assert used > 0.3
        running = process_cpu_seconds()
        assert running is not None
        assert used - SLACK_SECONDS < running - before
        process.communicate("\n")
        ended = process_cpu_seconds()
        assert ended is not None
        # Neither lost nor counted twice when they ended.
        assert used - SLACK_SECONDS < ended - before < 2 * used


def test_own_work_is_counted() -> None:
    before, began = process_cpu_seconds(), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    after = process_cpu_seconds()
    assert before is not None
    assert after is not None
    assert after - before > 0.04


def test_cpu_seconds_are_unknown_where_the_system_does_not_tell(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "self" / "task" / "1").mkdir(parents=True)  # a kernel that lists no children
    monkeypatch.setattr(meter, "_PROCESSES", tmp_path)
    assert process_cpu_seconds() is None
    monkeypatch.setattr(meter, "_PROCESSES", tmp_path / "absent")
    assert process_cpu_seconds() is None
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "resource", None)  # another operating system
    assert process_cpu_seconds() is None


def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch
) -> None:
    task = tmp_path / "self" / "task" / "1"
    task.mkdir(parents=True)
    (task / "children").write_text("7 8 ")
    odd = tmp_path / "8"
    (odd / "task").mkdir(parents=True)
    # A name may hold anything. The ticks: user, system, and both of its own ended children.
    fields = "S 1 1 1 0 -1 0 0 0 0 0 100 20 3 4 20 0"
    (odd / "stat").write_text(f"8 (a) 9 9) {fields}\n")
    monkeypatch.setattr(meter, "_PROCESSES", tmp_path)
    with_child = process_cpu_seconds()
    (task / "children").write_text("")
    without = process_cpu_seconds()
    assert with_child is not None
    assert without is not None
    ticks = 127 / os.sysconf("SC_CLK_TCK")
    assert with_child - without == pytest.approx(ticks, abs=0.05)
