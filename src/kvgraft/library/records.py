"""The library: verified deposits, their history, and the state of resumable runs, in one file.

One SQLite file in WAL mode serves several processes. Nothing is remembered between calls, so a
revocation in one process is seen by the very next look-up in every other.
"""

from __future__ import annotations

import builtins
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kvgraft import limits
from kvgraft.errors import InputError, LimitExceeded, RecordNotFound, StoreError, StoreReadOnly
from kvgraft.library import schema
from kvgraft.library.deposit import (
    ACTIVE,
    COLUMNS,
    REPLAYS,
    REVOKED,
    SUPERSEDED,
    TEXT_ONLY,
    AuditEvent,
    Deposit,
    NewDeposit,
    Run,
    check_new,
    check_replay,
    encode,
    from_row,
    json_object,
    json_text,
    seal,
)

__all__ = ["AuditEvent", "Deposit", "Library", "NewDeposit", "Run"]

_COLUMNS = ", ".join(COLUMNS)
_INSERT = f"INSERT INTO deposits ({_COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS))})"
_LOOKUP = "SELECT fingerprint IS ?, deposit FROM active WHERE address = ? AND tenant = ?"
_FIND = f"""
    SELECT {", ".join(f"d.{column}" for column in COLUMNS)}
    FROM active AS a JOIN deposits AS d ON d.id = a.deposit
    WHERE a.address = ? AND a.tenant = ? AND d.status = '{ACTIVE}'
    ORDER BY a.fingerprint IS ? DESC, a.deposit DESC LIMIT 1
"""
_REVOKE = "UPDATE deposits SET status = ?, revoked_at = ?, revoke_reason = ? WHERE id = ?"
_SELF_AND_FOLLOW_UPS = """
    WITH RECURSIVE kin (id) AS (
        VALUES (?) UNION SELECT d.id FROM deposits AS d JOIN kin ON d.parent = kin.id
    )
    SELECT d.id, d.status FROM kin JOIN deposits AS d ON d.id = kin.id ORDER BY d.id
"""


