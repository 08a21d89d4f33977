"""`follow-up`: from the deposit's state, compared with the same words sent again."""

from __future__ import annotations

import pytest

from kvgraft.cli import docs

TOY = ("--model", "toy:4", "--max-tokens", 20)


def test_a_follow_up_goes_on_and_is_compared(run, replaying) -> None:
    words = ("follow-up", replaying["id"], "Explain step 2.", *TOY)
    seen = run(*words, "--compare", "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["follow-up"])
    assert set(document["answer"]) == set(docs.DOCUMENTS["ask"])
    assert (document["parent"], document["answer"]["how"]) == (replaying["id"], "fresh")
    compared = document["compared"]
    assert compared["same_logits"] is True
    assert compared["continued"]["reused_tokens"] > 0 == compared["resent"]["reused_tokens"]
    assert compared["continued"]["prefill_tokens"] < compared["resent"]["prefill_tokens"]

    human = run(*words, "--compare")
    assert human.status == 0
    for word in ("from the state", "as text again", "same logits", "fresh"):
        assert word in human.stdout
    assert "same logits" not in run(*words).stdout


def test_other_logits_are_a_failed_check(run, replaying, monkeypatch) -> None:
    from kvgraft.library import followup

    compare = followup._compare

    def other(*arguments: object) -> followup.Comparison:
        found = compare(*arguments)
        return followup.Comparison(found.continued, found.resent, False)

    monkeypatch.setattr(followup, "_compare", other)
    words = ("follow-up", replaying["id"], "Explain step 2.", *TOY, "--compare")
    seen = run(*words, "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["compared"]["same_logits"] is False
    assert run(*words).status == 1


def test_the_same_follow_up_is_replayed_once_it_was_kept(run, replaying) -> None:
    def words(question: str) -> tuple[object, ...]:
        return ("follow-up", replaying["id"], question, "--model", "toy:4", "--max-tokens", 400)

    # What the toy says is noise: some of it comes to an end and has an answer in it.
    for question in "abcdefghijklmnopqrstuvwxyz":
        passing = (*words(question), "--verifier", "regex:(?s).+", "--keep", "--json")
        made = run(*passing).document["answer"]
        assert made["how"] == "fresh"
        assert (made["kept"] is None) == (made["grade"] == "none")
        if made["kept"]:
            break
    again = run(*words(question), "--compare", "--json").document
    assert again["answer"]["deposit_id"] == made["kept"] is not None
    assert again["answer"]["how"] in ("replayed", "recorded")
    assert again["compared"] is None
    assert "not compared" in run(*words(question), "--compare").stdout
    shown = run("library", "show", made["kept"], "--json").document
    assert (shown["parent"], shown["source"]) == (replaying["id"], "ask")


def test_a_question_may_come_from_a_file(run, replaying, tmp_path) -> None:
    file = tmp_path / "question.txt"
    file.write_text("Why?\n")
    words = ("follow-up", replaying["id"], *TOY, "--json")
    texts = [
        run(*words, "Why?"),
        run(*words, "--file", file),
        run(*words, "--file", "-", stdin="Why?\r\n"),
    ]
    same = {one.document["answer"]["logits_sha256"] for one in texts}
    assert len(same) == 1
    assert run(*words, "Why").document["answer"]["logits_sha256"] not in same
    assert run(*words).status == 2


def test_a_revoked_deposit_is_refused(run, replaying) -> None:
    run("library", "revoke", replaying["id"], "--reason", "the key was wrong")
    seen = run("follow-up", replaying["id"], "Why?", *TOY, "--json")
    assert seen.status == 3
    assert seen.document["error"]["code"] == "deposit_revoked"
    assert "the key was wrong" in seen.document["error"]["what"]


@pytest.mark.parametrize("words", [("--keep",), ("--expected", "4")], ids=" ".join)
def test_options_for_a_verifier_need_one(run, replaying, words: tuple[str, ...]) -> None:
    assert run("follow-up", replaying["id"], "Why?", *TOY, *words).status == 2


def test_another_tenants_deposit_is_not_there(run, replaying) -> None:
    seen = run("follow-up", replaying["id"], "Why?", *TOY, "--tenant", "B", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (3, "record_not_found")


def test_below_the_minimum_there_is_no_answer(run, replaying) -> None:
    words = ("follow-up", replaying["id"], "Why?", *TOY, "--minimum", "replayed")
    human = run(*words)
    assert (human.status, human.stdout) == (1, "")
    document = run(*words, "--json").document
    assert document["error"]["code"] == "below_minimum"
    assert (document["how"], document["grade"]) == ("fresh", "none")
    assert document["cost"]["decode_tokens"] == 0
    assert "answer" not in document
