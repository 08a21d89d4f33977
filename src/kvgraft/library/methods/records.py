"""Methods on disk: `methods.sqlite3` beside the library, safe for several processes.

Nothing is remembered between calls, so what one process revokes no other answers from. A row's
content never changes; a digest over it is compared on every read, and a row that is not what was
written is refused. The audit table can only be added to, and a revoked method does not come back.
"""

from __future__ import annotations

import builtins
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvgraft.errors import InputError, LimitExceeded, RecordNotFound, StoreError
from kvgraft.library import times
from kvgraft.library.methods.method import (
    ACTIVE,
    EVIDENCE_COLUMNS,
    METHOD_COLUMNS,
    REVOKED,
    Method,
    NewEvidence,
    NewMethod,
    evidence_content,
    method_content,
    read_method,
    row_digest,
)
from kvgraft.library.rows import json_object, json_text
from kvgraft.limits import MAX_LIBRARY_JSON_CHARS, MAX_LIBRARY_NAME_CHARS
from kvgraft.sqlite import naming_errors, open_database, statements, transaction
from kvgraft.store.local import store_error

METHODS_NAME = "methods.sqlite3"  # beside the library
_APPLICATION_ID = 0x6B76674D  # "kvgM": tells such a file from any other of SQLite's

_METHOD = ", ".join((*METHOD_COLUMNS, "content_digest"))
_EVIDENCE = ", ".join((*EVIDENCE_COLUMNS, "content_digest"))
_STATE = "status, revoked_at, revoke_reason"
_MATCHING = f"""
    SELECT {_METHOD}, {_STATE} FROM methods
    WHERE tenant = ? AND status = '{ACTIVE}'
    AND id IN (SELECT method FROM evidence WHERE shape = ?) ORDER BY id
"""
_TABLES = (
    f"""
    CREATE TABLE methods (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        model TEXT NOT NULL,
        created_at TEXT NOT NULL,
        content TEXT NOT NULL,               -- JSON
        content_digest TEXT NOT NULL,        -- over every column above
        status TEXT NOT NULL CHECK (status IN ('{ACTIVE}', '{REVOKED}')),
        revoked_at TEXT,
        revoke_reason TEXT
    )
    """,
    """
    CREATE TABLE evidence (
        id TEXT PRIMARY KEY,
        method TEXT NOT NULL REFERENCES methods (id),
        shape TEXT NOT NULL,
        created_at TEXT NOT NULL,
        content TEXT NOT NULL,               -- JSON
        content_digest TEXT NOT NULL         -- over every column above
    )
    """,
    "CREATE INDEX evidence_by_shape ON evidence (shape, method)",
    "CREATE INDEX evidence_by_method ON evidence (method)",
    """
    CREATE TRIGGER method_stays_out BEFORE UPDATE OF status ON methods
    WHEN old.status <> 'active' AND new.status = 'active'
    BEGIN SELECT RAISE(ABORT, 'a revoked method does not come back'); END
    """,
    """
    CREATE TABLE audit (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at TEXT NOT NULL,
        event TEXT NOT NULL CHECK (event IN ('learn', 'extend', 'revoke')),
        method TEXT NOT NULL REFERENCES methods (id),
        detail TEXT NOT NULL                 -- JSON
    )
    """,
    """
    CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
    """,
    """
    CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit table is append-only'); END
    """,
)


@dataclass(frozen=True)
class MethodEvent:
    """Something that happened to a method: `learn`, `extend` (by a phrasing) or `revoke`."""

    seq: int
    at: str
    event: str
    method: str
    detail: Mapping[str, Any]


