"""`library revoke` of many, `expire` and `audit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cli.conftest import ANYTHING, MODEL
from kvgraft.api import open_library
from kvgraft.cli import docs
from kvgraft.library.records import Library
from library.deposits import like


@pytest.fixture
def library(solved) -> Library:
    return open_library(solved)


@pytest.fixture
def follow_up(library, replaying) -> str:
    """A deposit that follows up `replaying`."""
    parent = library.get(replaying["id"])
    identity = replace(parent.identity, problem="And why?", parent=parent.id)
    grounds = replace(parent.grounds, case=replace(parent.grounds.case, problem="And why?"))
    return library.deposit(like(parent, identity=identity, grounds=grounds, source="ask")).id


def active(run: Callable[..., Any]) -> set[str]:
    return {one["id"] for one in run("library", "ls", "--json").document["deposits"]}


# --- revoke ---------------------------------------------------------------------------------------


def test_revoking_all_of_a_source(run, deposits, follow_up) -> None:
    assert len(active(run)) == len(deposits) + 1
    words = ("library", "revoke", "--source", "ask", "--reason", "never looked at")
    dry = run(*words, "--dry-run", "--json")
    assert dry.document == {"revoked": [follow_up], "made_with": [], "dry_run": True}
    assert set(dry.document) == set(docs.DOCUMENTS["library revoke"])
    assert f"would revoke {follow_up}" in run(*words, "--dry-run").stdout
    assert len(active(run)) == len(deposits) + 1
    seen = run(*words, "--json")
    assert seen.document == {"revoked": [follow_up], "made_with": [], "dry_run": False}
    assert active(run) == {one["id"] for one in deposits}
    assert "no deposit fits" in run(*words).stdout


def test_revoking_all_of_a_verifier(run, deposits, replaying, follow_up) -> None:
    version = run("library", "show", replaying["id"], "--json").document["verdict"]["version"]
    words = ("library", "revoke", "--verifier", "regex", "--reason", "too lenient", "--json")
    for more in (("--verifier-version", "0"), ("--model", "toy:5"), ("--tenant", "ann")):
        assert run(*words, *more).document["revoked"] == []
    seen = run(*words, "--verifier-version", version, "--model", MODEL)
    assert set(seen.document["revoked"]) == {follow_up, *(one["id"] for one in deposits)}
    assert active(run) == set()
    asked = run("ask", replaying["problem"], "--model", MODEL, "--max-tokens", 8, "--json")
    assert asked.document["how"] == "fresh"


def test_a_dry_run_of_one_names_what_falls_with_it(run, replaying, follow_up) -> None:
    words = ("library", "revoke", replaying["id"], "--reason", "x", "--json")
    dry = run(*words, "--dry-run").document
    assert set(dry["revoked"]) == {replaying["id"], follow_up}
    assert run(*words).document == {**dry, "dry_run": False}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--reason", "x"), 2),
        (("ID", "--source", "solve", "--reason", "x"), 2),
        (("--verifier-version", "2", "--reason", "x"), 2),
        (("--source", "", "--reason", "x"), 3),
        (("--source", "solve", "--reason", " "), 3),
        (("--source", "solve"), 2),
        (("nobody", "--reason", "x"), 3),
        (("nobody", "--reason", "x", "--dry-run"), 3),
        (("ID", "--reason", "x", "--tenant", "ann"), 3),
    ],
)
def test_nothing_is_revoked_by_mistake(
    run, deposits, replaying, words: tuple[str, ...], status: int
) -> None:
    given = [replaying["id"] if word == "ID" else word for word in words]
    assert run("library", "revoke", *given).status == status
    assert len(active(run)) == len(deposits)


# --- expire ---------------------------------------------------------------------------------------


def test_expire(run, deposits, replaying, follow_up) -> None:
    id = replaying["id"]
    ask = ("ask", replaying["problem"], "--model", MODEL, "--max-tokens", 8, "--json")
    seen = run("library", "expire", id, "--in", 30, "--json")
    assert (seen.status, set(seen.document["changed"])) == (0, {id, follow_up})
    assert set(seen.document) == set(docs.DOCUMENTS["library expire"])
    shown = run("library", "show", id)
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("holds until"))
    assert line.endswith(seen.document["expires_at"])
    assert run(*ask).document["how"] == "replayed"
    past = run("library", "expire", id, "--at", "2020-01-31T12:00+02:00")
    assert f"{id} holds until 2020-01-31T10:00:00.000000+00:00" in past.stdout
    assert run(*ask).document["how"] == "fresh"
    assert active(run) == {one["id"] for one in deposits} - {id}
    expired = run("library", "ls", "--status", "expired", "--json").document
    assert {one["id"] for one in expired["deposits"]} == {id, follow_up}
    assert {one["status"] for one in expired["deposits"]} == {"expired"}
    assert "holds for good" in run("library", "expire", id, "--never").stdout
    assert "nothing to change" in run("library", "expire", id, "--never").stdout
    assert run(*ask).document["how"] == "replayed"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 2),
        (("--never", "--in", "3"), 2),
        (("--in", "3", "--at", "2027-01-01"), 2),
        (("--in", "-1"), 2),
        (("--in", "nan"), 2),
        (("--in", "1e9"), 3),
        (("--at", "soon"), 3),
        (("--never", "--tenant", "ann"), 3),
    ],
)
def test_no_end_is_refused(run, replaying, words: tuple[str, ...], status: int) -> None:
    assert run("library", "expire", replaying["id"], *words).status == status
    shown = run("library", "show", replaying["id"], "--json").document
    assert shown["expires_at"] is None


# --- audit ----------------------------------------------------------------------------------------


def test_audit(run, deposits, replaying) -> None:
    run("library", "expire", replaying["id"], "--in", 30)
    run("library", "revoke", replaying["id"], "--reason", "the key was wrong")
    seen = run("library", "audit", "--json")
    assert (seen.status, set(seen.document)) == (0, set(docs.DOCUMENTS["library audit"]))
    events = seen.document["events"]
    names = [event["event"] for event in events]
    assert names == ["deposit"] * len(deposits) + ["expire", "revoke"]
    assert events[-1]["detail"] == {"reason": "the key was wrong"}
    own = run("library", "audit", "--id", replaying["id"], "--json").document["events"]
    assert [event["event"] for event in own] == ["deposit", "expire", "revoke"]
    since = run("library", "audit", "--since", events[-1]["at"], "--json").document["events"]
    assert since == events[-1:]
    assert run("library", "audit", "--limit", 1, "--json").document["events"] == events[-1:]
    assert run("library", "audit", "--tenant", "ann", "--json").document["events"] == []
    human = run("library", "audit")
    assert "the key was wrong" in human.stdout
    assert f"{len(events)} events of tenant public" in human.stdout
    assert run("library", "audit", "--id", "nobody").status == 3
    assert run("library", "audit", "--id", replaying["id"], "--tenant", "ann").status == 3
    assert run("library", "audit", "--since", "yesterday").status == 3


def test_a_replay_that_fails_is_written_down_once(run, solved, replaying) -> None:
    for pack in solved.rglob("*.pack"):
        pack.unlink()
    with open_library(solved) as library:
        library._connection.execute(
            "UPDATE deposits SET replay_logits_sha256 = ? WHERE id = ?", ("0" * 64, replaying["id"])
        )
    for _ in range(3):
        asked = run("ask", replaying["problem"], "--model", MODEL, "--max-tokens", 8, "--json")
        assert asked.document["how"] == "fresh"
    events = run("library", "audit", "--id", replaying["id"], "--json").document["events"]
    assert [event["event"] for event in events] == ["deposit", "replay_failed"]
    assert "another digest" in events[-1]["detail"]["reason"]


def test_the_spec_is_what_solve_was_given(run, replaying) -> None:
    assert run("library", "show", replaying["id"], "--json").document["judged"]["spec"] == ANYTHING
