"""`kvgraft study`: registered, run in processes of its own, scored, on a page."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import invoke
from kvgraft.cli import docs

PLAN: dict[str, Any] = {
    "name": "toy",
    "question": "What does a library give a model that talks noise?",
    "seed": 3,
    "models": [
        {"name": "toy:4", "label": "noise"},
        {"name": "toy:5", "label": "other", "library": False},
    ],
    "sets": [{"name": "sums", "families": ["add", "gift"], "count": 6}],
    "verifier": "regex:(?s).+",  # noise passes, if there is an answer in it
    "solve": {"attempts": 4, "max_new_tokens": 64},
    "ask": {"max_new_tokens": 24},
    "controls": ["emptied"],
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**PLAN, **changes}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    made = invoke(["study", "run", write(folder / "plan.json"), "--out", folder / "run"])
    assert made.status == 0, made.stderr
    assert (folder / "run" / "report.html").is_file()
    assert "registered as" in made.stdout
    assert "Problems that were deposited and asked again" in made.stdout
    return folder


@pytest.fixture
def done(done_once: Path, tmp_path: Path) -> Path:
    """The folder of a finished study and its protocol, to be changed."""
    shutil.copytree(done_once, tmp_path / "done")
    return tmp_path / "done"


def test_it_registers_runs_scores_and_tells(done: Path) -> None:
    figures = json.loads((done / "run" / "figures.json").read_text())
    assert figures["models"]["noise"]["deposits"]["deposited"] >= 1
    assert set(figures["models"]["other"]["conditions"]) == {"greedy", "vote"}
    names = {path.name for path in (done / "run" / "results").iterdir()}
    assert {"noise.library.jsonl.gz", "other.vote.jsonl.gz"} <= names
    assert all(name.endswith(".gz") for name in names)
    emptied = figures["models"]["noise"]["controls"]["emptied"]
    assert emptied["same_as_bare"] == emptied["problems"] > 0  # over two processes


def test_json_is_one_document(run: Callable[..., Any], done: Path) -> None:
    made = run("study", "run", done / "plan.json", "--out", done / "run", "--resume", "--json")
    assert made.status == 0
    assert set(made.document) == set(docs.DOCUMENTS["study run"])
    figures = json.loads((done / "run" / "figures.json").read_text())
    assert made.document == figures


def test_a_registered_folder_is_gone_on_with_on_request(
    run: Callable[..., Any], done: Path
) -> None:
    again = run("study", "run", done / "plan.json", "--out", done / "run")
    assert again.status == 1
    assert "registered study" in again.stderr
    assert "--resume" in again.stderr
    write(done / "plan.json", seed=4)
    other = run("study", "run", done / "plan.json", "--out", done / "run", "--resume")
    assert other.status == 1
    assert "registered otherwise: protocol differs in seed" in other.stderr


def test_scoring_and_the_page_are_made_again(
    run: Callable[..., Any], done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (done / "run" / "report.html").read_text()
    (done / "run" / "report.html").unlink()
    shutil.rmtree(done / "run" / "stores")
    scored = run("study", "score", done / "run", "--json")
    assert scored.status == 0
    assert set(scored.document) == set(docs.DOCUMENTS["study score"])
    assert (done / "run" / "report.html").read_text() == before
    monkeypatch.chdir(done)
    told = run("study", "report", done / "run", "-o", "other.html", "--json")
    assert told.status == 0
    assert told.document == scored.document
    assert (done / "other.html").read_text() == before
    assert "noise.library" in (done / "run" / "results" / "noise.library.jsonl.gz").name


def test_failed_controls_are_a_status_and_a_page(run: Callable[..., Any], done: Path) -> None:
    path = done / "run" / "figures.json"
    figures = json.loads(path.read_text())
    path.write_text(json.dumps({**figures, "controls_verified_wrongly": 2}))
    told = run("study", "report", done / "run", "--json")
    assert told.status == 1
    assert told.document["error"]["code"] == "check_failed"
    assert told.document["controls_verified_wrongly"] == 2
    assert "CONTROLS FAILED" in (done / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"seeds": 1}, 3, "unknown keys seeds"),
        ({"sets": [{"name": "a", "file": "absent.jsonl"}]}, 3, "no such data file"),
        ({"verifier": "exact"}, 3, "compares with the key"),
        ({"verifier": "guess"}, 2, "no verifier"),
        ({"models": [{"name": "no/such/model", "label": "a"}]}, 4, "no/such/model"),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_is_registered(
    run: Callable[..., Any], tmp_path: Path, changes: dict[str, Any], status: int, words: str
) -> None:
    plan = write(tmp_path / "plan.json", **changes)
    made = run("study", "run", plan, "--out", tmp_path / "run")
    assert made.status == status, made.stderr
    assert words in made.stderr
    assert not (tmp_path / "run" / "registration.json").exists()


def test_no_study_no_score(run: Callable[..., Any], tmp_path: Path) -> None:
    for words in (("score", tmp_path), ("report", tmp_path), ("score", tmp_path / "absent")):
        made = run("study", *words)
        assert made.status == 3
        assert "no registered study" in made.stderr or "not scored" in made.stderr
    absent = run("study", "run", tmp_path / "absent.json", "--out", tmp_path / "run")
    assert absent.status == 3


def test_ctrl_c_loses_at_most_the_row_being_made(
    run: Callable[..., Any], start: Callable[..., Any], tmp_path: Path, done_once: Path
) -> None:
    plan = write(tmp_path / "plan.json")
    process = start("study", "run", plan, "--out", tmp_path / "run")
    first = tmp_path / "run" / "results" / "noise.greedy.jsonl"
    packed = first.with_name("noise.greedy.jsonl.gz")
    give_up = time.monotonic() + 100
    while not first.exists() and not packed.exists() and time.monotonic() < give_up:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert not (tmp_path / "run" / "figures.json").exists()
    again = run("study", "run", plan, "--out", tmp_path / "run", "--resume", "--json")
    assert again.status == 0, again.stderr
    whole = json.loads((done_once / "run" / "figures.json").read_text())
    for name, groups in again.document["models"]["noise"]["conditions"].items():
        for group, one in groups.items():
            other = whole["models"]["noise"]["conditions"][name][group]
            assert (one or {}).get("right") == (other or {}).get("right")
            assert (one or {}).get("how") == (other or {}).get("how")
