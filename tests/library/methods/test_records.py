"""Methods on disk: revoked at once for everybody, refused where damaged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kvgraft.errors import InputError, LimitExceeded, RecordNotFound, StoreError, StoreReadOnly
from kvgraft.library.methods.ask import Abstained, MethodAnswer
from kvgraft.library.methods.method import Method
from kvgraft.library.methods.records import Methods
from kvgraft.testing.problem_families import solved_problems
from library.methods.writer import (
    CHOICE,
    CHOICES,
    POWER,
    ask,
    instances,
    learn,
    learned,
    methods_in,
)

ASKED = instances()[0].text  # a method is right on what it was learned from, at the least

OTHER_PROCESS = """
import sys
from pathlib import Path
from kvgraft.library.methods.records import Methods
with Methods(Path(sys.argv[1])) as methods:
    for line in sys.stdin:
        print(methods.revoke(line.strip(), "seen to be wrong"), flush=True)
"""


def edit(methods: Methods, *statements: str) -> None:
    with sqlite3.connect(methods.path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def test_what_is_kept_is_read(methods: Methods, tmp_path: Path) -> None:
    method = learned(methods)
    assert method.status == "active"
    assert method.tenant == "public"
    assert method.model == "writer"
    assert len(method.programs) == 2
    assert method.types == ("integer",) * 3
    assert method.cost["decode_tokens"] == 80
    assert method.detail["shown"] == 6
    assert method.detail["held_back"] == 10
    (evidence,) = method.evidence
    assert {one.text for one in evidence.instances} == {one.text for one in instances()}
    assert evidence.deposits == ()
    with methods_in(tmp_path) as again:
        assert again.get(method.id) == method
        assert again.list("public") == (method,)
        assert again.list("ann") == ()
        assert again.matching("public", evidence.skeleton.shape) == (method,)
        assert again.matching("ann", evidence.skeleton.shape) == ()
        assert again.matching("public", "0" * 32) == ()
        assert again.check() == []
    (event,) = methods.audit(method.id)
    assert (event.event, event.method) == ("learn", method.id)


def test_it_is_opened_for_reading(methods: Methods, tmp_path: Path) -> None:
    method = learned(methods)
    with Methods(methods.path, read_only=True) as reading:
        assert isinstance(ask(reading, ASKED), MethodAnswer)
        with pytest.raises(StoreReadOnly):
            reading.revoke(method.id, "no")
    with pytest.raises(StoreError):
        Methods(tmp_path / "absent.sqlite3", read_only=True)
    assert not (tmp_path / "absent.sqlite3").exists()
    text = "This is no database. " * 9
    (tmp_path / "file").write_text(text)
    with pytest.raises(StoreError):
        Methods(tmp_path / "file" / "m.sqlite3")
    with pytest.raises(StoreError):
        Methods(tmp_path / "file")
    assert (tmp_path / "file").read_text() == text


def test_revoked_in_another_process(methods: Methods) -> None:
    method = learned(methods)
    assert isinstance(ask(methods, ASKED), MethodAnswer)
    other = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(methods.path)],
        input=f"{method.id}\n{method.id}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split() == ["True", "False"]
    said = ask(methods, ASKED)
    assert isinstance(said, Abstained)
    assert said.reason == "no_method"
    kept = methods.get(method.id)
    assert (kept.status, kept.revoke_reason) == ("revoked", "seen to be wrong")
    assert methods.list("public") == ()
    assert methods.list("public", status=None) == (kept,)
    assert [event.event for event in methods.audit(method.id)] == ["learn", "revoke"]


def test_a_revocation_is_for_good(methods: Methods) -> None:
    method = learned(methods)
    for reason, kind in (("", InputError), (" ", InputError), ("x" * 600, LimitExceeded)):
        with pytest.raises(kind):
            methods.revoke(method.id, reason)
    with pytest.raises(RecordNotFound):
        methods.revoke("nobody", "no")
    assert methods.is_active(method.id)
    assert methods.revoke(method.id, "wrong")
    assert not methods.revoke(method.id, "wrong again")
    assert methods.get(method.id).revoke_reason == "wrong"
    with pytest.raises(InputError):
        methods.extend(method.id, method.evidence[0])
    with pytest.raises(sqlite3.IntegrityError):
        edit(methods, "UPDATE methods SET status = 'active'")
    for change in ("UPDATE audit SET event = 'learn'", "DELETE FROM audit"):
        with pytest.raises(sqlite3.IntegrityError):
            edit(methods, change)
    assert not methods.is_active(method.id)


def test_what_was_revoked_can_be_learned_again(methods: Methods) -> None:
    first = learned(methods)
    methods.revoke(first.id, "wrong")
    second = learned(methods)
    assert second.id != first.id
    said = ask(methods, ASKED)
    assert isinstance(said, MethodAnswer)
    assert said.methods == (second.id,)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE methods SET content = replace(content, 'pow(', 'max(')",
        "UPDATE methods SET content = '{}'",
        "UPDATE methods SET content = 'no JSON'",
        "UPDATE methods SET content_digest = 'x'",
        "UPDATE methods SET model = 'another'",
        "UPDATE evidence SET content = replace(content, 'remainder', 'quotient_')",
        "UPDATE evidence SET content = CAST(x'ff00fe' AS TEXT)",
        "UPDATE evidence SET created_at = 'now'",
        "DELETE FROM evidence",
    ],
)
def test_a_damaged_row_answers_nothing(methods: Methods, damage: str) -> None:
    method = learned(methods)
    edit(methods, damage)
    said = ask(methods, ASKED)
    assert isinstance(said, Abstained)
    # Without its evidence nothing leads to it; else it is found, and refused.
    assert said.reason == ("no_method" if "DELETE" in damage else "damaged")
    with pytest.raises(StoreError, match="damaged"):
        methods.get(method.id)
    assert methods.list("public") == ()
    (finding,) = methods.check()
    assert method.id in finding
    assert methods.revoke(method.id, "damaged")  # the cure that the hint names
    assert isinstance(ask(methods, ASKED), Abstained)
    assert learned(methods).id != method.id
    assert isinstance(ask(methods, ASKED), MethodAnswer)


def test_the_first_evidence_cannot_be_taken_away(methods: Methods) -> None:
    method = learned(methods)
    other = instances(phrasing=1, count=6)
    assert learn(methods, other).state == "extended"
    first = methods.get(method.id).evidence[0]
    edit(methods, f"DELETE FROM evidence WHERE id = '{first.id}'")
    said = ask(methods, other[0].text)
    assert isinstance(said, Abstained)
    assert said.reason == "damaged"


def test_evidence_of_another_method_does_not_fit(methods: Methods) -> None:
    method = learned(methods)
    other = learned(methods, instances(CHOICE), *CHOICES)
    moved = f"WHERE method = '{other.id}'"
    edit(methods, f"UPDATE evidence SET method = '{method.id}' {moved}")
    for asked in (ASKED, instances(CHOICE)[0].text):
        said = ask(methods, asked)
        assert isinstance(said, Abstained)
        assert said.reason == "damaged"


def test_too_much_is_refused_whole(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgraft.library.methods.method.MAX_METHOD_ROW_CHARS", 1_000)
    with pytest.raises(LimitExceeded):
        learned(methods)
    assert methods.list("public", status=None) == ()
    assert methods.check() == []


def test_two_processes_learn_at_once(methods: Methods, tmp_path: Path) -> None:
    with methods_in(tmp_path) as other:
        one, two = learned(methods), learned_apart(other)
    assert one.id != two.id
    fresh = solved_problems(POWER, 1, 24)[16:]
    said = [ask(methods, problem.text) for problem in fresh]
    answers = [one.answer for one in said if isinstance(one, MethodAnswer)]
    assert answers
    assert all(
        isinstance(one, Abstained) or (one.answer == problem.answer and len(one.methods) == 2)
        for one, problem in zip(said, fresh, strict=True)
    )


def learned_apart(methods: Methods) -> Method:
    """As if the other had not been there yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Methods, "list", lambda *_, **__: ())
        return learned(methods)
