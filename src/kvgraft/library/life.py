"""What happens to deposits after they were made: revocation, expiry, verdicts given again.

Everything here is written down in the audit log, which can only be added to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvgraft import limits
from kvgraft.errors import InputError, LimitExceeded, RecordNotFound, UsageError
from kvgraft.library import times
from kvgraft.library.connection import LibraryFile
from kvgraft.library.deposit import ACTIVE, REVOKED, AuditEvent
from kvgraft.library.rows import json_object

PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not_judged"

_PAGE_ROWS = 1_000
_STATE = "SELECT status, expires_at, parent FROM deposits WHERE id = ?"
_REVOKE = "UPDATE deposits SET status = ?, revoked_at = ?, revoke_reason = ? WHERE id = ?"
# What stands and falls with a deposit, and why. The same solution may have states for several
# fingerprints; each of them is named here from each other.
_KIN = """
    SELECT id, 'follows up' FROM deposits WHERE parent = ?
    UNION ALL SELECT id, 'is a copy of' FROM deposits WHERE origin = ?
    UNION ALL SELECT origin, 'was copied as' FROM deposits WHERE id = ? AND origin IS NOT NULL
"""
_DUE = """
    SELECT coalesce(verified_at, created_at), id FROM deposits
    WHERE status = 'active' AND (expires_at IS NULL OR expires_at > ?)
    AND coalesce(verified_at, created_at) <= ?
    AND (coalesce(verified_at, created_at), id) > (?, ?)
    AND tenant = ? AND verifier_spec IS coalesce(?, verifier_spec)
