"""Opening SQLite files: migrated whole, nobody else's touched, refusals named."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.errors import InputError, StoreError, StoreFull, StoreReadOnly
from kvgraft.sqlite import naming_errors, open_database, sqlite_error, statements, transaction

FIRST = statements("CREATE TABLE things (name TEXT PRIMARY KEY)")
SECOND = statements(
    "ALTER TABLE things ADD COLUMN size INTEGER", "INSERT INTO things VALUES ('a', 1)"
)
OURS = 0x6B76


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a #?%20 name.sqlite3"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    opened = open_database(path, [FIRST])
    yield opened
    opened.close()


def test_a_new_file_has_every_migration_once(path: Path) -> None:
    for _ in range(2):
        opened = open_database(path, [FIRST, SECOND], application_id=OURS)
        assert opened.execute("SELECT * FROM things").fetchall() == [("a", 1)]
        pragmas = ("user_version", "application_id", "journal_mode", "foreign_keys", "synchronous")
        values = [opened.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
        assert values == [2, OURS, "wal", 1, 2]
        opened.close()


def test_an_older_file_gets_the_rest(path: Path) -> None:
    open_database(path, [FIRST]).close()
    with pytest.raises(StoreReadOnly, match="schema 1 is older than 2"):
        open_database(path, [FIRST, SECOND], read_only=True)
    opened = open_database(path, [FIRST, SECOND])
    assert opened.execute("SELECT size FROM things").fetchall() == [(1,)]
    opened.close()


def test_migrations_succeed_together_or_not_at_all(path: Path) -> None:
    open_database(path, [FIRST]).close()
    with pytest.raises(StoreError, match="no such table: absent"):
        open_database(path, [FIRST, SECOND, statements("DROP TABLE absent")])
    opened = open_database(path, [FIRST])
    assert opened.execute("PRAGMA table_info(things)").fetchall()[-1][1] == "name"
    opened.close()


def test_a_newer_file_is_left_alone(path: Path) -> None:
    open_database(path, [FIRST, SECOND]).close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="newer") as refused:
            open_database(path, [FIRST], read_only=read_only)
        assert "upgrade" in refused.value.hint
    assert path.read_bytes() == before


def test_anothers_file_is_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        open_database(path, [FIRST], application_id=OURS)
    assert path.read_bytes() == before


def test_a_memory_database_is_its_own() -> None:
    one, other = open_database(None, [FIRST]), open_database(None, [FIRST])
    one.execute("INSERT INTO things VALUES ('a')")
    assert other.execute("SELECT * FROM things").fetchall() == []
    one.close()
    other.close()


def test_a_reader_writes_nothing(db: sqlite3.Connection, path: Path) -> None:
    reader = open_database(path, [FIRST], read_only=True)
    with pytest.raises(StoreReadOnly), naming_errors("here"):
        reader.execute("INSERT INTO things VALUES ('a')")
    reader.close()
    with pytest.raises(StoreReadOnly):
        open_database(path.with_name("absent"), [FIRST], read_only=True)
    assert not path.with_name("absent").exists()


def put(db: sqlite3.Connection, *names: str, fail: bool = False) -> None:
    with transaction(db):
        for name in names:
            db.execute("INSERT INTO things VALUES (?)", (name,))
        if fail:
            raise ZeroDivisionError


def names(db: sqlite3.Connection) -> list[str]:
    assert not db.in_transaction
    return [name for (name,) in db.execute("SELECT name FROM things ORDER BY name")]


def test_a_block_is_kept_whole_or_undone(db: sqlite3.Connection) -> None:
    put(db, "a", "b")
    with pytest.raises(ZeroDivisionError):
        put(db, "c", fail=True)
    assert names(db) == ["a", "b"]


def test_a_block_inside_is_undone_alone(db: sqlite3.Connection) -> None:
    with transaction(db):
        put(db, "a")
        with pytest.raises(ZeroDivisionError):
            put(db, "b", fail=True)
        put(db, "c")
    assert names(db) == ["a", "c"]


def test_an_undone_block_takes_the_blocks_inside_with_it(db: sqlite3.Connection) -> None:
    def outer() -> None:
        with transaction(db):
            put(db, "a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        outer()
    assert names(db) == []


def test_a_full_disk_undoes_the_block(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA max_page_count = 6")
    with pytest.raises(StoreFull) as full, naming_errors("here"):
        put(db, *(f"{n}" * 100 for n in range(1_000)))
    assert full.value.where == "here"
    assert names(db) == []


def test_opening_waits_for_whoever_makes_the_file(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # SQLite itself does not wait here to change its journal
    with pytest.raises(StoreError, match="another process"):
        open_database(path, [FIRST], busy_seconds=0.05)
    timer = threading.Timer(0.1, other.rollback)
    timer.start()
    open_database(path, [FIRST]).close()
    timer.join()
    other.close()


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("database or disk is full", StoreFull, "space"),
        ("disk I/O error", StoreFull, "space"),
        ("attempt to write a readonly database", StoreReadOnly, "owner"),
        ("unable to open database file", StoreReadOnly, "owner"),
        ("database is locked", StoreError, "again"),
        ("file is not a database", StoreError, "the cure"),
        ("database disk image is malformed", StoreError, "the cure"),
        ("no such column: x", StoreError, ""),
    ],
)
def test_refusals_have_a_type_and_say_what_sqlite_said(
    said: str, kind: type[StoreError], hint: str
) -> None:
    error = sqlite_error(sqlite3.OperationalError(said), "here", "the cure")
    assert type(error) is kind
    assert said in error.what
    assert (error.where, hint in error.hint, bool(error.hint)) == ("here", True, bool(hint))


def test_text_that_cannot_be_bound_is_bad_input(db: sqlite3.Connection) -> None:
    with pytest.raises(InputError, match="surrogate"), naming_errors("here"):
        db.execute("INSERT INTO things VALUES (?)", ("\ud800",))
