"""`ask`: replayed, recorded or fresh, and it says which and why."""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

import pytest

from kvgraft.cli import docs
from library.scripted import Judge

TOY = ("--model", "toy:4", "--max-tokens", 20)


def test_a_deposit_is_replayed_exactly(run, replaying) -> None:
    seen = run("ask", replaying["problem"], *TOY, "--minimum", "replayed", "--json")
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


def test_what_was_not_measured_is_said(run, replaying, no_meter) -> None:
    cost = run("ask", replaying["problem"], *TOY, "--json").document["cost"]
    assert (cost["joules"], cost["joules_from"]) == (None, None)
    assert cost["cpu_seconds"] > 0
    assert cost["model_flops"] > 0
    human = run("ask", replaying["problem"], *TOY)
    assert "model FLOPs, joules not measured" in human.stdout
    stated = run("ask", replaying["problem"], *TOY, "--watts", 7.5)
    assert " J (estimate: 7.5 W stated)" in stated.stdout
    assert run("ask", replaying["problem"], *TOY, "--watts", -1).status == 2


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


def test_below_the_minimum_nothing_is_printed_as_an_answer(run, deposits) -> None:
    words = (*TOY, "--verifier", "regex:(?s).*(?=impossible)impossible")
    for minimum in ("agreed", "proved", "replayed"):
        seen = run("ask", "Something else?", *words, "--minimum", minimum, "--json")
        assert seen.status == 1
        document = seen.document
        assert document["error"]["code"] == "below_minimum"
        assert "no_deposit" in document["error"]["hint"]
        assert (document["how"], document["grade"]) == ("fresh", "none")
        assert {"text", "answer"}.isdisjoint(document)
        # A verifier was there, so the attempt was worth making unless a replay was demanded.
        assert (document["cost"]["decode_tokens"] > 0) == (minimum != "replayed")
        human = run("ask", "Something else?", *words, "--minimum", minimum)
        assert (human.status, human.stdout) == (1, "")
        assert minimum in human.stderr
    for one in deposits:
        as_text = one["replay"] == "text_only"
        assert run("ask", one["problem"], *TOY, "--minimum", "proved").status == 0
        assert run("ask", one["problem"], *TOY, "--minimum", "replayed").status == int(as_text)


def test_transfer_and_keep(run, deposits) -> None:
    passes = ("--verifier", "regex:(?s).+", "--model", "toy:4", "--max-tokens", 200, "--json")
    words = ("ask", "What is 9 + 9?", *passes, "--transfer", "page", "--attempts", 32)
    bare = run("ask", "Something else entirely", *passes, "--transfer", "single").document
    assert (bare["how"], bare["context"]) == ("fresh", [])
    assert bare["reasons"][-1].startswith("no_related")
    # What the toy says is noise, but of 32 samples some come to an end and have an answer in them.
    seen = run(*words, "--keep").document
    assert (seen["how"], seen["grade"]) == ("transferred", "proved")
    assert sorted(seen["context"]) == seen["context"] != []
    assert set(seen["context"]) <= {one["id"] for one in deposits}
    again = run("ask", "What is 9 + 9?", *passes).document
    assert again["deposit_id"] == seen["kept"] is not None
    assert again["how"] in ("replayed", "recorded")
    # Revoking what was in context names what was made with it.
    first = seen["context"][0]
    shown = run("library", "show", first, "--json").document
    assert shown["made_with"] == [seen["kept"]]
    assert run("library", "show", seen["kept"], "--json").document["made_with"] == []
    revoked = run("library", "revoke", first, "--reason", "wrong", "--json").document
    assert (revoked["revoked"], revoked["made_with"]) == ([first], [seen["kept"]])
    human = run("library", "revoke", first, "--reason", "wrong").stdout
    assert f"made with it in context, and not revoked: {seen['kept']}" in human


@pytest.mark.parametrize(
    "words",
    [
        ("--keep",),
        ("--expected", "4"),
        ("--checks", "checks.json"),
        ("--attempts", "2"),
        ("--solutions", "2"),
        ("--transfer", "single", "--attempts", "2"),
        ("--minimum", "recorded"),
        ("--transfer", "middle"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(run, words: tuple[str, ...]) -> None:
    seen = run("ask", "Any?", *TOY, *words)
    assert seen.status == 2
    assert "error: " in seen.stderr


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
    words = (*TOY, "--minimum", "replayed")
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


def test_checks_come_from_a_file(run, tmp_path, monkeypatch) -> None:
    seen: list[object] = []

    class Seeing(Judge):
        def verify(self, case, trace):
            seen.append(case.checks)
            return super().verify(case, trace)

    monkeypatch.setattr("kvgraft.library.verify.specs.make_verifier", lambda spec: Seeing())
    file = tmp_path / "checks.json"
    words = ("ask", "Any?", "--model", "toy:4", "--max-tokens", 200, "--verifier", "judge")
    for text, checks in (('{"tests": [{"args": [1]}]}', {"tests": [{"args": [1]}]}), ("{}", {})):
        seen.clear()
        file.write_text(text, encoding="utf-8")
        done = run(*words, "--checks", file, "--expected", "4", "--json")
        assert done.status == 0, done.stderr
        assert seen == ([checks] if done.document["finished"] else [])
    for text in ("[1]", "{", '{"tests": 1e999}', "\xff"):
        file.write_text(text, encoding="latin-1")
        done = run(*words, "--checks", file)
        assert done.status == 3
        assert str(file) in done.stderr
    assert run(*words, "--checks", tmp_path / "absent.json").status == 3


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

    seen = run("ask", replaying["problem"], *TOY, "--minimum", "replayed", "--json")
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