"""


class Life(LibraryFile):
    """The life of deposits, over one file."""

    # --- the audit log --------------------------------------------------------------------------

    def audit(
        self,
        id: str | None = None,
        *,
        tenant: str | None = None,
        since: str | None = None,
        limit: int = 1000,
    ) -> tuple[AuditEvent, ...]:
        """What happened, to deposit `id` or to all (of a tenant), the last `limit` events (since a
        time), oldest first.

        Raises:
            InputError: `since` is no time.
        """
        where, values = where_clause(
            {
                "deposit = ?": id,
                "EXISTS (SELECT 1 FROM deposits WHERE id = deposit AND tenant = ?)": tenant,
                "at >= ?": None if since is None else times.as_utc(since),
            }
        )
        sql = f"SELECT seq, at, event, deposit, detail FROM audit {where} ORDER BY seq DESC LIMIT ?"
        rows = self._rows(sql, *values, limit)
        return tuple(
            AuditEvent(seq, at, event, deposit, json_object(detail))
            for seq, at, event, deposit, detail in reversed(rows)
        )

    def neighbours(self, id: str) -> tuple[str | None, str | None]:
        """What a deposit superseded, and what superseded it; None where nothing did."""
        before = after = None
        for event in self.audit(id):
            before = event.detail.get("supersedes", before)
            after = event.detail.get("by", after) if event.event == "supersede" else after
        # Before schema version 2 only the older of the two had it in its history.
        old = self._rows("SELECT 1 FROM deposits WHERE id = ? AND content_version = 1", id)
        if before is None and old:
            sql = "SELECT deposit FROM audit WHERE event = 'supersede' AND detail LIKE ?"
            before = next((row[0] for row in self._rows(sql, f'%"by":"{id}"%')), None)
        return before, after

    # --- revocation -----------------------------------------------------------------------------

    def revoke(self, id: str, reason: str, *, dry_run: bool = False) -> tuple[str, ...]:
        """Take deposit `id` out of look-up for good, and with it every follow-up that rests on it
        and every copy of its solution for another fingerprint. `dry_run` only tells which.

        Returns the ids that this call revoked: none where `id` was revoked before, whose first
        reason then stays. Works on damaged records too.

        Raises:
            RecordNotFound: there is none.
            InputError: `reason` is empty; LimitExceeded: or too long.
        """
        _check_reason(reason, id)
        with self._guarded() if dry_run else self._writing():
            if not self._rows(_STATE, id):
                raise RecordNotFound("the library has no such deposit", where=id)
            return self._revoke([id], reason, dry_run)

    def revoke_where(
        self,
        *,
        reason: str,
        source: str | None = None,
        verifier: str | None = None,
        verifier_version: str | None = None,
        model: str | None = None,
        fingerprint: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> tuple[str, ...]:
        """Revoke, in one transaction, every deposit that all filters fit, and what stands and falls
        with them; the ids. `dry_run` only tells them.

        Raises:
            UsageError: nothing but a tenant is given, or a version without its verifier.
            InputError, LimitExceeded: as `revoke`; also an empty filter.
        """
        filters = {
            "source = ?": source,
            "verifier = ?": verifier,
            "verifier_version = ?": verifier_version,
            "model = ?": model,
            "fingerprint = ?": fingerprint,
        }
        if all(value is None for value in filters.values()):
            raise UsageError("say what to revoke", hint="by source, verifier, model, fingerprint")
        if "" in filters.values() or tenant == "":
            raise InputError("a filter is empty; leave it out, or say what it is")
        if verifier_version is not None and verifier is None:
            raise UsageError("a version is of a verifier", hint="name that too")
        _check_reason(reason, "")
        where, values = where_clause({**filters, "tenant = ?": tenant, "status <> ?": REVOKED})
        sql = f"SELECT id FROM deposits {where} ORDER BY id"
        with self._guarded() if dry_run else self._writing():
            return self._revoke([row[0] for row in self._rows(sql, *values)], reason, dry_run)

    def _revoke(self, ids: Iterable[str], reason: str, dry_run: bool) -> tuple[str, ...]:
        now, revoked = times.now(), []
        for id, tie in self._with_kin(ids).items():
            if self._rows(_STATE, id)[0][0] == REVOKED:
                continue
            revoked.append(id)
            if not dry_run:
                why = f"{tie}, which was revoked: {reason}" if tie else reason
                self._connection.execute(_REVOKE, (REVOKED, now, why, id))
                self._log(now, "revoke", id, {"reason": why})
        return tuple(sorted(revoked))

    def _with_kin(self, ids: Iterable[str]) -> dict[str, str]:
        """The deposits, and what stands and falls with them: how each is tied to another one."""
        ties = dict.fromkeys(ids, "")
        to_follow = list(ties)
        while to_follow:
            id = to_follow.pop()
            for kin, tie in self._rows(_KIN, id, id, id):
                if kin not in ties:
                    ties[kin] = f"{tie} {id}"
                    to_follow.append(kin)
        return ties

    # --- expiry ---------------------------------------------------------------------------------

    def expire(self, id: str, at: str | None) -> tuple[str, ...]:
        """Let deposit `id` hold until `at` (None: for good), be that sooner or later than before.
        What stands and falls with it ends no later. Returns the ids that this call changed.

        Raises:
            RecordNotFound: there is none.
            InputError: `at` is no time; the deposit was revoked or superseded; what it follows up
                ends sooner.
        """
        at = None if at is None else times.as_utc(at)
        changed = []
        with self._writing():
            rows = self._rows(_STATE, id)
            if not rows:
                raise RecordNotFound("the library has no such deposit", where=id)
            status, _, parent = rows[0]
            if status != ACTIVE:
                raise InputError(f"the deposit was {status}, which is for good", where=id)
            if parent is not None and _outlasts(at, end := self._rows(_STATE, parent)[0][1]):
                raise InputError(
                    f"it follows up {parent}, which holds until {end}",
                    where=id,
                    hint="let that one hold longer first",
                )
            for one in self._with_kin([id]):
                status, before, _ = self._rows(_STATE, one)[0]
                if status == ACTIVE and (before != at if one == id else _outlasts(before, at)):
                    sql = "UPDATE deposits SET expires_at = ? WHERE id = ?"
                    self._connection.execute(sql, (at, one))
                    self._log(times.now(), "expire", one, {"expires_at": at, "before": before})
                    changed.append(one)
        return tuple(sorted(changed))

    def _end(self, at: str | None, *rests_on: str | None) -> str | None:
        """`at`, or sooner: when the first of the deposits that something rests on expires.

        Raises:
            RecordNotFound: one of them is not there.
            InputError: one of them was revoked, or has expired.
        """
        for id in rests_on:
            if id is None:
                continue
            rows = self._rows(_STATE, id)
            if not rows:
                raise RecordNotFound("the library has no such deposit", where=id)
            status, end, _ = rows[0]
            if status == REVOKED:
                raise InputError("a deposit that this one rests on was revoked", where=id)
            if end is not None and end <= times.now():
                raise InputError("a deposit that this one rests on has expired", where=id)
            at = end if _outlasts(at, end) else at
        return at

    # --- verdicts and replays, later ------------------------------------------------------------

    def due(
        self, days: float | None = None, *, tenant: str, verifier_spec: str | None = None
    ) -> Iterator[str]:
        """The ids of a tenant's active deposits that no verdict was given on for `days` (None: of
        all), the longest first. Each is told once, whatever happens to it meanwhile.

        Raises:
            InputError: more days than `limits.MAX_EXPIRY_DAYS`.
        """
        now = times.now()
        until, last = now if days is None else times.days_ago(days), ("", "")
        sql = f"{_DUE} ORDER BY coalesce(verified_at, created_at), id LIMIT ?"
        while rows := self._rows(sql, now, until, *last, tenant, verifier_spec, _PAGE_ROWS):
            yield from (id for _, id in rows)
            last = rows[-1]

    def count_due(
        self, days: float | None = None, *, tenant: str, verifier_spec: str | None = None
    ) -> int:
        """How many ids `due` has."""
        now = times.now()
        until = now if days is None else times.days_ago(days)
        rows = self._rows(
            f"SELECT count(*) FROM ({_DUE})", now, until, "", "", tenant, verifier_spec
        )
        return int(rows[0][0])

    def record_reverify(self, id: str, outcome: str, detail: Mapping[str, Any]) -> None:
        """Write down that a deposit's verdict was given again, or why it could not be."""
        now = times.now()
        with self._writing():
            if outcome == PASSED:
                sql = "UPDATE deposits SET verified_at = ? WHERE id = ?"
                self._connection.execute(sql, (now, id))
            log = self._log_once if outcome == NOT_JUDGED else self._log
            log(now, "reverify", id, {"outcome": outcome, **detail})

    def record_rebuild(self, id: str, detail: Mapping[str, Any]) -> None:
        """Write down what became of making a deposit's state again."""
        with self._writing():
            self._log_once(times.now(), "rebuild", id, detail)

    def record_replay_failed(self, id: str, reason: str, fingerprint: str) -> None:
        """Write down that a request did not get what the record says."""
        detail = {"reason": reason[: limits.MAX_LIBRARY_NAME_CHARS], "fingerprint": fingerprint}
        with self._writing():
            self._log_once(times.now(), "replay_failed", id, detail)


def where_clause(conditions: Mapping[str, str | None]) -> tuple[str, tuple[str, ...]]:
    """The WHERE of the conditions that have a value, and their values."""
    given = {term: value for term, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(given) if given else "", tuple(given.values()))


def _check_reason(reason: str, id: str) -> None:
    if not reason.strip():
        raise InputError("a revocation says why", where=id)
    if len(reason) > limits.MAX_LIBRARY_NAME_CHARS:
        raise LimitExceeded(f"a reason ends at {limits.MAX_LIBRARY_NAME_CHARS} characters")


def _outlasts(one: str | None, other: str | None) -> bool:
    """Whether the first of two ends is the later one; None is no end."""
    return other is not None and (one is None or one > other)
