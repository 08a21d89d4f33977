"""`library reverify` and `rebuild`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cli.conftest import ANYTHING, MODEL
from kvgraft.api import open_library
from kvgraft.cli import docs
from kvgraft.library import rebuild as rebuilding
from kvgraft.library import reverify as reverifying
from kvgraft.library.deposit import Grounds
from library.deposits import like


@pytest.fixture
def doubtful(solved, replaying) -> str:
    """A deposit that `exact` does not pass."""
    with open_library(solved) as library:
        one = library.get(replaying["id"])
        problem = "What is 1 + 1?"
        grounds = Grounds("exact", replace(one.grounds.case, problem=problem, expected="no"))
        identity = replace(one.identity, problem=problem)
        verdict = replace(one.verdict, verifier="exact", version="0")
        return library.deposit(like(one, identity=identity, grounds=grounds, verdict=verdict)).id


def due_now(run, *words: object) -> Any:
    return run("library", "reverify", *words, "--json")


# --- reverify -------------------------------------------------------------------------------------


def test_reverify(run, deposits) -> None:
    seen = due_now(run)
    assert (seen.status, set(seen.document)) == (0, set(docs.DOCUMENTS["library reverify"]))
    totals = {"passed": len(deposits), "failed": 0, "not_judged": 0, "revoked": 0}
    assert seen.document["totals"] == totals
    assert {one["id"] for one in seen.document["deposits"]} == {one["id"] for one in deposits}
    assert due_now(run, "--due", 30).document["deposits"] == []
    assert due_now(run, "--due", 0).document["totals"] == totals
    assert due_now(run, "--tenant", "ann").document["deposits"] == []
    human = run("library", "reverify")
    assert f"{len(deposits)} deposits: {len(deposits)} passed, 0 failed" in human.stdout
    shown = run("library", "show", deposits[0]["id"], "--json").document
    assert shown["verified_at"] > shown["created_at"]


def test_what_does_not_pass_is_status_1_until_it_is_revoked(run, deposits, doubtful) -> None:
    seen = due_now(run)
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["totals"]["failed"] == 1
    (bad,) = (one for one in seen.document["deposits"] if one["outcome"] == "failed")
    assert (bad["id"], bad["revoked"]) == (doubtful, [])
    human = run("library", "reverify", "--id", doubtful)
    assert human.status == 1
    assert f"{doubtful}  failed: the solution does not pass" in human.stdout
    assert "--revoke-failed" in human.stderr
    done = due_now(run, "--revoke-failed")
    assert (done.status, done.document["totals"]["revoked"]) == (0, 1)
    shown = run("library", "show", doubtful, "--json").document
    assert shown["status"] == "revoked"
    assert shown["revoke_reason"].startswith("verified again with exact")
    assert [event["event"] for event in shown["audit"]][-2:] == ["reverify", "revoke"]
    assert due_now(run).status == 0


def test_one_deposit_or_one_verifier(run, deposits, doubtful) -> None:
    alone = due_now(run, "--id", deposits[0]["id"])
    assert [one["id"] for one in alone.document["deposits"]] == [deposits[0]["id"]]
    assert [one["id"] for one in due_now(run, "--verifier", "exact").document["deposits"]] == [
        doubtful
    ]
    assert due_now(run, "--verifier", ANYTHING).document["totals"]["passed"] == len(deposits)
    assert due_now(run, "--verifier", "regex:x").document["deposits"] == []
    for words, status in (
        (("--id", "nobody"), 3),
        (("--id", doubtful, "--tenant", "ann"), 3),
        (("--id", doubtful, "--due", 3), 2),
        (("--due", -1), 2),
        (("--due", 1e9), 3),
        (("--verifier", "nothing"), 2),
    ):
        assert run("library", "reverify", *words).status == status


def test_a_command_is_run_where_it_is_named(run, solved, replaying, tmp_path) -> None:
    mark, script = tmp_path / "it ran", tmp_path / "check.py"
    script.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    spec = f"command:{sys.executable} {script}"
    with open_library(solved) as library:
        one = library.get(replaying["id"])
        grounds = replace(one.grounds, spec=spec)
        id = library.deposit(like(one, grounds=grounds), supersede=True).id
    (seen,) = due_now(run, "--id", id).document["deposits"]
    assert (seen["outcome"], mark.exists()) == ("not_judged", False)
    assert "--verifier" in seen["reason"]
    assert due_now(run, "--verifier", spec).document["totals"]["passed"] == 1
    assert mark.exists()


def test_reverify_stopped_tells_what_is_done(run, deposits, monkeypatch) -> None:
    whole = reverifying.reverify

    def interrupted(*given: Any, **named: Any) -> Iterator[Any]:
        yield next(whole(*given, **named))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reverifying, "reverify", interrupted)
        seen = due_now(run)
    assert seen.status == 130
    assert seen.document["totals"]["passed"] == 1
    assert "--due" in seen.document["error"]["hint"]
    # The rest comes first.
    rest = due_now(run).document["deposits"]
    assert rest[-1]["id"] == seen.document["deposits"][0]["id"]


# --- rebuild --------------------------------------------------------------------------------------


def test_rebuild(run, solved, deposits, replaying) -> None:
    seen = run("library", "rebuild", "toy:5", "--all", "--json")
    assert (seen.status, set(seen.document)) == (0, set(docs.DOCUMENTS["library rebuild"]))
    assert len(seen.document["deposits"]) == len(deposits)
    totals = seen.document["totals"]
    assert totals["replays"] + totals["text_only"] == len(deposits)
    again = run("library", "rebuild", "toy:5", "--all", "--json").document
    assert again["totals"] == {
        "replays": 0,
        "text_only": 0,
        "known": 2 * len(deposits),
        "failed": 0,
    }
    made = next(one["made"] for one in seen.document["deposits"] if one["id"] == replaying["id"])
    shown = run("library", "show", made, "--json").document
    assert (shown["origin"], shown["source"], shown["model"]) == (
        replaying["id"],
        "rebuild",
        "toy:5",
    )
    assert shown["answer"] == replaying["answer"]
    asked = run("ask", replaying["problem"], "--model", "toy:5", "--max-tokens", 8, "--json")
    assert asked.document["deposit_id"] == made
    own = run("ask", replaying["problem"], "--model", MODEL, "--json").document
    assert (own["deposit_id"], own["how"], own["exact"]) == (replaying["id"], "replayed", True)
    # One wrong key, one command.
    run("library", "revoke", made, "--reason", "the key was wrong")
    for model in (MODEL, "toy:5"):
        asked = run("ask", replaying["problem"], "--model", model, "--max-tokens", 8, "--json")
        assert asked.document["how"] == "fresh"


def test_rebuild_one(run, deposits, replaying) -> None:
    human = run("library", "rebuild", "toy:5", "--id", replaying["id"])
    assert human.status == 0
    assert "1 deposit: " in human.stdout
    assert replaying["id"] in human.stdout
    same = run("library", "rebuild", MODEL, "--id", replaying["id"], "--json").document
    assert same["totals"]["known"] == 1


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("toy:5",), 2),
        (("toy:5", "--all", "--id", "x"), 2),
        (("--all",), 2),
        (("no such model", "--all"), 4),
        (("toy:5", "--id", "nobody"), 3),
        (("toy:5", "--id", "ID", "--tenant", "ann"), 3),
    ],
)
def test_rebuild_refuses(run, replaying, words: tuple[str, ...], status: int) -> None:
    given = [replaying["id"] if word == "ID" else word for word in words]
    assert run("library", "rebuild", *given).status == status


def test_rebuild_stopped_tells_what_is_done(run, deposits, monkeypatch) -> None:
    whole = rebuilding.rebuild

    def interrupted(*given: Any, **named: Any) -> Iterator[Any]:
        yield next(whole(*given, **named))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "rebuild", interrupted)
        seen = run("library", "rebuild", "toy:5", "--all", "--json")
    assert seen.status == 130
    assert len(seen.document["deposits"]) == 1
    rest = run("library", "rebuild", "toy:5", "--all", "--json").document["totals"]
    assert rest["replays"] + rest["text_only"] == len(deposits) - 1
