"""Opening SQLite files the way kvgraft uses them, and naming what SQLite refuses."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvgraft.errors import StoreError, StoreFull, StoreReadOnly

BUSY_SECONDS = 30.0
# Python 3.10 has no `sqlite_errorcode`; SQLite's own words are stable enough to tell these apart.
_FULL_WORDS = ("database or disk is full", "disk i/o error")
_READ_ONLY_WORDS = ("readonly database", "unable to open database file")


def sqlite_error(error: sqlite3.Error, where: str) -> StoreError:
    """The typed error for what SQLite said."""
    words = str(error).lower()
    if any(phrase in words for phrase in _FULL_WORDS):
        return StoreFull(str(error), where=where, hint="free some space; nothing was half-written")
    if any(phrase in words for phrase in _READ_ONLY_WORDS):
        return StoreReadOnly(str(error), where=where, hint="check the folder's owner and mode")
    return StoreError(str(error), where=where)


@contextmanager
def naming_errors(where: str) -> Iterator[None]:
    """Turn `sqlite3.Error` into a typed store error."""
    try:
        yield
    except sqlite3.Error as error:
        raise sqlite_error(error, where) from error


def open_database(
    path: Path | None, migrations: Sequence[Callable[[sqlite3.Connection], None]]
) -> sqlite3.Connection:
    """A connection in WAL mode with every migration applied; `None` is a database in memory.

    `migrations[n]` takes a database from `user_version` n to n + 1, inside one transaction.

    Raises:
        StoreReadOnly, StoreFull, StoreError: SQLite refused, or the file is of a newer release.
    """
    where = str(path) if path else ":memory:"
    with naming_errors(where):
        db = sqlite3.connect(
            where, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _use_wal(db)
            db.execute("PRAGMA synchronous=FULL")  # a deposit survives a power cut
            db.execute("PRAGMA foreign_keys=ON")
            _migrate(db, migrations, where)
        except BaseException:
            db.close()
            raise
    return db


def _use_wal(db: sqlite3.Connection) -> None:
    # SQLite does not wait for its busy timeout here: where several processes open a new file at
    # once, all but one may be told at once that it is locked.
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _migrate(
    db: sqlite3.Connection,
    migrations: Sequence[Callable[[sqlite3.Connection], None]],
    where: str,
) -> None:
    if db.execute("PRAGMA user_version").fetchone()[0] == len(migrations):
        return
    with transaction(db):  # read again under the lock: another process may have migrated
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(migrations):
            raise StoreError(
                f"schema version {version} is newer than this release knows ({len(migrations)})",
                where=where,
                hint="upgrade kvgraft",
            )
        for migrate in migrations[version:]:
            migrate(db)
        db.execute(f"PRAGMA user_version={len(migrations)}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One write transaction: committed as a whole, rolled back on any exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
