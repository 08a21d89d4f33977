"""`ask`: replayed, recorded or fresh, and it says which and why."""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

import pytest

from kvgraft.cli import docs

TOY = ("--model", "toy:4", "--max-tokens", 20)


def test_a_deposit_is_replayed_exactly(run, replaying) -> None:
    seen = run("ask", replaying["problem"], *TOY, "--require", "replayed", "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["ask"])
    assert (document["how"], document["exact"], document["grade"]) == ("replayed", True, "proved")
    assert document["answer"] == replaying["answer"]
    assert document["deposit_id"] == replaying["id"]
    assert document["cost"]["prefill_tokens"] == 0
    assert document["cost"]["reused_tokens"] > 0
    assert document["provenance"]["verifier"] == "regex"
    assert document["reasons"] == []

    human = run("ask", replaying["problem"], *TOY)
    assert human.status == 0
    for words in ("replayed", "proved", "SHA-256", replaying["id"], "restored"):
        assert words in human.stdout


@pytest.mark.parametrize("load", ["always", "measured", "never"])
def test_how_the_state_is_come_by_changes_nothing_else(run, replaying, load: str) -> None:
    seen = run("ask", replaying["problem"], *TOY, "--load", load, "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert (document["how"], document["answer"]) == ("replayed", replaying["answer"])
    cost = document["cost"]
    if load != "measured":
        assert (cost["reused_tokens"] > 0, cost["prefill_tokens"] > 0) == (
            load == "always",
            load == "never",
        )


def test_the_toy_is_said_to_be_noise_and_no_control_character_comes_out(run, tmp_path) -> None:
    seen = run("ask", "Any?", "--model", "toy", "--max-tokens", 200, "--store", tmp_path)
    assert "its answers are noise" in seen.stderr
    assert "\\x" in seen.stdout  # it did say some
    controls = {"Cc", "Cf"}
    assert not [c for c in seen.stdout if unicodedata.category(c) in controls and c not in "\n\t"]


def test_a_fresh_attempt_says_so(run, solved) -> None:
    seen = run("ask", "Something else?", *TOY, "--json")
    assert seen.status == 0
    document = seen.document
    assert (document["how"], document["grade"], document["exact"]) == ("fresh", "none", None)
    assert document["reasons"] == ["no_deposit: nothing at this exact address"]
    human = run("ask", "Something else?", *TOY)
    assert "no_deposit: nothing at this exact address" in human.stdout
    assert "cut off" in human.stdout


def test_requiring_more_than_there_is_fails(run, deposits) -> None:
    seen = run("ask", "Something else?", *TOY, "--require", "recorded", "--json")
    assert seen.status == 1
    document = seen.document
    assert document["error"]["code"] == "check_failed"
    assert "no_deposit" in document["error"]["hint"]
    assert document["how"] == "fresh"
    for one in deposits:
        as_text = one["replay"] == "text_only"
        assert run("ask", one["problem"], *TOY, "--require", "recorded").status == 0
        assert run("ask", one["problem"], *TOY, "--require", "replayed").status == int(as_text)


def test_a_text_only_deposit_says_why(run, deposits) -> None:
    texts = [one for one in deposits if one["replay"] == "text_only"]
    for one in texts:
        seen = run("ask", one["problem"], *TOY, "--json").document
        assert seen["how"] == "recorded"
        assert seen["reasons"][0].startswith("text_only: ")


def test_the_problem_from_a_file_and_from_standard_input(run, replaying, tmp_path) -> None:
    file = tmp_path / "problem.txt"
    # A line end at the end is no part of a problem, whichever style it has.
    file.write_bytes(replaying["problem"].encode() + b"\r\n")
    words = (*TOY, "--require", "replayed")
    assert run("ask", "--file", file, *words).status == 0
    assert run("ask", "--file", "-", *words, stdin=replaying["problem"] + "\n").status == 0


def test_the_system_text_is_part_of_the_address(run, replaying) -> None:
    seen = run("ask", replaying["problem"], *TOY, "--system", "Be brief.", "--json")
    assert seen.document["how"] == "fresh"


def test_another_model_does_not_use_the_states(run, replaying) -> None:
    words = ("--model", "toy:5", "--max-tokens", 20, "--json")
    other = run("ask", "Something else?", *words).document
    assert other["reuse"]["reused_tokens"] == 0
    (miss,) = other["reuse"]["misses"]
    assert miss.startswith(("fingerprint: ", "not_stored: "))
    assert run("ask", replaying["problem"], *words).document["exact"] is None


def test_a_verifier_judges_a_fresh_attempt(run, solved) -> None:
    words = ("--model", "toy:4", "--max-tokens", 64, "--json")
    seen = run("ask", "Something else?", *words, "--verifier", "exact", "--expected", "no")
    assert seen.status == 0
    document = seen.document
    assert (document["how"], document["grade"]) == ("fresh", "none")
    if document["finished"]:
        assert document["provenance"]["verifier"] == "exact"


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_a_damaged_artifact_is_a_named_miss_and_computed_again(
    run, solved, replaying, damage
) -> None:
    packs = sorted((solved / "blobs").rglob("*.pack"))
    assert len(packs) > 1
    if damage == "swap":
        _swap_all(packs)
    for pack in packs if damage != "swap" else ():
        data = bytearray(pack.read_bytes())
        data[300] ^= 1
        pack.write_bytes(data if damage == "flip" else data[:-5])
    checked = run("store", "check", "--json")
    assert checked.status == 1
    assert checked.document["error"]["code"] == "check_failed"
    assert checked.document["problems"]

    seen = run("ask", replaying["problem"], *TOY, "--require", "replayed", "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert document["answer"] == replaying["answer"]
    assert document["cost"]["reused_tokens"] == 0
    assert any(reason.startswith("artifact_") for reason in document["reasons"])

    alarms = run("store", "check", "--json").document["alarms"]
    assert {alarm["kind"] for alarm in alarms} == {"damaged"}
    assert {alarm["role"] for alarm in alarms} <= {"keep", "near", "end"}
    human = run("store", "check")
    assert human.status == 1
    assert "damaged" in human.stdout


def _swap_all(packs: list[Path]) -> None:
    contents = [pack.read_bytes() for pack in packs]
    for pack, content in zip(packs, contents[1:] + contents[:1], strict=True):
        pack.write_bytes(content)


def test_asking_does_not_change_a_deposit(run, replaying) -> None:
    before = run("library", "show", replaying["id"], "--json").stdout
    run("ask", replaying["problem"], *TOY)
    after = run("library", "show", replaying["id"], "--json").stdout
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (before, after)]
    assert digests[0] == digests[1]