class Library:
    """All deposits of one file. Threads may share it; a forked child opens its own.

    Any method may raise `StoreError` (damaged, held by another process too long, closed),
    writing ones also `StoreFull` and `StoreReadOnly`; whatever was being written is then undone.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
        """Use `Library.open`."""
        self.path = path
        self.read_only = read_only
        self._connection = connection
        self._lookup = connection.cursor()  # kept, so that a look-up makes no new one
        self._lock = threading.RLock()

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

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- reading ------------------------------------------------------------------------------

    def lookup(self, address: bytes, tenant: str, fingerprint: str | None = None) -> str | None:
        """The id of the active deposit at `address`, or `None`. The hot path: microseconds.

        One address may hold a deposit per fingerprint: the one made under `fingerprint` comes
        first, else the newest. What was revoked, in whichever process, is not found.
        """
        try:
            with self._lock:
                # All rows, so that the statement ends and holds no old snapshot of the file.
                rows = self._lookup.execute(_LOOKUP, (fingerprint, address, tenant)).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise schema.typed_error(error, self.path) from error
        best: str | None = max(rows)[1] if rows else None
        return best

    def find(self, address: bytes, tenant: str, fingerprint: str | None = None) -> Deposit | None:
        """The deposit that `lookup` names, whole and checked.

        Raises:
            StoreError: also when the record is not what was written; treat it as a miss.
        """
        with self._guarded():
            rows = self._connection.execute(_FIND, (address, tenant, fingerprint)).fetchall()
        return from_row(rows[0]) if rows else None

    def get(self, id: str) -> Deposit:
        """The deposit `id`, whatever its status.

        Raises:
            RecordNotFound: there is none.
            StoreError: also when the record is not what was written.
        """
        with self._guarded():
            sql = f"SELECT {_COLUMNS} FROM deposits WHERE id = ?"
            rows = self._connection.execute(sql, (id,)).fetchall()
        if not rows:
            raise RecordNotFound("the library has no such deposit", where=id)
        return from_row(rows[0])

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
        where, values = _where(
            {
                "tenant = ?": tenant,
                "status = ?": status,
                "model = ?": model,
                "fingerprint = ?": fingerprint,
                "verifier = ?": verifier,
                "source = ?": source,
                "parent = ?": parent,
                "id < ?": before,
            }
        )
        sql = f"SELECT {_COLUMNS} FROM deposits {where} ORDER BY id DESC LIMIT ?"
        with self._guarded():
            rows = self._connection.execute(sql, (*values, limit)).fetchall()
        return tuple(deposit for row in rows if isinstance(deposit := _or_error(row), Deposit))

    def count(self, *, tenant: str | None = None, status: str | None = ACTIVE) -> int:
        """How many deposits there are; active ones, unless another `status` or `None` is given."""
        where, values = _where({"tenant = ?": tenant, "status = ?": status})
        with self._guarded():
            sql = f"SELECT count(*) FROM deposits {where}"
            return int(self._connection.execute(sql, values).fetchall()[0][0])

    def audit(self, id: str | None = None, *, limit: int = 1000) -> tuple[AuditEvent, ...]:
        """What happened, to deposit `id` or to all, the last `limit` events, oldest first."""
        where, values = _where({"deposit = ?": id})
        sql = f"SELECT seq, at, event, deposit, detail FROM audit {where} ORDER BY seq DESC LIMIT ?"
        with self._guarded():
            rows = self._connection.execute(sql, (*values, limit)).fetchall()
            return tuple(
                AuditEvent(seq, at, event, deposit, json_object(detail))
                for seq, at, event, deposit, detail in reversed(rows)
            )

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

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make all writes of the block durable together, in one go, or none of them.

        Other processes see nothing of it, and cannot write, until it ends.
        """
        with self._writing():
            yield

    def deposit(self, new: NewDeposit, *, supersede: bool = False) -> Deposit:
        """Keep a verified solution; durable when this returns.

        Where the same address, tenant and fingerprint already has an active deposit, that one is
        returned as it is; with `supersede` it is replaced in the same transaction.

        Raises:
            InputError, LimitExceeded: as `check_new` and `encode`; also a parent that was revoked.
            RecordNotFound: the parent is not in this library.
        """
        check_new(new)
        row = encode(new)
        with self._writing():
            same = (new.fingerprint, row["address"], new.tenant, new.fingerprint)
            rows = self._connection.execute(f"{_LOOKUP} AND fingerprint = ?", same).fetchall()
            old: str | None = rows[0][1] if rows else None
            if old is not None and not supersede:
                return self.get(old)
            if new.parent is not None and self.get(new.parent).status == REVOKED:
                raise InputError("the parent deposit was revoked", where=new.parent)
            id, now = self._next_id(), _now()
            if old is not None:
                self._connection.execute(
                    "UPDATE deposits SET status = ? WHERE id = ?", (SUPERSEDED, old)
                )
                self._log(now, "supersede", old, {"by": id})
            self._connection.execute(_INSERT, seal(row, id=id, created_at=now))
            self._log(now, "deposit", id, {"replay": new.replay, "source": new.source})
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
            self._log(_now(), "replay", id, detail)
            return self.get(id)

    def revoke(self, id: str, reason: str) -> tuple[str, ...]:
        """Take deposit `id` out of look-up for good, and every follow-up that rests on it.

        Returns the ids that this call revoked: none where `id` was revoked before, whose first
        reason then stays. Works on damaged records too.

        Raises:
            RecordNotFound: there is none.
            InputError: `reason` is empty; LimitExceeded: or too long.
        """
        if not reason.strip():
            raise InputError("a revocation says why", where=id)
        if len(reason) > limits.MAX_LIBRARY_NAME_CHARS:
            raise LimitExceeded(f"a reason ends at {limits.MAX_LIBRARY_NAME_CHARS} characters")
        with self._writing():
            rows = self._connection.execute(_SELF_AND_FOLLOW_UPS, (id,)).fetchall()
            if not rows:
                raise RecordNotFound("the library has no such deposit", where=id)
            kin = tuple(one for one, status in rows if status != REVOKED)
            now = _now()
            for one in kin:
                why = reason if one == id else f"follows up {id}, which was revoked: {reason}"
                self._connection.execute(_REVOKE, (REVOKED, now, why, one))
                self._log(now, "revoke", one, {"reason": why})
        return kin

    # --- resumable runs -----------------------------------------------------------------------

    def run_get(self, run_key: str, problem_key: str) -> Run | None:
        """How far the run got with the problem, or `None` where it has not begun."""
        found = self._runs("WHERE run_key = ? AND problem_key = ?", (run_key, problem_key))
        return found[0] if found else None

    def run_list(self, run_key: str) -> tuple[Run, ...]:
        """All problems that the run has begun, by problem key."""
        return self._runs("WHERE run_key = ? ORDER BY problem_key", (run_key,))

    def run_put(
        self,
        run_key: str,
        problem_key: str,
        *,
        state: str,
        attempts_done: int,
        detail: Mapping[str, Any] | None = None,
    ) -> Run:
        """Write down how far a run got with a problem, in place of what was written before.

        Raises:
            InputError: an empty key or state, a negative count, a detail that is no JSON object.
            LimitExceeded: a key or the detail is over its cap.
        """
        if not run_key or not problem_key or not state or not 0 <= attempts_done < 2**63:
            raise InputError("a run needs its keys, a state and a count of attempts")
        if max(map(len, (run_key, problem_key, state))) > limits.MAX_LIBRARY_NAME_CHARS:
            raise LimitExceeded(f"keys end at {limits.MAX_LIBRARY_NAME_CHARS} characters")
        text = json_text("detail", detail or {}, limits.MAX_LIBRARY_JSON_CHARS)
        row = (run_key, problem_key, state, attempts_done, _now(), text)
        with self._writing():
            self._connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
        return Run(*row[:-1], json_object(text))

    def _runs(self, where: str, values: tuple[str, ...]) -> tuple[Run, ...]:
        columns = "run_key, problem_key, state, attempts_done, updated_at, detail"
        sql = f"SELECT {columns} FROM runs {where}"
        with self._guarded():
            rows = self._connection.execute(sql, values).fetchall()
            return tuple(
                Run(run, problem, state, done, at, json_object(detail))
                for run, problem, state, done, at, detail in rows
            )

    # --- the frame around every statement -----------------------------------------------------

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock, schema.typed_errors(self.path):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self.read_only:
            raise StoreReadOnly("the library was opened for reading only", where=str(self.path))
        with self._guarded(), schema.transaction(self._connection):
            yield

    def _next_id(self) -> str:
        # Microseconds since 1970, then chance: ids sort by time, within one library strictly so,
        # even where the clock was set back; two libraries do not give the same one.
        last = self._connection.execute("SELECT max(id) FROM deposits").fetchall()[0][0]
        micros = time.time_ns() // 1000
        if last is not None:
            micros = max(micros, int(last[:14], 16) + 1)
        return f"{micros:014x}{secrets.token_hex(5)}"

    def _log(self, now: str, event: str, id: str, detail: Mapping[str, Any]) -> None:
        text = json_text("detail", detail, limits.MAX_LIBRARY_JSON_CHARS)
        self._connection.execute(
            "INSERT INTO audit (at, event, deposit, detail) VALUES (?, ?, ?, ?)",
            (now, event, id, text),
        )


def _or_error(row: tuple[Any, ...]) -> Deposit | StoreError:
    try:
        return from_row(row)
    except StoreError as error:
        return error


def _where(conditions: Mapping[str, str | None]) -> tuple[str, tuple[str, ...]]:
    given = {term: value for term, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(given) if given else "", tuple(given.values()))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")
