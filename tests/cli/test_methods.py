"""`method`: learn, list, show, ask, revoke."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kvgraft.cli import docs
from kvgraft.library.methods.learn import instances_of
from kvgraft.library.records import Library
from library.methods.deposited import deposits
from library.methods.writer import POWERS, instances, learn, methods_in


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(os.environ["KVGRAFT_STORE"])


@pytest.fixture
def method(store: Path) -> str:
    """The id of a method that was learned from deposits."""
    store.mkdir()
    with methods_in(store) as methods, Library.open(store / "library.sqlite3") as library:
        deposits(library, instances())
        outcome = learn(methods, instances_of(library, "public"), *POWERS, library=library)
        assert outcome.method is not None
        return outcome.method


def file_of(path: Path, **of: Any) -> Path:
    rows = [{"problem": one.text, "answer": one.answer} for one in instances(**of)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_ask(run, method) -> None:
    problem = instances()[0]
    seen = run("method", "ask", problem.text, "--json")
    assert seen.status == 0, seen.stderr
    assert set(seen.document) == set(docs.DOCUMENTS["method ask"])
    assert seen.document["answered"] is True
    assert seen.document["answer"] == problem.answer
    assert seen.document["grade"] == "agreed"
    assert seen.document["methods"] == [method]
    assert seen.document["cost"]["decode_tokens"] == 0
    human = run("method", "ask", problem.text)
    assert human.stdout.startswith(f"{problem.answer}\n")
    assert method in human.stdout


def test_abstaining_is_status_1(run, method) -> None:
    text = instances()[0].text.replace("remainder", "quotient")
    seen = run("method", "ask", text, "--json")
    assert seen.status == 1
    assert set(seen.document) == {*docs.DOCUMENTS["method ask"], "error"}
    assert seen.document["answered"] is False
    assert seen.document["answer"] is None
    assert seen.document["reason"] == "another_text"
    assert seen.document["error"]["code"] == "check_failed"
    human = run("method", "ask", text)
    assert human.status == 1
    assert "another text" in human.stderr
    assert human.stdout == ""
    assert run("method", "ask").status == 2
    assert run("method", "ask", text, "--tenant", "ann").status == 1


def test_a_problem_from_a_file(run, method, tmp_path) -> None:
    problem = instances()[0]
    (tmp_path / "problem.txt").write_text(problem.text + "\n")
    seen = run("method", "ask", "--file", tmp_path / "problem.txt")
    assert seen.stdout.startswith(problem.answer)


def test_ls_and_show(run, method) -> None:
    listed = run("method", "ls", "--json").document
    assert set(listed) == set(docs.DOCUMENTS["method ls"])
    (row,) = listed["methods"]
    assert row["id"] == method
    assert row["state"] == "active"
    assert row["problems"] == 16
    assert row["phrasings"] == ["What is the remainder when {a}^{b} is divided by {c}?"]
    assert method in run("method", "ls").stdout
    assert run("method", "ls", "--tenant", "ann", "--json").document["methods"] == []

    shown = run("method", "show", method, "--json").document
    assert set(shown) == set(docs.DOCUMENTS["method show"])
    assert shown["programs"] == list(POWERS)
    (evidence,) = shown["evidence"]
    assert len(evidence["deposits"]) == 16
    assert [event["event"] for event in shown["audit"]] == ["learn"]
    human = run("method", "show", method)
    for words in (method, "return pow(a, b, c)", "--- phrasings ---", "--- history ---"):
        assert words in human.stdout
    assert run("method", "show", method, "--tenant", "ann").status == 3
    assert run("method", "show", "nobody").status == 3


def test_revoke(run, method) -> None:
    assert run("method", "revoke", method).status == 2
    assert run("method", "revoke", method, "--reason", " ").status == 3
    assert run("method", "revoke", method, "--reason", "wrong", "--tenant", "ann").status == 3
    assert run("method", "ask", instances()[0].text).status == 0
    seen = run("method", "revoke", method, "--reason", "wrong for zero", "--json")
    assert seen.document == {"revoked": [method]}
    assert set(seen.document) == set(docs.DOCUMENTS["method revoke"])
    assert "before" in run("method", "revoke", method, "--reason", "again").stdout
    assert run("method", "ask", instances()[0].text).status == 1
    assert run("method", "ls", "--json").document["methods"] == []
    (row,) = run("method", "ls", "--all", "--json").document["methods"]
    assert (row["state"], row["why"]) == ("revoked", "wrong for zero")


def test_a_method_falls_with_its_deposit(run, method, store) -> None:
    deposit = run("method", "show", method, "--json").document["evidence"][0]["deposits"][4]
    assert run("library", "revoke", deposit, "--reason", "the key was wrong").status == 0
    seen = run("method", "ask", instances()[0].text, "--json")
    assert seen.status == 1
    assert seen.document["reason"] == "fallen"
    assert deposit in seen.document["detail"]
    (row,) = run("method", "ls", "--json").document["methods"]
    assert row["state"] == "fallen"
    assert "the key was wrong" in row["why"]
    (store / "library.sqlite3").rename(store / "elsewhere")
    assert run("method", "ask", instances()[0].text, "--json").document["reason"] == "fallen"


def test_a_damaged_method_can_be_revoked(run, method, store) -> None:
    with sqlite3.connect(store / "methods.sqlite3") as db:
        db.execute("UPDATE methods SET model = 'forged'")
    db.close()
    assert run("method", "show", method).status == 6
    assert run("method", "ask", instances()[0].text, "--json").document["reason"] == "damaged"
    assert run("method", "revoke", method, "--reason", "damaged").status == 0


def test_learn_from_deposits(run, method, store, tmp_path) -> None:
    again = run("method", "learn", "--json")
    assert again.status == 0, again.stderr
    assert set(again.document) == set(docs.DOCUMENTS["method learn"])
    assert [one["state"] for one in again.document["outcomes"]] == ["known"]
    with Library.open(store / "library.sqlite3") as library:
        ids = deposits(library, instances(phrasing=1, count=6))
    text = instances(phrasing=1)[0].text
    assert run("method", "ask", text).status == 1
    few = run("method", "learn", *ids[:4], "--json").document["outcomes"]
    assert [one["state"] for one in few] == ["not_learned"]
    seen = run("method", "learn", *ids)
    assert "extended" in seen.stdout
    assert method in seen.stdout
    assert "0 tokens decoded" in seen.stdout
    assert run("method", "ask", text).status == 0
    assert run("method", "learn", "nobody").status == 3


def test_learn_from_a_file(run, store, tmp_path) -> None:
    path = file_of(tmp_path / "solved.jsonl")
    seen = run("method", "learn", "--problems", path, "--json")
    assert seen.status == 0, seen.stderr
    (outcome,) = seen.document["outcomes"]
    assert (outcome["state"], outcome["instances"]) == ("not_learned", 16)
    assert "no model was given" in outcome["detail"]
    without = tmp_path / "without.jsonl"
    without.write_text('{"problem": "What is 5?"}\n')
    assert run("method", "learn", "--problems", without).status == 3
    assert run("method", "learn", "--problems", tmp_path / "absent.jsonl").status == 3


def test_learn_with_a_model_that_writes_noise(run, store, tmp_path) -> None:
    path = file_of(tmp_path / "solved.jsonl")
    words = ("--model", "toy", "--attempts", 2, "--max-tokens", 8)
    seen = run("method", "learn", "--problems", path, *words, "--json")
    assert seen.status == 0, seen.stderr
    (outcome,) = seen.document["outcomes"]
    assert outcome["state"] == "not_learned"
    assert outcome["cost"]["attempts"] == 4  # both batches
    assert outcome["cost"]["decode_tokens"] > 0
    assert run("method", "ls", "--json").document["methods"] == []


def test_looking_makes_nothing(run, store) -> None:
    words = (("ls",), ("show", "0"), ("ask", "What?"), ("revoke", "0", "--reason", "x"))
    for one in words:
        assert run("method", *one).status == 6
    assert run("method", "learn").status == 3
    assert not (store / "methods.sqlite3").exists()
