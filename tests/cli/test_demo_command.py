"""`demo`: what the demonstration returns, shown and judged (the demonstration has own tests)."""

from __future__ import annotations

from typing import Any

import pytest

from kvgraft.cli import demo, docs

RESULT: dict[str, Any] = {"model": "toy", "rows": [], "totals": {}, "near_misses": []}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked for and shown, in place of the demonstration itself."""
    seen: list[Any] = []

    def run_demo(options: Any, progress: Any, say: Any) -> dict[str, Any]:
        seen.append(options)
        progress("solving", 1, 2)
        say("a word")
        return RESULT

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(demo, "show", lambda result, console: seen.append(result))
    monkeypatch.setattr(demo, "passed", lambda result: True)
    return seen


def test_it_runs_and_shows(run, shown) -> None:
    seen = run("demo", "--model", "toy", "--attempts", 3, "--max-tokens", 9, "--threads", 1)
    assert seen.status == 0, seen.stderr
    assert shown == [demo.DemoOptions("toy", 3, 9, 0, 1), RESULT]
    assert "a word" in seen.stderr


def test_the_document(run, shown) -> None:
    seen = run("demo", "--json")
    assert seen.status == 0
    assert set(seen.document) == set(docs.DOCUMENTS["demo"])
    assert seen.document["passed"] is True


def test_one_that_does_not_hold(run, shown, monkeypatch) -> None:
    monkeypatch.setattr(demo, "passed", lambda result: False)
    seen = run("demo", "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["passed"] is False


def test_interrupted(run, shown, monkeypatch) -> None:
    def stop(*words: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_demo", stop)
    seen = run("demo")
    assert seen.status == 130
    assert "run it again" in seen.stderr
