"""The library's SQLite file: its tables, how it is opened and migrated, and its errors by type.

The tables hold two rules on their own, so that no code path and no hand at a SQLite shell can
break them: `active`, the small tree behind look-up, follows `deposits` by triggers; and `audit` can
only be added to.
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from kvgraft import limits, sqlite
from kvgraft.errors import KvgraftError, StoreError
from kvgraft.store.local import store_error

# "kvgL": tells a library from any other SQLite file, so that none is ever written into.
APPLICATION_ID = 0x6B76674C

_APPEND_ONLY = (
    """
    CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
    """,
    """
    CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
    """,
)

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
    *_APPEND_ONLY,
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

_VERSION_2 = (
    # What is old keeps its content and its digest. A deposit of version 2 has a digest over the
    # columns `verifier_spec` to `origin` as well.
    "ALTER TABLE deposits ADD COLUMN content_version INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE deposits ADD COLUMN verifier_spec TEXT",
    "ALTER TABLE deposits ADD COLUMN grounds BLOB",  # zlib, JSON: what the verdict was given on
    "ALTER TABLE deposits ADD COLUMN provenance TEXT NOT NULL DEFAULT '{}'",  # JSON
    "ALTER TABLE deposits ADD COLUMN origin TEXT REFERENCES deposits (id)",
    # Times are compared as text, so they have one form.
    """
    ALTER TABLE deposits ADD COLUMN expires_at TEXT
        CHECK (expires_at GLOB '[0-9]???-??-??T??:??:??.??????+00:00')
    """,
    "ALTER TABLE deposits ADD COLUMN verified_at TEXT",  # NULL: not since it was deposited
    "CREATE INDEX deposits_by_origin ON deposits (origin) WHERE origin IS NOT NULL",
    """
    CREATE INDEX deposits_by_verification ON deposits (coalesce(verified_at, created_at), id)
    WHERE status = 'active'
    """,
    "ALTER TABLE active ADD COLUMN expires_at TEXT",
    "DROP TRIGGER deposit_becomes_active",
    """
    CREATE TRIGGER deposit_becomes_active AFTER INSERT ON deposits WHEN new.status = 'active'
    BEGIN
        INSERT INTO active (address, tenant, fingerprint, deposit, expires_at)
        VALUES (new.address, new.tenant, new.fingerprint, new.id, new.expires_at);
    END
    """,
    """
    CREATE TRIGGER deposit_changes_expiry AFTER UPDATE OF expires_at ON deposits
    BEGIN
        UPDATE active SET expires_at = new.expires_at
        WHERE address = new.address AND tenant = new.tenant
        AND fingerprint = new.fingerprint AND deposit = new.id;
    END
    """,
    # SQLite cannot change a CHECK: the table is made anew.
    """
    CREATE TABLE audit_2 (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at TEXT NOT NULL,
        event TEXT NOT NULL CHECK (event IN ('deposit', 'replay', 'replay_failed', 'revoke',
            'supersede', 'reverify', 'rebuild', 'expire')),
        deposit TEXT NOT NULL REFERENCES deposits (id),
        detail TEXT NOT NULL                 -- JSON
    )
    """,
    "INSERT INTO audit_2 SELECT seq, at, event, deposit, detail FROM audit",
    "DROP TABLE audit",
    "ALTER TABLE audit_2 RENAME TO audit",
    "CREATE INDEX audit_by_deposit ON audit (deposit)",
    *_APPEND_ONLY,
)

# MIGRATIONS[n] takes a file from schema version n to n + 1. Only ever append.
MIGRATIONS: tuple[sqlite.Migration, ...] = (
    sqlite.statements(*_VERSION_1),
    sqlite.statements(*_VERSION_2),
)
SCHEMA_VERSION = len(MIGRATIONS)
_CURE = "restore it from a copy; `sqlite3 FILE .recover` saves what can be read"


def open_database(path: Path, *, read_only: bool, busy_seconds: float) -> sqlite3.Connection:
    """A connection as `kvgraft.sqlite.open_database` makes it, to a library.

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
    with typed_errors(path):
        connection = sqlite.open_database(
            path,
            MIGRATIONS,
            application_id=APPLICATION_ID,
            read_only=read_only,
            busy_seconds=busy_seconds,
        )
        # Damaged text must reach the check of its record's digest, not break a whole listing.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        connection.execute(f"PRAGMA cache_size = -{limits.LIBRARY_CACHE_BYTES // 1024}")
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if not read_only and mode != "wal":
        connection.close()
        raise StoreError(
            f"the file system cannot share a library between processes (journal mode {mode})",
            where=str(path),
            hint="keep the library on a local disk",
        )
    return connection


def typed_errors(path: Path) -> AbstractContextManager[None]:
    """SQLite's errors as kvgraft's."""
    return sqlite.naming_errors(str(path), _CURE)


def typed_error(error: sqlite3.Error | UnicodeEncodeError, path: Path) -> KvgraftError:
    """The typed error for one of SQLite's."""
    return sqlite.sqlite_error(error, str(path), _CURE)


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
            AND a.fingerprint = d.fingerprint AND a.deposit = d.id
            AND a.expires_at IS d.expires_at)
        UNION SELECT deposit FROM active WHERE deposit NOT IN (SELECT id FROM deposits)
    """
    for (id,) in connection.execute(strays):
        found.append(f"deposit {id}: the record and the look-up table disagree")
    return found
