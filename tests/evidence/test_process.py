"""Parts of the evidence in processes of their own: what is heard from them, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import EngineError, StoreFull
from kvgraft.evidence.process import run_module

STEP = 'echo \'{"stage": "cold", "done": 1, "total": 5}\'\n'
Run = Callable[..., list[Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a shell script in a Python module's place; what it told."""

    def _run(script: str, progress: Callable[..., None] | None = None) -> list[Any]:
        fake = tmp_path / "python"
        fake.write_text("#!/bin/sh\n" + script)
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        told: list[Any] = []
        heard = progress or (lambda *step: told.append(step))
        run_module("some.module", ["argument"], heard, told.append)
        return told

    return _run


def test_a_module_is_run_with_its_arguments(run: Run) -> None:
    assert run("""echo "{\\"say\\": \\"$*\\"}"\n""") == ["-m some.module argument"]


def test_steps_and_words_are_heard_in_order(run: Run) -> None:
    say = """echo '{"say": "half-way"}'\n"""
    assert run(STEP + say + STEP) == [("cold", 1, 5), "half-way", ("cold", 1, 5)]


def test_chatter_on_either_stream_is_no_message(run: Run) -> None:
    chatter = "echo loading...; echo 42; echo '[]'; echo null; echo '{\"a\": 1}'; echo; echo '{'\n"
    assert run(chatter + STEP + chatter) == [("cold", 1, 5)]


def test_a_worker_that_says_much_on_standard_error_is_not_held_up(
    run: Run,
) -> None:
    flood = "head -c 3000000 /dev/zero | tr '\\0' x >&2\n"
    assert run(flood + STEP) == [("cold", 1, 5)]


def test_a_worker_that_dies_is_named_with_its_last_words(run: Run) -> None:
    with pytest.raises(EngineError, match=r"some\.module ended with status 7") as caught:
        run(STEP + "echo first >&2; echo 'out of memory' >&2; exit 7\n")
    assert caught.value.hint == "out of memory"
    with pytest.raises(EngineError, match="status -9") as caught:
        run("kill -9 $$\n")
    assert caught.value.hint == "it said nothing"


def test_an_interrupted_proof_leaves_no_worker_behind(run: Run, tmp_path: Path) -> None:
    def interrupt(*step: object) -> None:
        raise KeyboardInterrupt

    pid = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        run(f"echo $$ > {pid}\n{STEP}exec sleep 100\n", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_error_that_is_told_keeps_its_class(run: Run) -> None:
    error = StoreFull("no space left", where="here", hint="free some").as_dict()
    with pytest.raises(StoreFull, match="no space left") as caught:
        run(f"echo '{json.dumps({'error': error})}'; exit 6\n")
    assert (caught.value.where, caught.value.hint) == ("here", "free some")


def test_a_worker_by_itself_reports_its_error_and_status(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    options = {"kind": "prepare", "model": "toy:x", "folder": str(tmp_path), "samples": 5}
    job.write_text(json.dumps({**options, "seed": 0, "longest": 100, "options": {}}))
    words = [sys.executable, "-m", "kvgraft.evidence.worker", str(job)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["code"] == "unknown_model"
    assert done.stderr == ""
