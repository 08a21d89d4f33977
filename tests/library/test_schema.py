"""The library's schema: files of earlier releases are brought up to date, whole or not at all."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.errors import StoreError, StoreReadOnly
from kvgraft.library import schema
from kvgraft.library.ask import ask
from kvgraft.library.problem import Problem
from kvgraft.library.records import Library
from kvgraft.sqlite import statements
from library.scripted import FOUR, Judge, opened, run, solving_engine, sound

GOLDEN = Path(__file__).with_name("golden") / "library_v1.sqlite3"
DOUBLE = "And twice that?"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the golden file, where a store has its library."""
    place = tmp_path / "store" / "library.sqlite3"
    place.parent.mkdir()
    shutil.copyfile(GOLDEN, place)
    return place


@pytest.fixture
def library(path: Path) -> Iterator[Library]:
    with Library.open(path) as opened_library:
        yield opened_library


def raw(path: Path, *sql: str) -> list[tuple[object, ...]]:
    """Ask or change the file behind the library's back."""
    connection = sqlite3.connect(path, isolation_level=None)
    rows: list[tuple[object, ...]] = []
    for statement in sql:
        rows += connection.execute(statement).fetchall()
    connection.close()
    return rows


# --- version 1 to 2 -------------------------------------------------------------------------------


def test_the_golden_file_is_of_version_1() -> None:
    connection = sqlite3.connect(f"{GOLDEN.as_uri()}?mode=ro&immutable=1", uri=True)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    columns = {row[1] for row in connection.execute("PRAGMA table_info(deposits)")}
    connection.close()
    assert version == 1
    assert not columns & {"grounds", "verifier_spec", "provenance", "expires_at", "verified_at"}


def test_everything_in_a_file_of_version_1_is_still_there(path: Path) -> None:
    columns = "id, problem, answer, status, replay, parent, source, content_digest, revoke_reason"
    before = raw(path, f"SELECT {columns} FROM deposits ORDER BY id")
    log = raw(path, "SELECT * FROM audit ORDER BY seq")
    runs = raw(path, "SELECT * FROM runs ORDER BY run_key, problem_key")
    with Library.open(path) as library:
        assert library.check() == []
        assert raw(path, f"SELECT {columns} FROM deposits ORDER BY id") == before
        assert raw(path, "SELECT * FROM audit ORDER BY seq") == log
        assert raw(path, "SELECT * FROM runs ORDER BY run_key, problem_key") == runs
        assert len(before) == 6
        for id, problem, answer, status, *_ in before:
            deposit = library.get(str(id))
            assert (deposit.problem, deposit.answer, deposit.status) == (problem, answer, status)
            assert deposit.grounds is deposit.origin is deposit.expires_at is None
            assert deposit.provenance == {}
            assert deposit.verified_at == deposit.created_at
            if status == "active":
                found = library.find(deposit.address, deposit.tenant, deposit.fingerprint)
                assert found == deposit
            else:
                assert library.lookup(deposit.address, deposit.tenant) != id
        assert library.count() == 4
    assert raw(path, "PRAGMA user_version") == [(2,)]


def test_history_goes_on_where_it_stopped(library: Library, path: Path) -> None:
    four = library.list(tenant="public", status="active")[-1]
    assert [event.seq for event in library.audit()] == list(range(1, 10))
    library.record_reverify(four.id, "failed", {"reason": "test"})
    library.expire(four.id, "2999-01-01")
    assert [event.seq for event in library.audit()][-1] > 9
    assert library.audit()[9].event == "reverify"
    for statement in ("DELETE FROM audit", "UPDATE audit SET detail = '{}'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            raw(path, statement)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        raw(
            path,
            f"INSERT INTO audit (at, event, deposit, detail) VALUES ('', 'x', '{four.id}', '')",
        )
    assert library.check() == []


def test_what_superseded_what_is_known_of_old_records_too(library: Library) -> None:
    old, new = sorted(one.id for one in library.list(status=None) if one.problem == DOUBLE)
    assert library.neighbours(old) == (None, new)
    assert library.neighbours(new) == (old, None)


