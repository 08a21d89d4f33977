"""The library: verified deposits, their history, and the state of resumable runs, in one file.

One SQLite file in WAL mode serves several processes. Nothing is remembered between calls, so a
revocation in one process is seen by the very next look-up in every other.
"""

from __future__ import annotations

import builtins
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvgraft import limits
from kvgraft.errors import LimitExceeded, RecordNotFound, StoreError
from kvgraft.library import schema, times
from kvgraft.library.deposit import (
    ACTIVE,
    EXPIRED,
    REPLAYS,
    SUPERSEDED,
    TEXT_ONLY,
    AuditEvent,
    Deposit,
    NewDeposit,
    check_new,
    check_replay,
)
from kvgraft.library.life import Life, where_clause
from kvgraft.library.rows import COLUMNS, encode, from_row, seal
from kvgraft.library.runs import Run, Runs

__all__ = ["AuditEvent", "Deposit", "Library", "NewDeposit", "Run"]

_COLUMNS = ", ".join(COLUMNS)
_INSERT = f"INSERT INTO deposits ({_COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS))})"
_LOOKUP = (
    "SELECT fingerprint IS ?, deposit, expires_at FROM active WHERE address = ? AND tenant = ?"
)
_HOLDER = (
    "SELECT deposit, expires_at FROM active WHERE address = ? AND tenant = ? AND fingerprint = ?"
)
_FIND = f"""
    SELECT {", ".join(f"d.{column}" for column in COLUMNS)}
    FROM active AS a JOIN deposits AS d ON d.id = a.deposit
    WHERE a.address = ? AND a.tenant = ? AND d.status = '{ACTIVE}'
    AND (a.expires_at IS NULL OR a.expires_at > ?)
    ORDER BY a.fingerprint IS ? DESC, a.deposit DESC LIMIT 1
"""


