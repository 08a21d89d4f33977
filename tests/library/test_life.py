"""The life of a deposit: revoked, expired, superseded, judged again, and all of it written down."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft import limits
from kvgraft.errors import (
    BelowMinimum,
    DepositExpired,
    DepositRevoked,
    InputError,
    LimitExceeded,
    RecordNotFound,
    StoreError,
    StoreFull,
    StoreReadOnly,
    UsageError,
)
from kvgraft.library import ask as asking
from kvgraft.library import life, times
from kvgraft.library.address import AddressSpace, RequestIdentity
from kvgraft.library.ask import ask
from kvgraft.library.deposit import Deposit, Grounds, NewDeposit, check_trusted
from kvgraft.library.followup import follow_up
from kvgraft.library.life import FAILED, NOT_JUDGED, PASSED
from kvgraft.library.problem import Problem
from kvgraft.library.rebuild import rebuild
from kvgraft.library.records import Library
from kvgraft.library.related import related
from kvgraft.library.replay import replay
from kvgraft.library.reverify import Verifiers
from kvgraft.library.rows import encode, from_row, seal
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES
from library.scripted import FOUR, SOLUTION, ScriptedEngine, opened, run, solving_engine

SPACE = AddressSpace(
    RequestIdentity(problem="", tenant="default", template_digest="t", tokenizer_digest="k")
)
WHY = "no longer trusted"
LONG_AGO, FAR = "2020-01-01T00:00:00.000000+00:00", "2999-01-01T00:00:00.000000+00:00"
LATER = "2998-01-01T00:00:00.000000+00:00"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "library.sqlite3"


@pytest.fixture
def library(path: Path) -> Iterator[Library]:
    with Library.open(path) as opened:
        yield opened


def new(problem: str = "What is 2 + 2?", **changes: Any) -> NewDeposit:
    identity = SPACE.identity(problem)
    case = Case(problem, expected="4")
    fields: dict[str, Any] = {
        "identity": replace(identity, parent=changes.pop("parent", None)),
        "model": "demo:toy",
        "fingerprint": "f",
        "prompt": problem,
        "trace": "It is 4.",
        "cue": "",
        "token_ids": (1, 2),
        "answer": "4",
        "answer_ids": (),
        "verdict": Verdict(True, "proved", "4", "exact", "1", {}),
        "cost": {},
        "grounds": Grounds("exact", case),
        "finished": True,
    }
    return NewDeposit(**{**fields, **changes})


def judged_by(verifier: str, version: str = "1") -> Verdict:
    return Verdict(True, "proved", "4", verifier, version, {})


def family(library: Library) -> dict[str, str]:
    """A solution, its copy for another engine, follow-ups of both; and a stranger."""
    root = library.deposit(new()).id
    child = library.deposit(new("why?", parent=root)).id
    copy = library.deposit(new(fingerprint="g", origin=root)).id
    second = library.deposit(new(fingerprint="h", origin=root)).id
    of_copy = library.deposit(new("why?", parent=copy, fingerprint="g")).id
    stranger = library.deposit(new("What is 3 + 1?")).id
    return {
        "root": root,
        "child": child,
        "copy": copy,
        "second": second,
        "of_copy": of_copy,
        "stranger": stranger,
    }


def misses(library: Library, deposit: Deposit) -> bool:
    """Whether no way to a deposit by its address leads to it; all of them agree."""
    where, tenant, fingerprint = deposit.address, deposit.tenant, deposit.fingerprint
    found = library.find(where, tenant, fingerprint)
    gone = {
        library.lookup(where, tenant, fingerprint) != deposit.id,
        found is None or found.id != deposit.id,
        library.holder(where, tenant, fingerprint) != deposit.id,
        not library.is_active(deposit.id),
        deposit.id not in [one.id for one in library.list(status="active")],
        deposit.id not in library.active_ids(tenant),
        deposit.id not in library.due(tenant=tenant),
    }
    assert len(gone) == 1
    return gone.pop()


# --- revocation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["root", "copy", "second"])
def test_all_states_of_a_solution_stand_and_fall_together(library: Library, member: str) -> None:
    ids = family(library)
    stranger = ids.pop("stranger")
    dry = library.revoke(ids[member], WHY, dry_run=True)
    assert library.count() == 6
    assert library.revoke(ids[member], WHY) == tuple(sorted(ids.values())) == dry
    for name, id in ids.items():
        revoked = library.get(id)
        assert misses(library, revoked)
        assert revoked.status == "revoked"
        reason = revoked.revoke_reason or ""
        assert reason.endswith(WHY)
        assert (reason == WHY) == (name == member)
        assert library.audit(id)[-1].detail == {"reason": reason}
    assert not misses(library, library.get(stranger))
    assert (
        library.get(ids["child"]).revoke_reason
        == f"follows up {ids['root']}, which was revoked: {WHY}"
    )
    assert library.check() == []


def test_a_follow_up_falls_alone(library: Library) -> None:
    ids = family(library)
    assert library.revoke(ids["child"], WHY) == (ids["child"],)
    assert library.count() == 5


def test_a_copy_of_something_revoked_is_refused(library: Library) -> None:
    root = library.deposit(new())
    library.revoke(root.id, WHY)
    with pytest.raises(InputError, match="revoked"):
        library.deposit(new(fingerprint="g", origin=root.id))
    with pytest.raises(RecordNotFound):
        library.deposit(new(fingerprint="g", origin="nobody"))
    assert library.count() == 0


def many(library: Library) -> dict[str, str]:
    rows = {
        "solved": {},
        "asked": {"source": "ask"},
        "math": {"verdict": judged_by("math", "2")},
        "math 3": {"verdict": judged_by("math", "3")},
        "small": {"model": "demo:small", "fingerprint": "s"},
        "small math": {"model": "demo:small", "verdict": judged_by("math", "2")},
    }
    return {name: library.deposit(new(name, **changes)).id for name, changes in rows.items()}


@pytest.mark.parametrize(
    ("filters", "fitting"),
    [
        ({"source": "ask"}, {"asked"}),
        ({"verifier": "math"}, {"math", "math 3", "small math"}),
        ({"verifier": "math", "verifier_version": "2"}, {"math", "small math"}),
        ({"model": "demo:small"}, {"small", "small math"}),
        ({"model": "demo:small", "verifier": "math"}, {"small math"}),
        ({"fingerprint": "s"}, {"small"}),
        ({"source": "elsewhere"}, set()),
        ({"verifier": "math", "tenant": "another"}, set()),
    ],
)
def test_revoking_by_what_deposits_have_in_common(
    library: Library, filters: dict[str, str], fitting: set[str]
) -> None:
    ids = many(library)
    expected = tuple(sorted(ids[name] for name in fitting))
    assert library.revoke_where(reason=WHY, dry_run=True, **filters) == expected
    assert library.count() == 6
    assert library.revoke_where(reason=WHY, **filters) == expected
    assert {id for id in ids.values() if not library.is_active(id)} == set(expected)
    assert all(library.get(id).revoke_reason == WHY for id in expected)
    assert library.revoke_where(reason="again", **filters) == ()
    assert all(library.revoke(id, "again") == () for id in expected)
    assert all(library.get(id).revoke_reason == WHY for id in expected)
    assert library.check() == []


def test_what_was_superseded_or_expired_is_revoked_too(library: Library) -> None:
    old = library.deposit(new())
    library.deposit(new(trace="4", source="other"), supersede=True)
    expired = library.deposit(new("3 + 1", expires_at=LONG_AGO))
    assert library.revoke_where(source="solve", reason=WHY) == (old.id, expired.id)
    assert library.get(old.id).status == library.get(expired.id).status == "revoked"


@pytest.mark.parametrize(
    ("filters", "error"),
    [
        ({}, UsageError),
        ({"tenant": "default"}, UsageError),
        ({"verifier_version": "2"}, UsageError),
        ({"source": ""}, InputError),
        ({"verifier": "math", "model": ""}, InputError),
        ({"source": "solve", "tenant": ""}, InputError),
        ({"source": "solve", "reason": " "}, InputError),
        ({"source": "solve", "reason": "x" * 10_000}, LimitExceeded),
        ({"source": "\ud800"}, InputError),
    ],
)
def test_nothing_is_revoked_by_an_empty_filter(
    library: Library, filters: dict[str, str], error: type[Exception]
) -> None:
    many(library)
    for dry_run in (True, False):
        with pytest.raises(error):
            library.revoke_where(**{"reason": WHY, "dry_run": dry_run, **filters})
    assert library.count() == 6
    assert len(library.audit()) == 6


def test_many_are_revoked_together_or_not_at_all(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(library)
    log, calls = Library._log, []

    def full(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 3:
            raise StoreFull("no space left")
        log(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Library, "_log", full)
        with pytest.raises(StoreFull):
            library.revoke_where(verifier="math", reason=WHY)
    assert library.count() == 6
    assert len(library.audit()) == 6
    assert library.check() == []


def test_a_dry_run_needs_no_writing(library: Library, path: Path) -> None:
    ids = family(library)
    with Library.open(path, read_only=True) as reader:
        assert len(reader.revoke(ids["root"], WHY, dry_run=True)) == 5
        assert len(reader.revoke_where(source="solve", reason=WHY, dry_run=True)) == 6
        for write in (
            lambda: reader.revoke_where(source="solve", reason=WHY),
            lambda: reader.expire(ids["root"], FAR),
            lambda: reader.record_reverify(ids["root"], PASSED, {}),
            lambda: reader.record_replay_failed(ids["root"], "x", "f"),
        ):
            with pytest.raises(StoreReadOnly):
                write()


ELSEWHERE: dict[str, str] = {
    "revoke": "library.revoke(sys.argv[2], 'wrong')",
    "revoke_where": "library.revoke_where(source='solve', reason='wrong')",
    "expire": "library.expire(sys.argv[2], '2020-01-01')",
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_what_another_process_does_is_seen_by_the_next_look_up(
    library: Library, path: Path, how: str
) -> None:
    ids = family(library)
    kin = [library.get(ids[name]) for name in ("root", "child", "copy", "of_copy")]
    for _ in range(20):  # statements and pages are warm
        assert not any(misses(library, one) for one in kin)
    script = (
        "import sys; from kvgraft.library.records import Library\n"
        f"with Library.open(sys.argv[1]) as library: {ELSEWHERE[how]}\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path), ids["root"]], check=True, timeout=60)
    assert all(misses(library, one) for one in kin)
    for one in kin:
        with pytest.raises((DepositRevoked, DepositExpired)):
            check_trusted(library.get(one.id))
        with pytest.raises(InputError):  # nothing new may rest on it either
            library.deposit(new("and then?", parent=one.id))


# --- every way to an answer -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ELSEWHERE)
def test_no_way_leads_to_what_another_process_took_back(tmp_path: Path, how: str) -> None:
    with opened(tmp_path, solving_engine()) as workspace:
        (outcome,) = run(workspace)
        id = outcome.deposit_id or ""
    with opened(tmp_path, solving_engine(seed=1)) as copies, Verifiers() as verifiers:
        (copy,) = rebuild(copies, [id], verifiers)
        assert copy.outcome == "replays"
        with opened(tmp_path, solving_engine()) as workspace:
            library = workspace.library
            assert ask(workspace, FOUR).how == ask(copies, FOUR).how == "replayed"
            assert len(related(library, "public", FOUR.text)) == 1  # one solution, two states
            script = (
                "import sys; from kvgraft.library.records import Library\n"
                f"with Library.open(sys.argv[1]) as library: {ELSEWHERE[how]}\n"
            )
            command = [sys.executable, "-c", script, str(library.path), id]
            subprocess.run(command, check=True, timeout=60)
            for space in (workspace, copies):
                assert ask(space, FOUR, max_new_tokens=4).how == "fresh"
                with pytest.raises(BelowMinimum):
                    ask(space, FOUR, minimum="agreed")
            for one in (id, copy.made or ""):
                with pytest.raises((DepositRevoked, DepositExpired)):
                    follow_up(workspace, one, Problem("why", "Why?"))
            assert related(library, "public", FOUR.text) == ()
            assert [one.outcome for one in rebuild(copies, [id], verifiers)] == ["failed"]
            assert list(library.active_ids("public")) == []
            (again,) = run(workspace)
            assert (again.state, again.deposit_id != id) == ("solved", True)


@pytest.mark.parametrize("how", ["revoke", "expire"])
def test_one_that_is_taken_back_while_it_is_replayed_is_not_returned(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (outcome,) = run(workspace)
    id = outcome.deposit_id or ""

    def taken_back(*given: Any, **named: Any) -> Any:
        result = replay(*given, **named)
        with Library.open(workspace.library.path) as elsewhere:
            elsewhere.revoke(id, WHY) if how == "revoke" else elsewhere.expire(id, LONG_AGO)
        return result

    monkeypatch.setattr(asking, "replay", taken_back)
    answer = ask(workspace, FOUR, max_new_tokens=4)
    assert (answer.how, answer.deposit_id) == ("fresh", None)
    assert any("while it was replayed" in reason for reason in answer.reasons)


def test_a_replay_that_differs_is_written_down_once(
    workspace: Workspace, engine: ScriptedEngine
) -> None:
    (outcome,) = run(workspace)
    engine.on(SOLUTION + CUES[0], " 5\n")
    for _ in range(3):
        assert ask(workspace, FOUR, max_new_tokens=4).how == "fresh"
    events = workspace.library.audit(outcome.deposit_id)
    assert [event.event for event in events] == ["deposit", "replay_failed"]
    assert events[-1].detail["fingerprint"] == engine.fingerprint.hex


# --- expiry ---------------------------------------------------------------------------------------


def test_a_deposit_holds_until_it_expires(library: Library) -> None:
    kept = library.deposit(new(expires_at="2999-01-01"))
    assert kept.expires_at == FAR
    assert not misses(library, kept)
    assert library.expire(kept.id, LONG_AGO) == (kept.id,)
    gone = library.get(kept.id)
    assert (gone.status, gone.expires_at, gone.revoked_at) == ("expired", LONG_AGO, None)
    assert misses(library, kept)
    assert (library.count(), library.count(status="expired")) == (0, 1)
    assert [one.id for one in library.list(status="expired")] == [kept.id]
    assert library.list(status="active") == ()
    assert library.expire(kept.id, None) == (kept.id,)  # and may come back
    assert library.get(kept.id).status == "active"
    assert not misses(library, kept)
    assert library.list(status="expired") == ()
    details = [event.detail for event in library.audit(kept.id) if event.event == "expire"]
    assert details == [
        {"expires_at": LONG_AGO, "before": FAR},
        {"expires_at": None, "before": LONG_AGO},
    ]
    assert library.check() == []


def test_it_ends_at_the_moment_and_not_before(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = library.deposit(new(expires_at=FAR))
    before, at = FAR.replace("2999-01-01", "2998-12-31"), FAR
    monkeypatch.setattr(times, "now", lambda: before)
    assert not misses(library, kept)
    monkeypatch.setattr(times, "now", lambda: at)
    assert misses(library, kept)
    assert library.get(kept.id).status == "expired"


def test_one_that_expired_makes_room_for_another_fingerprint_and_for_a_new_one(
    library: Library,
) -> None:
    old = library.deposit(new())
    other = library.deposit(new(fingerprint="g"))
    library.expire(other.id, LONG_AGO)
    assert library.lookup(old.address, "default", "g") == old.id
    assert library.lookup(old.address, "default") == old.id
    again = library.deposit(new(fingerprint="g", trace="4, again"))
    assert again.id != other.id
    assert library.lookup(old.address, "default", "g") == again.id
    assert library.get(other.id).status == "superseded"
    assert library.neighbours(other.id) == (None, again.id)
    assert library.neighbours(again.id) == (other.id, None)
    with pytest.raises(InputError, match="superseded"):
        library.expire(other.id, None)
    assert library.check() == []


def test_what_rests_on_it_ends_no_later(library: Library) -> None:
    ids = family(library)
    stranger = ids.pop("stranger")
    library.expire(ids["of_copy"], LONG_AGO)
    changed = library.expire(ids["root"], LATER)
    assert changed == tuple(sorted(set(ids.values()) - {ids["of_copy"]}))
    assert library.get(ids["of_copy"]).expires_at == LONG_AGO
    assert all(library.get(id).expires_at == LATER for id in changed)
    assert library.get(stranger).expires_at is None
    # Longer is for the one alone, and for a follow-up no longer than what it rests on.
    assert library.expire(ids["root"], FAR) == (ids["root"],)
    assert library.expire(ids["root"], FAR) == ()
    assert library.get(ids["child"]).expires_at == LATER
    assert library.expire(ids["child"], FAR) == (ids["child"],)
    for too_late in ("2999-01-02", None):
        with pytest.raises(InputError, match="follows up"):
            library.expire(ids["child"], too_late)
    assert library.get(ids["child"]).expires_at == FAR


def test_a_new_follow_up_or_copy_ends_with_what_it_rests_on(library: Library) -> None:
    root = library.deposit(new(expires_at=LATER))
    assert library.deposit(new("why?", parent=root.id)).expires_at == LATER
    assert library.deposit(new("when?", parent=root.id, expires_at=FAR)).expires_at == LATER
    assert library.deposit(new("who?", parent=root.id, expires_at=LONG_AGO)).expires_at == LONG_AGO
    assert library.deposit(new(fingerprint="g", origin=root.id)).expires_at == LATER


def test_what_cannot_expire_is_refused(library: Library) -> None:
    kept = library.deposit(new())
    for no_time in ("soon", "", "2027-13-01", "2027-01-01T25:00", "9999-12-31T23:59-12:00"):
        with pytest.raises(InputError):
            library.expire(kept.id, no_time)
        with pytest.raises(InputError):
            library.deposit(new("other", expires_at=no_time))
    with pytest.raises(RecordNotFound):
        library.expire("nobody", FAR)
    library.revoke(kept.id, WHY)
    with pytest.raises(InputError, match="for good"):
        library.expire(kept.id, FAR)
    assert library.get(kept.id).expires_at is None
    assert library.count(status=None) == 1


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2027-01-31", "2027-01-31T00:00:00.000000+00:00"),
        ("2027-01-31T12:00", "2027-01-31T12:00:00.000000+00:00"),
        ("2027-01-31 12:00:00.5+01:00", "2027-01-31T11:00:00.500000+00:00"),
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00.000000+00:00"),
        (" 2027-01-01T00:30:00-02:00 ", "2027-01-01T02:30:00.000000+00:00"),
        ("0999-01-01", "0999-01-01T00:00:00.000000+00:00"),
    ],
)
def test_times_have_one_form(text: str, utc: str) -> None:
    assert times.as_utc(text) == utc
    assert times.as_utc(utc) == utc


def test_times_sort_as_text() -> None:
    assert times.days_ago(1) < times.now() < times.days_ago(-1)
    assert times.days_ago(0.5)[:4] <= times.now()[:4]
    for days in (float("nan"), float("inf"), -1e300, 1e6):
        with pytest.raises(InputError):
            times.days_ago(days)


# --- the audit log --------------------------------------------------------------------------------


def test_the_log_of_a_tenant_since_a_time(library: Library) -> None:
    kept = library.deposit(new())
    other = AddressSpace(replace(SPACE.identity(""), tenant="other"))
    theirs = library.deposit(new(identity=other.identity("What is 2 + 2?")))
    between = times.now()
    while times.now() == between:
        time.sleep(0.001)
    library.revoke(kept.id, WHY)
    assert [event.event for event in library.audit()] == ["deposit", "deposit", "revoke"]
    assert [event.deposit for event in library.audit(tenant="other")] == [theirs.id]
    assert [event.event for event in library.audit(tenant="default")] == ["deposit", "revoke"]
    assert [event.event for event in library.audit(since=between)] == ["revoke"]
    assert [event.event for event in library.audit(tenant="default", limit=1)] == ["revoke"]
    assert library.audit(theirs.id, tenant="default") == ()
    assert library.audit(since=FAR) == ()
    with pytest.raises(InputError):
        library.audit(since="yesterday")


def test_what_fails_at_every_request_is_written_down_once(library: Library) -> None:
    kept = library.deposit(new())
    for _ in range(5):
        library.record_replay_failed(kept.id, "it says '5'", "f")
    library.record_replay_failed(kept.id, "it says '6'", "f")
    library.record_replay_failed(kept.id, "it says '6'", "g")
    for _ in range(3):
        library.record_reverify(kept.id, NOT_JUDGED, {"reason": "no such program"})
    events = [event.event for event in library.audit(kept.id)]
    assert events == ["deposit", *["replay_failed"] * 3, "reverify"]
    library.record_replay_failed(kept.id, "x" * 10_000, "f")
    assert len(library.audit(kept.id)[-1].detail["reason"]) == limits.MAX_LIBRARY_NAME_CHARS


# --- verdicts whose time has come -----------------------------------------------------------------


def ago(library: Library, id: str, days: float) -> None:
    sql = "UPDATE deposits SET verified_at = ? WHERE id = ?"
    library._connection.execute(sql, (times.days_ago(days), id))


def test_those_judged_longest_ago_come_first(library: Library) -> None:
    ids = [library.deposit(new(str(n))).id for n in range(5)]
    for id, days in zip(ids, (1, 40, 30.5, 50, 29), strict=True):
        ago(library, id, days)
    assert list(library.due(30, tenant="default")) == [ids[3], ids[1], ids[2]]
    assert library.count_due(30, tenant="default") == 3
    assert list(library.due(tenant="default")) == [ids[3], ids[1], ids[2], ids[4], ids[0]]
    assert list(library.due(30, tenant="other")) == []
    library.record_reverify(ids[3], PASSED, {})
    library.record_reverify(ids[1], FAILED, {})
    library.record_reverify(ids[2], NOT_JUDGED, {"reason": "x"})
    assert list(library.due(30, tenant="default")) == [ids[1], ids[2]]
    assert library.get(ids[3]).verified_at > times.days_ago(1)
    library.revoke(ids[1], WHY)
    library.expire(ids[2], LONG_AGO)
    assert library.count_due(30, tenant="default") == 0


def test_one_verifiers_deposits_alone(library: Library) -> None:
    one = library.deposit(new())
    other = library.deposit(new("other", grounds=Grounds("math", Case("other"))))
    assert list(library.due(tenant="default", verifier_spec="math")) == [other.id]
    assert library.count_due(tenant="default", verifier_spec="exact") == 1
    assert library.count_due(tenant="default") == len({one.id, other.id})


def test_each_is_told_once_though_they_change_meanwhile(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "_PAGE_ROWS", 2)
    with library.batch():
        ids = [library.deposit(new(str(n))).id for n in range(7)]
    told = []
    for id in library.due(tenant="default"):
        told.append(id)
        library.record_reverify(id, PASSED, {})
        if len(told) == 3:
            library.deposit(new("made meanwhile"))
    assert told == ids


def test_one_that_was_never_judged_again_counts_from_its_making(library: Library) -> None:
    kept = library.deposit(new())
    assert kept.verified_at == kept.created_at
    early = library.deposit(new("copied", verified_at=LONG_AGO))
    assert early.verified_at == LONG_AGO < early.created_at
    assert list(library.due(30, tenant="default")) == [early.id]


def test_finding_them_reads_an_index(library: Library) -> None:
    sql = f"EXPLAIN QUERY PLAN {life._DUE} ORDER BY coalesce(verified_at, created_at), id LIMIT 9"
    plan = library._connection.execute(sql, ("", "", "", "", "", None)).fetchall()
    assert [row[3] for row in plan if "deposits_by_verification" in row[3]] == [
        row[3] for row in plan
    ]


# --- what a verdict was given on ------------------------------------------------------------------


def test_what_was_judged_is_kept_whole(library: Library) -> None:
    problem = "What is 2 + 2?"
    peers = ("It is 4.\n", "", "\ud800 é \u2028", "5" * 100_000)
    checks = {"tests": [{"z": "\U0001f600", "a": 2**70}], "é": None, "x": 0.1}
    grounds = Grounds("consensus:0.5,5", Case(problem, None, checks, peers), " \n", "4 or so")
    kept = library.deposit(new(grounds=grounds, provenance={"seed": 7, "rung": "sample:8"}))
    assert library.get(kept.id).grounds == kept.grounds == grounds
    assert kept.grounds is not None
    assert str(kept.grounds.case.checks) == str(checks)  # in the same order
    assert kept.provenance == {"seed": 7, "rung": "sample:8"}
    assert library.check() == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"grounds": Grounds("exact", Case("What is 2 + 3?"))}, InputError),
        (
            {"grounds": Grounds("exact", Case("What is 2 + 2?", checks={"x": float("nan")}))},
            InputError,
        ),
        ({"grounds": Grounds("\ud800", Case("What is 2 + 2?"))}, InputError),
        ({"grounds": Grounds("x" * 17_000, Case("What is 2 + 2?"))}, LimitExceeded),
        ({"provenance": {"seed": object()}}, InputError),
        ({"provenance": {"notes": "x" * 70_000}}, LimitExceeded),
    ],
)
def test_what_could_not_be_judged_again_is_refused(
    library: Library, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        library.deposit(new(**changes))
    assert library.count(status=None) == 0


def test_the_cap_is_on_what_is_stored(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "What is 2 + 2?"
    monkeypatch.setattr(limits, "MAX_GROUNDS_BYTES", 10_000)
    monkeypatch.setattr(limits, "MAX_GROUNDS_CHARS", 3_000_000)
    alike = Grounds("x", Case(problem, peers=("It is 4. " * 100,) * 1_000))
    kept = library.deposit(new(grounds=alike))
    assert kept.grounds == alike
    noise = Grounds("x", Case(problem, peers=tuple(str(n**9) for n in range(2_000))))
    with pytest.raises(LimitExceeded, match="compressed"):
        library.deposit(
            new("other", grounds=replace(noise, case=replace(noise.case, problem="other")))
        )
    long = Grounds("x", Case("long", peers=("It is 4. " * 100,) * 10_000))
    with pytest.raises(LimitExceeded, match="characters"):
        library.deposit(new("long", grounds=long))
    assert library.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        "grounds = zeroblob(10)",
        "grounds = substr(grounds, 1, 20)",
        "grounds = grounds || x'00'",
        "grounds = NULL",
        "verifier_spec = NULL",
        "verifier_spec = 'command:rm'",
        "verifier_spec = NULL, grounds = NULL",
        "provenance = '{}'",
        "origin = id",
        "content_version = 1",
    ],
)
def test_a_record_with_other_grounds_is_refused(library: Library, path: Path, change: str) -> None:
    kept = library.deposit(new(provenance={"seed": 7}))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"UPDATE deposits SET {change} WHERE id = '{kept.id}'")
    connection.close()
    read: list[Callable[[], object]] = [
        lambda: library.get(kept.id),
        lambda: library.find(kept.address, "default"),
    ]
    for way in read:
        with pytest.raises(StoreError, match="damaged"):
            way()
    assert kept.id in library.check()[-1]
    assert library.revoke(kept.id, "damaged") == (kept.id,)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "cut off"),
        (lambda data: data + b"\0", "cut off"),
        (lambda data: zlib.compress(b'{"peers":["' + b"x" * 3_000 + b'"]}'), "too long"),
        (lambda data: zlib.compress(b"{}"), "damaged"),
        (lambda data: b"", "damaged"),
    ],
)
def test_grounds_that_are_none_are_refused_though_they_were_signed(
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes],
    words: str,
) -> None:
    row = encode(new())
    row["grounds"] = damage(row["grounds"])
    monkeypatch.setattr(limits, "MAX_GROUNDS_CHARS", 2_000)
    with pytest.raises(StoreError, match=words):
        from_row(seal(row, id="x", created_at=times.now()))