def test_old_deposits_are_revoked_and_superseded_like_new_ones(library: Library) -> None:
    four, child = (
        next(one for one in reversed(library.list(status="active")) if one.problem == problem)
        for problem in (FOUR.text, DOUBLE)
    )
    assert child.parent == four.id
    revoked = library.revoke(four.id, "the key was wrong")
    assert {four.id, child.id} < set(revoked)
    assert len(revoked) == 3  # the superseded follow-up as well
    assert library.check() == []


def test_an_old_deposit_is_answered_from(path: Path) -> None:
    engine = solving_engine()
    with opened(path.parent, engine) as workspace:
        answer = ask(workspace, FOUR)
        assert (answer.how, answer.answer, answer.grade) == ("replayed", "4", "proved")
        three = ask(workspace, Problem("three", "What is 3 + 3?"))
        assert (three.how, three.answer) == ("recorded", "6")
        five = ask(workspace, Problem("five", "What is 5 + 5?"), max_new_tokens=4)
        assert five.how == "fresh"  # it was revoked
        (outcome,) = run(workspace, Problem("new", FOUR.text + " ", expected="4"), judge=Judge())
        assert outcome.state in ("known", "solved")
        assert sound(workspace)


# --- whole or not at all --------------------------------------------------------------------------


def test_a_step_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = schema.MIGRATIONS
    dump = raw(path, "SELECT name, sql FROM sqlite_master ORDER BY name", "SELECT * FROM audit")
    last = schema._VERSION_2[-1]
    broken = statements(*schema._VERSION_2[:-1], "NONSENSE", last)
    monkeypatch.setattr(schema, "MIGRATIONS", (whole[0], broken))
    with pytest.raises(StoreError, match="NONSENSE"):
        Library.open(path)
    after = raw(path, "SELECT name, sql FROM sqlite_master ORDER BY name", "SELECT * FROM audit")
    assert after == dump
    assert raw(path, "PRAGMA user_version") == [(1,)]
    monkeypatch.setattr(schema, "MIGRATIONS", whole)
    with Library.open(path) as library:
        assert library.check() == []
        assert library.count(status=None) == 6


def test_processes_that_open_an_old_file_at_once_agree(path: Path) -> None:
    script = (
        "import sys; from kvgraft.library.records import Library\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "with Library.open(sys.argv[1]) as library: print(library.count(), library.check())\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate(timeout=60)[0] == "4 []\n"
        assert process.returncode == 0


def test_looking_alone_changes_no_old_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreReadOnly, match="schema 1 is older than 2"):
        Library.open(path, read_only=True)
    assert path.read_bytes() == before


# --- what a hand at a SQLite shell cannot do ------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "verifier_spec = 'exact', grounds = x'00'",
        "verifier_spec = 'exact'",
        'provenance = \'{"model":"another"}\'',
        "origin = id",
        "content_version = 2",
        "content_version = 3",
        "content_version = 'x'",
    ],
)
def test_an_old_record_does_not_get_new_content(library: Library, path: Path, change: str) -> None:
    four = next(one for one in library.list(status="active") if one.problem == FOUR.text)
    raw(path, f"UPDATE deposits SET {change} WHERE id = '{four.id}'")
    with pytest.raises(StoreError, match="damaged"):
        library.get(four.id)
    with pytest.raises(StoreError, match="damaged"):
        library.find(four.address, four.tenant, four.fingerprint)


def test_look_up_follows_the_record(library: Library, path: Path) -> None:
    three = next(one for one in library.list() if one.problem == "What is 3 + 3?")
    past = "2020-01-01T00:00:00.000000+00:00"
    raw(path, f"UPDATE deposits SET expires_at = '{past}' WHERE id = '{three.id}'")
    assert library.lookup(three.address, three.tenant) is None
    assert library.find(three.address, three.tenant) is None
    assert library.check() == []
    for no_time in ("tomorrow", "2027-01-01", "2027-01-01T00:00:00Z", ""):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            raw(path, f"UPDATE deposits SET expires_at = '{no_time}' WHERE id = '{three.id}'")
    raw(path, f"UPDATE active SET expires_at = NULL WHERE deposit = '{three.id}'")
    assert library.check() == [f"deposit {three.id}: the record and the look-up table disagree"]
