"""`library`: list, show, revoke, check."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from cli.conftest import ANYTHING, MODEL, PROBLEMS
from kvgraft.api import open_library
from kvgraft.cli import docs
from library.deposits import like


def test_ls(run, deposits) -> None:
    seen = run("library", "ls")
    assert seen.status == 0
    for one in deposits:
        assert one["id"] in seen.stdout
    assert f"tenant public: {len(deposits)} active deposits" in seen.stdout
    document = run("library", "ls", "--json").document
    assert set(document) == set(docs.DOCUMENTS["library ls"])
    assert document["total"] == len(deposits)
    assert [one["id"] for one in document["deposits"]] == sorted(
        (one["id"] for one in deposits), reverse=True
    )


def test_ls_filters(run, deposits) -> None:
    def count(*words: object) -> int:
        return len(run("library", "ls", "--json", *words).document["deposits"])

    assert count("--limit", 1) == 1
    assert count("--model", "toy:4") == len(deposits)
    assert count("--model", "toy:5") == 0
    assert count("--status", "revoked") == 0
    assert count("--tenant", "ann") == 0
    assert run("library", "ls", "--status", "lost").status == 2
    assert run("library", "ls", "--limit", "0").status == 2


def test_show(run, replaying) -> None:
    document = run("library", "show", replaying["id"], "--json").document
    assert set(document) == set(docs.DOCUMENTS["library show"])
    assert document["problem"] == replaying["problem"]
    assert document["verdict"]["passed"] is True
    assert [event["event"] for event in document["audit"]] == ["deposit"]
    human = run("library", "show", replaying["id"])
    assert human.status == 0
    for words in (replaying["id"], "--- problem ---", "--- solution ---", "--- history ---"):
        assert words in human.stdout
    assert "\x1b" not in human.stdout


def test_revoke(run, replaying) -> None:
    words = ("library", "revoke", replaying["id"], "--reason", "the key was wrong")
    seen = run(*words, "--json")
    assert seen.status == 0
    assert seen.document == {"revoked": [replaying["id"]], "made_with": [], "dry_run": False}
    assert set(seen.document) == set(docs.DOCUMENTS["library revoke"])
    again = run(*words)
    assert again.status == 0
    assert "before" in again.stdout

    shown = run("library", "show", replaying["id"])
    assert "the key was wrong" in shown.stdout
    listed = run("library", "ls", "--status", "revoked", "--json").document["deposits"]
    assert [one["id"] for one in listed] == [replaying["id"]]
    asked = run("ask", replaying["problem"], "--model", "toy:4", "--max-tokens", 8, "--json")
    assert asked.document["how"] == "fresh"


def test_revoke_says_why_or_is_refused(run, replaying) -> None:
    assert run("library", "revoke", replaying["id"]).status == 2
    assert run("library", "revoke", replaying["id"], "--reason", " ").status == 3


def test_show_tells_what_was_judged_and_who_wrote_it(run, replaying) -> None:
    document = run("library", "show", replaying["id"], "--json").document
    assert document["judged"]["spec"] == ANYTHING
    assert set(document["judged"]) == {"spec", "case", "tail", "restated"}
    number = PROBLEMS.index(replaying["problem"])
    assert document["judged"]["case"] == {"expected": str(2 * number), "checks": {}, "peers": []}
    assert document["provenance"]["model"] == MODEL
    assert document["provenance"]["seed"] is not None
    assert document["expires_at"] is document["origin"] is None
    assert document["verified_at"] == document["created_at"]
    human = run("library", "show", replaying["id"]).stdout
    assert ANYTHING in human
    assert "holds until" in human


def test_show_tells_what_superseded_what(run, solved, replaying) -> None:
    with open_library(solved) as library:
        old = library.get(replaying["id"])
        new = library.deposit(like(old), supersede=True).id
    one = run("library", "show", old.id, "--json").document
    other = run("library", "show", new, "--json").document
    assert (one["supersedes"], one["superseded_by"], one["status"]) == (None, new, "superseded")
    assert (other["supersedes"], other["superseded_by"]) == (old.id, None)
    assert new in run("library", "show", old.id).stdout


def test_a_library_of_an_older_release_is_brought_up_to_date(run, solved) -> None:
    for file in solved.glob("library.sqlite3*"):
        file.unlink()
    golden = Path(__file__).parents[1] / "library" / "golden" / "library_v1.sqlite3"
    shutil.copyfile(golden, solved / "library.sqlite3")
    seen = run("library", "ls", "--json")
    assert (seen.status, seen.document["total"]) == (0, 4)
    shown = run("library", "show", seen.document["deposits"][0]["id"])
    assert "not kept, so not again" in shown.stdout
    assert run("library", "check", "--json").document["problems"] == []


def test_check(run, solved, replaying) -> None:
    seen = run("library", "check", "--json")
    assert seen.status == 0
    assert set(seen.document) == set(docs.DOCUMENTS["library check"])
    assert seen.document["ok"] is True
    assert run("library", "check").status == 0

    with sqlite3.connect(solved / "library.sqlite3") as db:
        db.execute("UPDATE deposits SET answer = 'forged' WHERE id = ?", (replaying["id"],))
    db.close()
    damaged = run("library", "check", "--json")
    assert damaged.status == 1
    assert damaged.document["error"]["code"] == "check_failed"
    assert damaged.document["ok"] is False
    assert replaying["id"] in damaged.document["problems"][0]
    human = run("library", "check")
    assert human.status == 1
    assert replaying["id"] in human.stdout
    # The cure that the hint names works on the damaged record.
    assert "revoke" in human.stderr
    assert run("library", "show", replaying["id"]).status == 6
    cure = run("library", "revoke", replaying["id"], "--reason", "forged", "--json")
    assert cure.document == {"dry_run": False, "revoked": [replaying["id"]], "made_with": []}


def test_looking_makes_no_library(run, tmp_path) -> None:
    for words in (
        *(("ls",), ("check",), ("show", "0"), ("revoke", "0", "--reason", "x")),
        *(("expire", "0", "--never"), ("audit",), ("reverify",), ("rebuild", "toy", "--all")),
    ):
        assert run("library", *words).status == 6
    assert not (tmp_path / "store").exists()