class Methods:
    """All methods of one file. Threads may share it.

    Any call may raise `StoreError`: damaged, held by another process too long, closed, full, or
    not to be written.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the file, made if it is not there, unless `read_only`.

        Raises:
            StoreReadOnly, StoreFull, StoreError: as `open_database`.
        """
        self.path = path
        if not read_only:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise store_error(error, path.parent, "opening the folder of methods") from error
        self._db = open_database(
            path, (statements(*_TABLES),), application_id=_APPLICATION_ID, read_only=read_only
        )
        # Damaged text must reach the check of its digest, not break a whole listing.
        self._db.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Methods:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- reading ------------------------------------------------------------------------------

    def matching(self, tenant: str, shape: str) -> tuple[Method, ...]:
        """The active methods of `tenant` that have a phrasing of this shape.

        Raises:
            StoreError: also where one of them is not what was written.
        """
        with self._reading():
            rows = self._db.execute(_MATCHING, (tenant, shape)).fetchall()
            return tuple(self._method(row) for row in rows)

    def get(self, id: str) -> Method:
        """The method `id`, whatever its status.

        Raises:
            RecordNotFound: there is none.
            StoreError: also where it is not what was written.
        """
        sql = f"SELECT {_METHOD}, {_STATE} FROM methods WHERE id = ?"
        with self._reading():
            rows = self._db.execute(sql, (id,)).fetchall()
            if not rows:
                raise RecordNotFound("there is no such method", where=id)
            return self._method(rows[0])

    def list(self, tenant: str, *, status: str | None = ACTIVE) -> tuple[Method, ...]:
        """The methods of `tenant`, newest first; of any status where it is None. Damaged ones are
        left out: `check` names them."""
        sql = f"""
            SELECT {_METHOD}, {_STATE} FROM methods
            WHERE tenant = ? AND status = coalesce(?, status) ORDER BY id DESC
        """
        found = []
        with self._reading():
            for row in self._db.execute(sql, (tenant, status)).fetchall():
                try:
                    found.append(self._method(row))
                except StoreError:
                    continue
        return tuple(found)

    def is_active(self, id: str) -> bool:
        """Whether the method may answer, as far as its own status says."""
        with self._reading():
            rows = self._db.execute("SELECT status FROM methods WHERE id = ?", (id,)).fetchall()
        return rows == [(ACTIVE,)]

    def audit(self, id: str) -> tuple[MethodEvent, ...]:
        """What happened to the method, oldest first."""
        sql = "SELECT seq, at, event, method, detail FROM audit WHERE method = ? ORDER BY seq"
        with self._reading():
            rows = self._db.execute(sql, (id,)).fetchall()
        return tuple(
            MethodEvent(seq, at, event, method, json_object(detail))
            for seq, at, event, method, detail in rows
        )

    def check(self) -> builtins.list[str]:
        """What is wrong, a line for each finding; empty when all is well."""
        with self._reading():
            found = [f"the file: {row[0]}" for row in self._db.execute("PRAGMA integrity_check")]
            found = [] if found == ["the file: ok"] else found
            ids = [row[0] for row in self._db.execute("SELECT id FROM methods ORDER BY id")]
        for id in ids:
            try:
                self.get(id)
            except StoreError as error:
                found.append(f"{error.where}: {error.what}")
        return found

    # --- writing ------------------------------------------------------------------------------

    def add(self, new: NewMethod, evidence: NewEvidence) -> Method:
        """Keep a method with what it was written from; durable when this returns."""
        for name, value in (("tenant", new.tenant), ("model", new.model)):
            if not value or len(value) > MAX_LIBRARY_NAME_CHARS:
                raise InputError(f"a method needs a {name} of at most {MAX_LIBRARY_NAME_CHARS}")
        id, first = _new_id(), _new_id()
        row = (id, new.tenant, new.model, times.now(), method_content(new, first))
        with self._writing():
            sql = f"INSERT INTO methods ({_METHOD}, status) VALUES (?, ?, ?, ?, ?, ?, '{ACTIVE}')"
            self._db.execute(sql, (*row, row_digest(row)))
            self._put_evidence(first, id, evidence)
            self._log("learn", id, {"instances": len(evidence.instances)})
        return self.get(id)

    def extend(self, id: str, evidence: NewEvidence) -> Method:
        """Add a phrasing, or more problems of one, to an active method.

        Raises:
            RecordNotFound: there is no such method.
            InputError: it was revoked.
        """
        with self._writing():
            if self.get(id).status != ACTIVE:
                raise InputError("the method was revoked", where=id)
            self._put_evidence(_new_id(), id, evidence)
            self._log("extend", id, {"instances": len(evidence.instances)})
        return self.get(id)

    def revoke(self, id: str, reason: str) -> bool:
        """Take a method out for good; whether this call did it. Works on damaged rows too.

        Raises:
            RecordNotFound: there is none.
            InputError, LimitExceeded: `reason` is empty, or too long.
        """
        if not reason.strip():
            raise InputError("a revocation says why", where=id)
        if len(reason) > MAX_LIBRARY_NAME_CHARS:
            raise LimitExceeded(f"a reason ends at {MAX_LIBRARY_NAME_CHARS} characters")
        with self._writing():
            rows = self._db.execute("SELECT status FROM methods WHERE id = ?", (id,)).fetchall()
            if not rows:
                raise RecordNotFound("there is no such method", where=id)
            if rows == [(REVOKED,)]:
                return False
            sql = "UPDATE methods SET status = ?, revoked_at = ?, revoke_reason = ? WHERE id = ?"
            self._db.execute(sql, (REVOKED, times.now(), reason, id))
            self._log("revoke", id, {"reason": reason})
        return True

    # --- rows ---------------------------------------------------------------------------------

    def _put_evidence(self, id: str, method: str, new: NewEvidence) -> None:
        row = (id, method, new.skeleton.shape, times.now(), evidence_content(new))
        sql = f"INSERT INTO evidence ({_EVIDENCE}) VALUES (?, ?, ?, ?, ?, ?)"
        self._db.execute(sql, (*row, row_digest(row)))

    def _method(self, row: Sequence[Any]) -> Method:
        sql = f"SELECT {_EVIDENCE} FROM evidence WHERE method = ? ORDER BY rowid"
        return read_method(row, self._db.execute(sql, (row[0],)).fetchall())

    def _log(self, event: str, method: str, detail: Mapping[str, Any]) -> None:
        sql = "INSERT INTO audit (at, event, method, detail) VALUES (?, ?, ?, ?)"
        text = json_text("detail", detail, MAX_LIBRARY_JSON_CHARS)
        self._db.execute(sql, (times.now(), event, method, text))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, naming_errors(str(self.path)):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading(), transaction(self._db):
            yield


def _new_id() -> str:
    # Sorts by time, as the library's; chance keeps two processes apart.
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(5)}"
