"""Solving where something is wrong: damaged records, full disks, evidence without end."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft import limits
from kvgraft.engines.toy import ToyShape
from kvgraft.errors import StoreFull, StoreReadOnly
from kvgraft.library.ask import ask
from kvgraft.library.records import Library
from kvgraft.library.solve import Effort
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES
from library.scripted import (
    FOUR,
    QUESTION,
    SOLUTION,
    Judge,
    ScriptedEngine,
    opened,
    run,
    solving_engine,
    sound,
)

# --- records that do not serve ----------------------------------------------------------------


def test_a_damaged_record_is_solved_anew_in_its_place(workspace: Workspace) -> None:
    (first,) = run(workspace)
    with sqlite3.connect(workspace.library.path) as connection:
        connection.execute("UPDATE deposits SET answer = '5'")
    connection.close()
    (second,) = run(workspace)
    assert (second.state, second.answer) == ("solved", "4")
    assert second.deposit_id != first.deposit_id
    assert ask(workspace, FOUR).deposit_id == second.deposit_id
    assert workspace.library.count() == 1


def test_another_models_deposit_does_not_stand_in_for_this_ones(tmp_path: Path) -> None:
    with opened(tmp_path, solving_engine(seed=1)) as workspace:
        (theirs,) = run(workspace)
    with opened(tmp_path, solving_engine(seed=0)) as workspace:
        (ours,) = run(workspace)
        assert (ours.state, workspace.library.count()) == ("solved", 2)
        assert ours.deposit_id != theirs.deposit_id


def test_evidence_that_is_long_twice_is_shortened_and_kept(workspace: Workspace) -> None:
    class Wordy(Judge):
        def verify(self, case: Case, trace: str) -> Verdict:
            verdict = super().verify(case, trace)
            evidence = {
                **verdict.evidence,
                "words": "\u00e9" * (limits.MAX_EVIDENCE_CHARS // 6 - 60),
            }
            return replace(verdict, evidence=evidence)

    (outcome,) = run(workspace, judge=Wordy())
    assert outcome.state == "solved"
    evidence = workspace.library.get(outcome.deposit_id or "").verdict.evidence
    assert set(evidence) == {"solution", "restated"}
    assert json.loads(json.dumps(evidence)) == evidence
    assert all(len(part["sha256"]) == 64 for part in evidence.values())


# --- stores that cannot be written ------------------------------------------------------------


class Full:
    """A blob writer on a full disk: it takes `room` writes, then the disk is full."""

    def __init__(self, inner: Any, error: Exception, room: int) -> None:
        self.inner, self.error, self.room = inner, error, room

    def write(self, data: Any) -> None:
        self.room -= 1
        if self.room < 0:
            self.inner.abort()
            raise self.error
        self.inner.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("room", [0, 1, 5], ids="{} writes".format)
@pytest.mark.parametrize("error", [StoreFull("no space left"), StoreReadOnly("not allowed")])
def test_on_a_full_disk_the_solution_is_kept_as_text(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception, room: int
) -> None:
    real = workspace.chunks.blobs.writer
    monkeypatch.setattr(workspace.chunks.blobs, "writer", lambda: Full(real(), error, room))
    (outcome,) = run(workspace)
    assert (outcome.state, outcome.answer, outcome.replays) == ("solved", "4", False)
    assert outcome.detail == f"not replayed from disk: {error}"
    assert list(workspace.chunks.blobs.names()) == []
    assert workspace.chunks.index.totals()["packs"] == 0
    assert sound(workspace)
    answer = ask(workspace, FOUR)
    assert (answer.how, answer.text) == ("recorded", "4")
    assert answer.reasons == (f"text_only: not replayed from disk: {error}",)


def test_a_disk_that_fills_between_the_blocks_and_the_end_point(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = workspace.chunks.blobs.writer, []

    def writer() -> Any:
        made.append(1)
        # The prompt's blocks and the trial's are written, each with its fingerprint if new.
        return real() if len(made) <= 3 else Full(real(), StoreFull("no space left"), 2)

    monkeypatch.setattr(workspace.chunks.blobs, "writer", writer)
    (outcome,) = run(workspace)
    assert (outcome.state, outcome.replays) == ("solved", False)
    assert outcome.detail == "not replayed from disk: no space left"
    assert workspace.chunks.index.totals()["packs"] == 2
    assert sound(workspace)


def test_a_library_that_cannot_be_written_says_so(workspace: Workspace, tmp_path: Path) -> None:
    with Library.open(workspace.library.path, read_only=True) as library:
        with pytest.raises(StoreReadOnly):
            run(replace(workspace, library=library))
        assert library.count(status=None) == 0


def test_a_window_that_does_not_reach_back_serves_as_well(tmp_path: Path) -> None:
    engine = ScriptedEngine(shape=ToyShape(windows=(0, 100), block=8, rungs=(2, 8)))
    engine.on_problem(QUESTION, SOLUTION)
    engine.on(SOLUTION + CUES[0], " 4\n")
    with opened(tmp_path, engine) as workspace:
        (outcome,) = run(workspace, effort=Effort(1, 60))
        assert outcome.replays
        assert ask(workspace, FOUR).exact


# --- two processes at one problem -------------------------------------------------------------


def child(root: Path, own: str, other: str) -> None:
    """Solves `FOUR`, and deposits it when the other process is about to do so, too."""

    def wait(trace: str) -> None:
        if trace == SOLUTION:
            (root / own).touch()
            deadline = time.monotonic() + 60
            while not (root / other).exists():
                assert time.monotonic() < deadline
                time.sleep(0.002)

    with opened(root / "store", solving_engine()) as workspace:
        (outcome,) = run(workspace, judge=Judge(before=wait))
        print(json.dumps([outcome.state, outcome.deposit_id, outcome.answer, outcome.replays]))


def test_two_processes_that_solve_one_problem_make_one_deposit(tmp_path: Path) -> None:
    names = ("one", "two")
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path), own, other],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own, other in (names, names[::-1])
    ]
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    first, second = (json.loads(stdout) for stdout, _ in ended)
    assert first == second
    assert (first[0], *first[2:]) == ("solved", "4", True)
    with opened(tmp_path / "store", solving_engine()) as workspace:
        assert workspace.library.count(status=None) == 1
        assert sound(workspace)
        assert ask(workspace, FOUR).exact


if __name__ == "__main__":
    child(Path(sys.argv[1]), *sys.argv[2:])
