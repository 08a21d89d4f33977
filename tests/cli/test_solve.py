"""`solve`: a line for each problem, totals, going on after an interruption, one real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kvgraft.api import open_library
from kvgraft.cli import docs
from kvgraft.energy import EnergyMeter
from kvgraft.errors import StoreError, StoreFull
from kvgraft.library.records import Library
from library.completions import completion, refusal, serving
from library.scripted import Judge

SLOW = """\
import pathlib, sys, time
pathlib.Path(sys.argv[1]).open("a").write("judged\\n")
time.sleep(float(sys.argv[2]))
"""


def test_a_line_for_each_problem_then_totals(run, solving) -> None:
    seen = run(*solving)
    assert seen.status == 0, seen.stderr
    heading, *lines, total = seen.stdout.splitlines()
    assert heading.split() == ["problem", "state", "answer", "kept", "tokens", "seconds"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]
    assert {line.split()[1] for line in lines} <= {"solved", "unsolved"}
    assert total.startswith("4 problems: ")
    for line in lines:
        if "text only" in line:
            assert "the model says" in line  # the reason

    again = run(*solving)
    assert again.status == 0
    assert "0 solved" in again.stdout
    for line in again.stdout.splitlines()[1:-1]:
        assert " known " in line or "unsolved" in line
        if "text only" in line:
            assert "the model says" in line


def test_the_document(run, solving) -> None:
    seen = run(*solving, "--json")
    assert seen.status == 0
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["solve"])
    rows, totals = document["outcomes"], document["totals"]
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    assert totals["problems"] == 4
    assert totals["solved"] == sum(row["state"] == "solved" for row in rows) >= 1
    assert totals["replays"] + totals["text_only"] == totals["solved"]
    assert totals["decode_tokens"] == sum(row["cost"]["decode_tokens"] for row in rows) > 0
    for name in ("cpu_seconds", "model_flops"):
        assert totals[name] == pytest.approx(sum(row["cost"][name] for row in rows))
        assert totals[name] > 0
    for row in rows:
        assert (row["deposit_id"] is None) == (row["state"] == "unsolved")
        assert bool(row["detail"]) == (row["replays"] is False)


def test_deposits_hold_until_they_expire(run, solving, problems) -> None:
    assert run(*solving, "--expires", "2999-01-01T00:00Z").status == 0
    rows = run("library", "ls", "--json").document["deposits"]
    assert rows
    assert {row["expires_at"] for row in rows} == {"2999-01-01T00:00:00.000000+00:00"}
    for when, why in (("soon", "no date or time"), ("2000-01-01", "over already")):
        seen = run(*solving, "--expires", when)
        assert seen.status == 3
        assert why in seen.stderr


def test_joules_are_estimated_where_watts_are_stated(run, solving, no_meter) -> None:
    seen = run(*solving, "--watts", 65, "--json")
    rows, totals = seen.document["outcomes"], seen.document["totals"]
    assert {row["cost"]["joules_from"] for row in rows} == {"estimate: 65 W stated"}
    assert totals["joules_from"] == "estimate: 65 W stated"
    assert totals["joules"] == pytest.approx(sum(row["cost"]["joules"] for row in rows))
    assert totals["joules"] > 0
    # What an earlier run finished took nothing now, and what is not measured stays unknown.
    again = run(*solving, "--watts", 65)
    assert "J (estimate: 65 W stated)" in again.stdout.splitlines()[-1]
    unknown = run(*solving, "--json").document["totals"]
    assert (unknown["joules"], unknown["joules_from"]) == (None, None)
    assert "joules not measured" in run(*solving).stdout.splitlines()[-1]
    assert run(*solving, "--watts", 0).status == 2


# --- efforts and budgets ----------------------------------------------------------------------


HARD = ("--effort", "greedy + sample:2 + correct:2 + larger:toy:5")


def test_a_ladder_is_climbed_and_accounted_for(run, problems) -> None:
    words = ("solve", problems, "--model", "toy:4", "--verifier", "exact", "--max-tokens", 8)
    document = run(*words, *HARD, "--json").document
    specs = ["greedy", "sample:2", "correct:2", "larger:toy:5"]
    for row in document["outcomes"]:
        assert [rung["rung"] for rung in row["rungs"]] == specs
        assert [rung["cost"]["attempts"] for rung in row["rungs"]] == [1, 2, 2, 1]
        for name in ("attempts", "decode_tokens", "prefill_tokens", "seconds"):
            total = sum(rung["cost"][name] for rung in row["rungs"])
            assert row["cost"][name] == pytest.approx(total)
        # The second rung grafts the prompt that the first one computed.
        assert row["rungs"][1]["cost"]["prefill_tokens"] == 0
    assert [
        (one["rung"], one["problems"], one["attempts"]) for one in document["totals"]["rungs"]
    ] == [(spec, 4, 4 * count) for spec, count in zip(specs, [1, 2, 2, 1], strict=True)]

    human = run(*words, *HARD, "--seed", 1)
    assert human.status == 0
    table = human.stdout.split("\n\n")[1].splitlines()
    assert table[0].split()[:4] == ["rung", "tried", "passed", "attempts"]
    assert [line.split()[0] for line in table[1:]] == specs
    assert human.stdout.splitlines()[-1].startswith("4 problems: ")


def test_sample_alone_takes_the_attempts(run, problems) -> None:
    words = ("solve", problems, "--model", "toy:4", "--verifier", "exact", "--max-tokens", 4)
    for more in ((), ("--effort", "sample")):
        rows = run(*words, "--attempts", 3, *more, "--json").document["outcomes"]
        assert {row["cost"]["attempts"] for row in rows} <= {0, 3}
    (rung,) = run(*words, "--attempts", 5, "--json").document["totals"]["rungs"]
    assert (rung["rung"], rung["attempts"]) == ("sample:5", 20)


def test_what_ran_out_is_named(run, problems) -> None:
    words = ("solve", problems, "--model", "toy:4", "--verifier", "exact", "--max-tokens", 60)
    seen = run(*words, "--budget-tokens", 40, "--json")
    assert seen.status == 0
    for row in seen.document["outcomes"]:
        assert (row["state"], row["detail"]) == ("unsolved", "budget: tokens")
        assert row["cost"]["prefill_tokens"] + row["cost"]["decode_tokens"] <= 40
    assert "budget: seconds" in run(*words, "--budget-seconds", 1e-6).stdout


@pytest.mark.parametrize(
    "more",
    [
        ("--effort", "best:3"),
        ("--effort", "correct:2"),
        ("--effort", "larger:http://host/v1"),
        ("--budget-tokens", 0),
        ("--budget-seconds", 0),
        ("--budget-joules", -1),
        ("--budget-joules", "nan"),
    ],
)
def test_an_effort_that_is_none_is_refused_before_a_model_is_opened(run, problems, more) -> None:
    seen = run("solve", problems, "--model", "/no/such/model", "--verifier", "exact", *more)
    assert seen.status == 2, seen.stderr


@pytest.mark.parametrize(
    ("need", "more", "status", "words"),
    [
        ("peers", ("--effort", "greedy + correct:2x4"), 2, "compares attempts"),
        ("tests", (), 3, "needs the check 'tests' to each problem; 4 have none"),
    ],
)
def test_what_the_verifier_cannot_do_without_is_asked_for_before_a_model_is_opened(
    run, problems, monkeypatch, need, more, status, words
) -> None:
    judge = Judge(needs=frozenset({need}))
    monkeypatch.setattr("kvgraft.library.verify.specs.make_verifier", lambda spec: judge)
    seen = run("solve", problems, "--model", "/no/such/model", "--verifier", "its own", *more)
    assert (seen.status, words in seen.stderr) == (status, True), seen.stderr


def test_a_budget_in_joules_needs_a_meter_or_watts(run, problems, tmp_path, monkeypatch, no_meter):
    without = partial(EnergyMeter, root=tmp_path / "no powercap")
    monkeypatch.setattr("kvgraft.energy.EnergyMeter", without)
    words = ("solve", problems, "--model", "toy:4", "--verifier", "exact", "--max-tokens", 4)
    refused = run(*words, "--budget-joules", 5)
    assert refused.status == 2
    assert "needs a meter" in refused.stderr
    assert run(*words, "--budget-joules", 5, "--watts", 65).status == 0


def test_a_server_is_a_rung_and_its_failure_is_no_loss(run, problems, monkeypatch) -> None:
    monkeypatch.setenv("KVGRAFT_ENDPOINT_KEY", "sk-secret")
    right = [completion(f"Answer: {2 * n}") for n in range(4)]
    with serving(right[0], refusal(401, "sk-secret is no key"), *right[1:]) as server:
        words = ("solve", problems, "--model", "toy:4", "--verifier", "exact", "--max-tokens", 8)
        hard = ("--effort", f"greedy + larger:{server.name}")
        failed = run(*words, *hard, "--json")
        assert failed.status == 4
        assert failed.document["error"]["code"] == "endpoint"
        assert [row["answer"] for row in failed.document["outcomes"]] == ["0"]
        assert "run the same command again" in failed.stderr
        assert "sk-secret" not in failed.stdout + failed.stderr
        again = run(*words, *hard)
        assert again.status == 0, again.stderr
        assert "3 solved, 1 known before" in again.stdout
        assert "unknown tokens decoded" in again.stdout  # this server counts none
        shown = run("library", "show", failed.document["outcomes"][0]["deposit_id"])
        assert f"greedy + larger:{server.name}" in shown.stdout


# --- problems that stay unsolved, and interruptions ---------------------------------------------


def test_unsolved_problems_are_counted_and_no_error(run, problems) -> None:
    words = ("solve", problems, "--model", "toy", "--verifier", "exact", "--max-tokens", 4)
    seen = run(*words, "--attempts", 2, "--json")
    assert seen.status == 0
    assert seen.document["totals"]["unsolved"] == 4
    assert {row["state"] for row in seen.document["outcomes"]} == {"unsolved"}
    human = run(*words, "--attempts", 2)
    assert human.status == 0
    assert "4 unsolved" in human.stdout


def test_a_problem_without_room_does_not_stop_the_others(run, tmp_path) -> None:
    file = tmp_path / "long.jsonl"
    rows = [{"problem": "x" * 3000, "id": "long"}, {"problem": "What is 1 + 1?", "id": "short"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    words = ("solve", file, "--model", "toy:4", "--verifier", "command:true", "--max-tokens", 64)
    seen = run(*words, "--json")
    assert seen.status == 0
    long, short = seen.document["outcomes"]
    assert long["state"] == "no_room"
    assert "2048" in long["detail"]
    assert short["state"] in ("solved", "unsolved")


def test_tenants_do_not_see_each_other(run, solving) -> None:
    assert run(*solving, "--tenant", "ann").status == 0
    assert run("library", "ls", "--tenant", "bob", "--json").document["total"] == 0
    mine = run("library", "ls", "--tenant", "ann", "--json").document["deposits"]
    assert mine
    id = mine[0]["id"]
    assert run("library", "show", id, "--tenant", "ann").status == 0
    for words in (("show", id), ("revoke", id, "--reason", "not mine")):
        assert run("library", *words, "--tenant", "bob").status == 3


def test_an_error_in_the_middle_shows_what_was_finished(run, solving, monkeypatch) -> None:
    put, calls = Library.run_put, []

    def fails_later(self: Library, *words: object, **options: object) -> object:
        calls.append(words)
        if len(calls) == 3:
            raise StoreFull("no space left", where="here")
        return put(self, *words, **options)

    monkeypatch.setattr(Library, "run_put", fails_later)
    seen = run(*solving, "--json")
    assert (seen.status, seen.document["error"]["code"]) == (6, "store_full")
    assert len(seen.document["outcomes"]) == 2


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["human", "json"])
def test_ctrl_c_keeps_what_is_finished_and_the_rerun_goes_on(
    run, start, problems, tmp_path, more
) -> None:
    judged, script = tmp_path / "judged", tmp_path / "slow.py"
    script.write_text(SLOW)

    def words(seconds: float) -> list[object]:
        verifier = f"command:{sys.executable} {script} {judged} {seconds}"
        return [
            *("solve", problems, "--model", "toy:4", "--verifier", verifier),
            *("--max-tokens", 64, *more),
        ]

    process = start(*words(0.2))
    _wait(process, lambda: _deposits(Path(os.environ["KVGRAFT_STORE"])) >= 1)
    # Once the first deposit is there, the next judgement is about another problem.
    seen = judged.read_text()
    _wait(process, lambda: judged.read_text() != seen)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)

    assert process.returncode == 130, stderr
    assert "error: interrupted" in stderr
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    if more:
        document = json.loads(stdout)
        assert document["error"]["code"] == "interrupted"
        assert 1 <= len(document["outcomes"]) < 4
    assert list((Path(os.environ["KVGRAFT_STORE"]) / "tmp").iterdir()) == []
    assert run("store", "check").status == 0
    assert run("library", "check").status == 0

    again = run(*words(0), *({"--json"} - set(more)))
    assert again.status == 0, again.stderr
    states = [row["state"] for row in again.document["outcomes"]]
    assert len(states) == 4
    assert "known" in states


def _wait(process: subprocess.Popen[str], come: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not come():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _deposits(store: Path) -> int:
    """How many there are while another process makes them."""
    try:
        with open_library(store, read_only=True) as library:
            return library.count()
    except StoreError:  # its file is being made right now
        return 0


@pytest.mark.model("demo:smollm2")
def test_a_real_model_replays_in_another_process(run, spawn, model_path, tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    question = "What is 2 + 2? Reply with the number only."
    file.write_text(json.dumps({"problem": question}))
    # Any number will do: what is tested is the way, not the model.
    model = ("--model", "demo:smollm2", "--threads", 1)  # fast on a busy machine, too
    effort = ("--verifier", "regex:[0-9]+", "--attempts", 8, "--max-tokens", 64)
    solved = run("solve", file, *model, *effort, "--json")
    assert solved.status == 0, solved.stderr
    (row,) = solved.document["outcomes"]
    assert (row["state"], row["replays"]) == ("solved", True), row
    asked = spawn(*("ask", question, *model, "--minimum", "replayed", "--json"))
    assert asked.status == 0, asked.stderr
    document = asked.document
    assert (document["how"], document["grade"], document["exact"]) == ("replayed", "proved", True)
    assert document["cost"]["prefill_tokens"] == 0
    assert document["cost"]["decode_tokens"] <= 16
