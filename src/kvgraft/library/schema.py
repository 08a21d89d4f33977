"""The library's SQLite file: its tables, how it is opened and migrated, and its errors by type.

The tables hold two rules on their own, so that no code path and no hand at a SQLite shell can
break them: `active`, the small tree behind look-up, follows `deposits.status` by triggers; and
`audit` can only be added to.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kvgraft import limits
from kvgraft.errors import InputError, KvgraftError, StoreError, StoreFull, StoreReadOnly
from kvgraft.store.local import store_error

# "kvgL": tells a library from any other SQLite file, so that none is ever written into.
APPLICATION_ID = 0x6B76674C

_VERSION_1 = (
    """
    CREATE TABLE deposits (
        id TEXT PRIMARY KEY,
        address BLOB NOT NULL CHECK (length(address) = 32),
        tenant TEXT NOT NULL,
        problem TEXT NOT NULL,
        system TEXT,
        request TEXT NOT NULL,               -- JSON: the rest of the identity behind `address`
        model TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        prompt TEXT NOT NULL,                -- prompt, trace and cue, rendered and in this order,
        trace TEXT NOT NULL,                 -- are the text of `token_ids`
        cue TEXT NOT NULL,
        token_ids BLOB NOT NULL,             -- uint32, little endian
        answer TEXT NOT NULL,
        answer_ids BLOB NOT NULL,            -- uint32, little endian
        verifier TEXT NOT NULL,
        verifier_version TEXT NOT NULL,
        grade TEXT NOT NULL,
        evidence TEXT NOT NULL,              -- JSON
        cost TEXT NOT NULL,                  -- JSON
        artifact TEXT,
        parent TEXT REFERENCES deposits (id),
        source TEXT NOT NULL,
        created_at TEXT NOT NULL,
        content_digest TEXT NOT NULL,        -- over every column above
        replay TEXT NOT NULL CHECK (replay IN ('replays', 'text_only')),
        replay_reason TEXT NOT NULL,
        replay_logits_sha256 TEXT,
        status TEXT NOT NULL CHECK (status IN ('active', 'revoked', 'superseded')),
        revoked_at TEXT,
        revoke_reason TEXT
    )
    """,
    "CREATE INDEX deposits_by_parent ON deposits (parent) WHERE parent IS NOT NULL",
    # Look-up reads this tree alone: rows of some 140 bytes, whatever the length of the traces.
    """
    CREATE TABLE active (
        address BLOB NOT NULL,
        tenant TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        deposit TEXT NOT NULL,
        PRIMARY KEY (address, tenant, fingerprint)
    ) WITHOUT ROWID
    """,
    """
    CREATE TRIGGER deposit_becomes_active AFTER INSERT ON deposits WHEN new.status = 'active'
    BEGIN
        INSERT INTO active VALUES (new.address, new.tenant, new.fingerprint, new.id);
    END
    """,
    """
    CREATE TRIGGER deposit_leaves_active AFTER UPDATE OF status ON deposits
    WHEN old.status = 'active' AND new.status <> 'active'
    BEGIN
        DELETE FROM active
        WHERE address = old.address AND tenant = old.tenant AND fingerprint = old.fingerprint;
    END
    """,
    """
    CREATE TRIGGER deposit_stays_out BEFORE UPDATE OF status ON deposits
    WHEN old.status <> 'active' AND new.status = 'active'
    BEGIN
        SELECT RAISE(ABORT, 'a deposit that left the library does not come back');
    END
    """,
    """
    CREATE TABLE audit (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at TEXT NOT NULL,
        event TEXT NOT NULL CHECK (event IN ('deposit', 'replay', 'revoke', 'supersede')),
        deposit TEXT NOT NULL REFERENCES deposits (id),
        detail TEXT NOT NULL                 -- JSON
    )
    """,
    "CREATE INDEX audit_by_deposit ON audit (deposit)",
    """
    CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
    """,
    """
    CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
    """,
    """
    CREATE TABLE runs (
        run_key TEXT NOT NULL,
        problem_key TEXT NOT NULL,
        state TEXT NOT NULL,
        attempts_done INTEGER NOT NULL CHECK (attempts_done >= 0),
        updated_at TEXT NOT NULL,
        detail TEXT NOT NULL,                -- JSON
        PRIMARY KEY (run_key, problem_key)
    ) WITHOUT ROWID
    """,
)

# MIGRATIONS[n] takes a file from schema version n to n + 1. Only ever append.
MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1,)
SCHEMA_VERSION = len(MIGRATIONS)


def open_database(path: Path, *, read_only: bool, busy_seconds: float) -> sqlite3.Connection:
    """A connection in autocommit mode, its file created or brought to `SCHEMA_VERSION`.

    The connection may pass between threads, one at a time; it must not pass through a fork.

    Raises:
        StoreReadOnly: the folder or file cannot be written, and that was asked or is needed.
        StoreFull: no space left.
        StoreError: not a library, a newer schema, damaged, locked too long, or missing when
            `read_only`.
    """
    try:
        if not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:
        raise store_error(error, path.parent, "opening the library's folder") from error
    if is_folder:
        raise StoreError("a folder lies in the place of the library's file", where=str(path))
    if read_only and not exists:
        raise StoreError("there is no library here", where=str(path))
    mode = "ro" if read_only else "rwc"
    with typed_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        # Damaged text must reach the check of its record's digest, not break a whole listing.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        try:
            _prepare(connection, path, read_only=read_only, busy_seconds=busy_seconds)
        except BaseException:
            connection.close()
            raise
    return connection


def _prepare(
    connection: sqlite3.Connection, path: Path, *, read_only: bool, busy_seconds: float
) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{limits.LIBRARY_CACHE_BYTES // 1024}")
    version = _schema_version(connection, path)  # before anything is written
    if read_only:
        if version < SCHEMA_VERSION:
            raise StoreReadOnly(
                f"the library has schema {version}, older than {SCHEMA_VERSION}",
                where=str(path),
                hint="open it once for writing, which brings it up to date",
            )
        return
    _use_wal(connection, path, busy_seconds)
    if version < SCHEMA_VERSION:
        _migrate(connection, path)


def _schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's schema version; 0 for a file that is still empty."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if application != APPLICATION_ID:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise StoreError(
                "this is a SQLite file, but not a kvgraft library",
                where=str(path),
                hint="name another file; this one was left as it is",
            )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the library has schema {version}; this release reads up to {SCHEMA_VERSION}",
            where=str(path),
            hint="upgrade kvgraft; the file was left as it is",
        )
    return version


def _use_wal(connection: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
    # SQLite does not wait for other processes while it changes the journal mode, so we do.
    give_up = time.monotonic() + busy_seconds
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreError(
            f"the file system cannot share a library between processes (journal mode {mode})",
            where=str(path),
            hint="keep the library on a local disk",
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        version = _schema_version(connection, path)  # another process may have been faster
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing of it; durable once the outermost one is left."""
    inner = connection.in_transaction
    connection.execute("SAVEPOINT step" if inner else "BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("RELEASE step" if inner else "COMMIT")
    except BaseException:
        # On some errors (a full disk among them) SQLite has rolled everything back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK TO step" if inner else "ROLLBACK")
            if inner:
                connection.execute("RELEASE step")
        raise


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as kvgraft's."""
    try:
        yield
    except (sqlite3.Error, UnicodeEncodeError) as error:
        raise typed_error(error, path) from error


def typed_error(error: sqlite3.Error | UnicodeEncodeError, path: Path) -> KvgraftError:
    """The typed error for one of SQLite's.

    Told apart by SQLite's own fixed messages: Python has error codes only from 3.11 on.
    """
    if isinstance(error, UnicodeEncodeError):  # raised while a value is bound
        return InputError("text holds a lone surrogate, which no encoding can carry")
    message, where = str(error), str(path)
    if "disk is full" in message:
        return StoreFull(
            "no space left for the library",
            where=where,
            hint="free some space; what was being written was undone",
        )
    if "readonly database" in message:
        return StoreReadOnly("the library cannot be written", where=where)
    if "unable to open" in message:
        return StoreReadOnly(
            "the library's file cannot be opened or made",
            where=where,
            hint="check the folder's owner and mode; reading needs a writable folder too",
        )
    if "locked" in message:
        return StoreError(
            "another process holds the library",
            where=where,
            hint="try again, or end the process that writes for so long",
        )
    if "not a database" in message or "malformed" in message:
        return StoreError(
            "the library's file is damaged",
            where=where,
            hint="restore it from a copy; `sqlite3 FILE .recover` saves what can be read",
        )
    return StoreError(f"the library's database refused: {message}", where=where)


def damage(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file itself and its references; empty when all is well.

    Reads the whole file.
    """
    found: list[str] = []
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            found.append(str(line))
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        found.append(f"{table} row {row} refers to a row of {parent} that is not there")
    strays = """
        SELECT id FROM deposits AS d WHERE (status = 'active') <> EXISTS (
            SELECT 1 FROM active AS a WHERE a.address = d.address AND a.tenant = d.tenant
            AND a.fingerprint = d.fingerprint AND a.deposit = d.id)
        UNION SELECT deposit FROM active WHERE deposit NOT IN (SELECT id FROM deposits)
    """
    for (id,) in connection.execute(strays):
        found.append(f"deposit {id}: its status and the look-up table disagree")
    return found