class Library(Life, Runs):
    """All deposits of one file. Threads may share it; a forked child opens its own.

    Any method may raise `StoreError` (damaged, held by another process too long, closed),
    writing ones also `StoreFull` and `StoreReadOnly`; whatever was being written is then undone.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
        """Use `Library.open`."""
        super().__init__(connection, path, read_only)
        self._lookup = connection.cursor()  # kept, so that a look-up makes no new one

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        busy_seconds: float = limits.LIBRARY_BUSY_SECONDS,
    ) -> Library:
        """Open the library at `path`, making the file and its folder unless `read_only`.

        Raises:
            StoreReadOnly, StoreFull, StoreError: as `schema.open_database`.
        """
        place = Path(path)
        connection = schema.open_database(place, read_only=read_only, busy_seconds=busy_seconds)
        return cls(connection, place, read_only)

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- reading ------------------------------------------------------------------------------

    def lookup(self, address: bytes, tenant: str, fingerprint: str | None = None) -> str | None:
        """The id of the active deposit at `address`, or `None`. The hot path: microseconds.

        One address may hold a deposit per fingerprint: the one made under `fingerprint` comes
        first, else the newest. What was revoked, in whichever process, or has expired is not found.
        """
        try:
            with self._lock:
                # All rows, so that the statement ends and holds no old snapshot of the file.
                rows = self._lookup.execute(_LOOKUP, (fingerprint, address, tenant)).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise schema.typed_error(error, self.path) from error
        best = None
        for row in rows:
            if row[2] is not None and row[2] <= times.now():  # most never expire, and ask no clock
                continue
            if best is None or row > best:
                best = row
        id: str | None = best[1] if best else None
        return id

    def holder(self, address: bytes, tenant: str, fingerprint: str) -> str | None:
        """The id of the active deposit at `address` that was made under this very fingerprint."""
        rows = self._rows(_HOLDER, address, tenant, fingerprint)
        return rows[0][0] if rows and (rows[0][1] is None or rows[0][1] > times.now()) else None

    def active_ids(self, tenant: str) -> Iterator[str]:
        """The ids of a tenant's active deposits, the oldest first; not of those that are made after
        the first one was asked for."""
        where, values = where_clause({"tenant = ?": tenant, **_of_status(ACTIVE)})
        sql = f"SELECT id FROM deposits {where} AND id > ? AND id <= ? ORDER BY id LIMIT 1000"
        last, newest = "", self._rows("SELECT max(id) FROM deposits")[0][0]
        while rows := self._rows(sql, *values, last, newest):
            yield from (id for (id,) in rows)
            last = rows[-1][0]

    def find(self, address: bytes, tenant: str, fingerprint: str | None = None) -> Deposit | None:
        """The deposit that `lookup` names, whole and checked.

        Raises:
            StoreError: also when the record is not what was written; treat it as a miss.
        """
        rows = self._rows(_FIND, address, tenant, times.now(), fingerprint)
        return from_row(rows[0]) if rows else None

    def get(self, id: str) -> Deposit:
        """The deposit `id`, whatever its status.

        Raises:
            RecordNotFound: there is none.
            StoreError: also when the record is not what was written.
        """
        rows = self._rows(f"SELECT {_COLUMNS} FROM deposits WHERE id = ?", id)
        if not rows:
            raise RecordNotFound("the library has no such deposit", where=id)
        return from_row(rows[0])

    def is_active(self, id: str) -> bool:
        """Whether the deposit may be answered from, as of now."""
        sql = "SELECT expires_at FROM deposits WHERE id = ? AND status = ?"
        rows = self._rows(sql, id, ACTIVE)
        return bool(rows) and (rows[0][0] is None or rows[0][0] > times.now())

    def list(
        self,
        *,
        tenant: str | None = None,
        status: str | None = None,
        model: str | None = None,
        fingerprint: str | None = None,
        verifier: str | None = None,
        source: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> tuple[Deposit, ...]:
        """Deposits of any status, newest first; `None` filters nothing.

        `before` is the last id of the page before. Damaged records are left out: `check` names
        them, and one of them must not hide all others.

        Raises:
            LimitExceeded: `limit` is over `limits.MAX_LISTED_DEPOSITS`.
        """
        if not 0 <= limit <= limits.MAX_LISTED_DEPOSITS:
            raise LimitExceeded(f"at most {limits.MAX_LISTED_DEPOSITS:,} deposits at a time")
        where, values = where_clause(
            {
                "tenant = ?": tenant,
                **_of_status(status),
                "model = ?": model,
                "fingerprint = ?": fingerprint,
                "verifier = ?": verifier,
                "source = ?": source,
                "parent = ?": parent,
                "id < ?": before,
            }
        )
        sql = f"SELECT {_COLUMNS} FROM deposits {where} ORDER BY id DESC LIMIT ?"
        rows = self._rows(sql, *values, limit)
        return tuple(deposit for row in rows if isinstance(deposit := _or_error(row), Deposit))

    def count(self, *, tenant: str | None = None, status: str | None = ACTIVE) -> int:
        """How many deposits there are; active ones, unless another `status` or `None` is given."""
        where, values = where_clause({"tenant = ?": tenant, **_of_status(status)})
        return int(self._rows(f"SELECT count(*) FROM deposits {where}", *values)[0][0])

    def check(self) -> builtins.list[str]:
        """What is wrong with the file, a line for each finding; empty when all is well.

        Reads everything: the file's structure, its references, and each record's digest and
        address.
        """
        with self._guarded():
            found = schema.damage(self._connection)
            for row in self._connection.execute(f"SELECT {_COLUMNS} FROM deposits"):
                if isinstance(error := _or_error(row), StoreError):
                    found.append(f"{error.where}: {error.what}")
        return found

    # --- writing ------------------------------------------------------------------------------

    def deposit(self, new: NewDeposit, *, supersede: bool = False) -> Deposit:
        """Keep a verified solution; durable when this returns.

        Where the same address, tenant and fingerprint already has an active deposit, that one is
        returned as it is; with `supersede`, or where that one has expired, it is replaced in the
        same transaction. What the new one rests on may end it sooner than it says.

        Raises:
            InputError, LimitExceeded: as `check_new` and `encode`; also a parent or an origin that
                was revoked or has expired.
            RecordNotFound: the parent or the origin is not in this library.
        """
        check_new(new)
        row = encode(new)
        with self._writing():
            rows = self._rows(_HOLDER, row["address"], new.tenant, new.fingerprint)
            old, end = rows[0] if rows else (None, None)
            holds = old is not None and (end is None or end > times.now())
            if holds and not supersede:
                return self.get(old)
            row["expires_at"] = self._end(row["expires_at"], new.parent, new.origin)
            id, now = self._next_id(), times.now()
            detail = {"replay": new.replay, "source": new.source}
            if old is not None:
                self._connection.execute(
                    "UPDATE deposits SET status = ? WHERE id = ?", (SUPERSEDED, old)
                )
                self._log(now, "supersede", old, {"by": id})
                detail["supersedes"] = old
            self._connection.execute(_INSERT, seal(row, id=id, created_at=now))
            self._log(now, "deposit", id, detail)
        return self.get(id)

    def record_replay(
        self, id: str, *, replays: bool, reason: str = "", logits_sha256: str | None = None
    ) -> Deposit:
        """Write down what a replay of deposit `id` from disk showed.

        Raises:
            RecordNotFound: there is none.
            InputError: as `check_replay`.
        """
        with self._writing():
            check_replay(self.get(id), replays, reason, logits_sha256)
            self._connection.execute(
                "UPDATE deposits SET replay = ?, replay_reason = ?, replay_logits_sha256 = ?"
                " WHERE id = ?",
                (REPLAYS if replays else TEXT_ONLY, reason, logits_sha256, id),
            )
            detail = {"replays": replays, "reason": reason, "logits_sha256": logits_sha256}
            self._log(times.now(), "replay", id, detail)
            return self.get(id)

    def _next_id(self) -> str:
        # Microseconds since 1970, then chance: ids sort by time, within one library strictly so,
        # even where the clock was set back; two libraries do not give the same one.
        last = self._rows("SELECT max(id) FROM deposits")[0][0]
        micros = time.time_ns() // 1000
        if last is not None:
            micros = max(micros, int(last[:14], 16) + 1)
        return f"{micros:014x}{secrets.token_hex(5)}"


def _of_status(status: str | None) -> dict[str, str | None]:
    """The conditions of a status: a deposit that has expired is not active any more."""
    holds = "coalesce(expires_at > ?, 1)"
    if status == ACTIVE:
        return {"status = ?": ACTIVE, holds: times.now()}
    if status == EXPIRED:
        return {"status = ?": ACTIVE, f"NOT {holds}": times.now()}
    return {"status = ?": status}


def _or_error(row: tuple[Any, ...]) -> Deposit | StoreError:
    try:
        return from_row(row)
    except StoreError as error:
        return error
