"""Opening SQLite files the way kvgraft uses them, and naming what SQLite refuses."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvgraft.errors import InputError, KvgraftError, StoreError, StoreFull, StoreReadOnly

BUSY_SECONDS = 30.0

Migration = Callable[[sqlite3.Connection], None]


def statements(*lines: str) -> Migration:
    """The migration that runs these SQL statements."""

    def migrate(db: sqlite3.Connection) -> None:
        for line in lines:
            db.execute(line)

    return migrate


def open_database(
    path: Path | None,
    migrations: Sequence[Migration],
    *,
    application_id: int = 0,
    read_only: bool = False,
    busy_seconds: float = BUSY_SECONDS,
) -> sqlite3.Connection:
    """A connection in WAL mode and autocommit, with every migration applied; `None` is a database
    in memory. It may pass between threads, one at a time, and must not pass through a fork.

    `migrations[n]` takes a database from `user_version` n to n + 1; all that are needed run in one
    transaction. With an `application_id`, a file that is of another application, or of none and not
    empty, is refused and left as it is.

    Raises:
        StoreReadOnly: it cannot be written, and that was asked or is needed.
        StoreFull, StoreError: SQLite refused; the file is of a newer release, or no file of ours.
    """
    where = str(path) if path else ":memory:"
    mode = "ro" if read_only else "rwc"
    name = f"{path.absolute().as_uri()}?mode={mode}" if path else where
    with naming_errors(where):
        db = sqlite3.connect(
            name,
            uri=path is not None,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA synchronous = FULL")  # a deposit survives a power cut
            db.execute("PRAGMA foreign_keys = ON")
            version = _version(db, len(migrations), application_id, where)
            if read_only and version < len(migrations):
                raise StoreReadOnly(
                    f"its schema {version} is older than {len(migrations)}",
                    where=where,
                    hint="open it once for writing, which brings it up to date",
                )
            if not read_only:
                _use_wal(db, busy_seconds)
                _migrate(db, migrations, application_id, where)
        except BaseException:
            db.close()
            raise
    return db


def _version(db: sqlite3.Connection, newest: int, application_id: int, where: str) -> int:
    """The file's schema version; 0 for a file that is still empty."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if application_id:
        found = int(db.execute("PRAGMA application_id").fetchone()[0])
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if found != application_id and (found or version or tables):
            raise StoreError(
                "this SQLite file was made by another program",
                where=where,
                hint="name another file; this one was left as it is",
            )
    if version > newest:
        raise StoreError(
            f"its schema {version} is newer than this release reads, which is up to {newest}",
            where=where,
            hint="upgrade kvgraft; the file was left as it is",
        )
    return version


def _use_wal(db: sqlite3.Connection, busy_seconds: float) -> None:
    # SQLite does not wait for its busy timeout here: where several processes open a new file at
    # once, all but one may be told at once that it is locked.
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _migrate(
    db: sqlite3.Connection, migrations: Sequence[Migration], application_id: int, where: str
) -> None:
    newest = len(migrations)
    if _version(db, newest, application_id, where) == newest:
        return
    with transaction(db):  # read again under the lock: another process may have migrated
        for migrate in migrations[_version(db, newest, application_id, where) :]:
            migrate(db)
        if application_id:
            db.execute(f"PRAGMA application_id = {application_id}")
        db.execute(f"PRAGMA user_version = {newest}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing of it; durable once the outermost one is left."""
    inner = db.in_transaction
    db.execute("SAVEPOINT step" if inner else "BEGIN IMMEDIATE")
    try:
        yield
        db.execute("RELEASE step" if inner else "COMMIT")
    except BaseException:
        # On some errors (a full disk among them) SQLite has rolled everything back already.
        if db.in_transaction:
            db.execute("ROLLBACK TO step" if inner else "ROLLBACK")
            if inner:
                db.execute("RELEASE step")
        raise


# --- errors -------------------------------------------------------------------------------------


@contextmanager
def naming_errors(where: str, cure: str = "") -> Iterator[None]:
    """Turn SQLite's errors into typed ones; `cure` is the hint where the file is damaged."""
    try:
        yield
    except (sqlite3.Error, UnicodeEncodeError) as error:
        raise sqlite_error(error, where, cure) from error


def sqlite_error(
    error: sqlite3.Error | UnicodeEncodeError, where: str, cure: str = ""
) -> KvgraftError:
    """The typed error for what SQLite said.

    Told apart by SQLite's own fixed words: Python has error codes only from 3.11 on.
    """
    if isinstance(error, UnicodeEncodeError):  # raised while a value is bound
        return InputError("text holds a lone surrogate, which no encoding can carry", where=where)
    said = str(error)
    for words, kind, what, hint in (
        ("disk is full", StoreFull, "no space left", _UNDONE),
        ("disk I/O error", StoreFull, "the disk failed, or has no space left", _UNDONE),
        ("readonly database", StoreReadOnly, "it cannot be written", _OWNER),
        ("unable to open", StoreReadOnly, "it cannot be opened or made", _OWNER),
        ("locked", StoreError, "another process holds it", "try again, or end that process"),
        ("not a database", StoreError, "the file is damaged", cure),
        ("malformed", StoreError, "the file is damaged", cure),
    ):
        if words in said:
            return kind(f"{what}: {said}", where=where, hint=hint)
    return StoreError(f"its database refused: {said}", where=where)


_UNDONE = "free some space; what was being written was undone"
_OWNER = "check the folder's owner and mode; reading needs a writable folder too"
