"""Verdicts given again, from what they were given on: no model is needed.

A verifier may have another version today than when a deposit was made; the newer one judges, and
the audit log says so. A verdict that cannot be given says nothing: the deposit stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvgraft.errors import KvgraftError, StoreError, VerifierError
from kvgraft.library.deposit import ACTIVE, Deposit, Grounds
from kvgraft.library.life import FAILED, NOT_JUDGED, PASSED
from kvgraft.library.records import Library
from kvgraft.library.restate import restatement
from kvgraft.library.verify.base import GRADES, Verdict, Verifier, beginning
from kvgraft.library.verify.specs import make_verifier
from kvgraft.limits import MAX_EVIDENCE_TEXT_CHARS, MAX_LIBRARY_NAME_CHARS

_MAKES_PROCESSES = "command"


@dataclass(frozen=True)
class Reverified:
    """What became of one deposit: passed, failed or not_judged, and why. `version`: of the verifier
    that judged now, None where none did. `revoked`: the ids that were revoked for it."""

    id: str
    problem: str
    outcome: str
    reason: str
    verifier: str
    deposited_version: str
    version: str | None
    revoked: tuple[str, ...] = ()


class Verifiers:
    """The verifiers that stored specs name, each made when it is first needed.

    A spec with the verifier `command` in it runs a program of this machine, and a library may come
    from elsewhere: such a spec must be among `allowed`.
    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = allowed
        self._made: dict[str, Verifier] = {}

    def get(self, spec: str) -> Verifier:
        """The verifier.

        Raises:
            VerifierError: it is not allowed. UsageError, MissingExtra: as `make_verifier`.
        """
        if spec not in self._made:
            if _MAKES_PROCESSES in spec and spec not in self._allowed:
                raise VerifierError(
                    "the verifier runs a program of this machine",
                    where=spec,
                    hint="name it with --verifier, if the program is to be trusted",
                )
            self._made[spec] = make_verifier(spec)
        return self._made[spec]

    def close(self) -> None:
        """Close them all. Idempotent."""
        while self._made:
            self._made.popitem()[1].close()

    def __enter__(self) -> Verifiers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def reverify(
    library: Library, ids: Iterable[str], verifiers: Verifiers, *, revoke_failed: bool = False
) -> Iterator[Reverified]:
    """Give the verdicts of active deposits again, one by one, each written down before the next.
    `Library.due` has ids whose turn it is. What fails is revoked with `revoke_failed` alone.

    Raises:
        RecordNotFound: there is no such deposit.
        StoreError: the library cannot be written.
    """
    for id in ids:
        try:
            deposit = library.get(id)
        except StoreError as error:
            library.record_reverify(id, NOT_JUDGED, {"reason": error.what})
            yield Reverified(id, "", NOT_JUDGED, error.what, "", "", None)
            continue
        if deposit.status != ACTIVE:  # another process may have revoked it meanwhile
            outcome, detail = NOT_JUDGED, {"reason": f"it is {deposit.status}"}
        else:
            outcome, detail = _verdict_again(deposit, verifiers)
            library.record_reverify(id, outcome, detail)
        reason = detail["reason"]
        revoked: tuple[str, ...] = ()
        if outcome == FAILED and revoke_failed:
            why = f"verified again with {deposit.verdict.verifier} {detail['version']}: {reason}"
            revoked = library.revoke(id, why[:MAX_LIBRARY_NAME_CHARS])
        verdict = deposit.verdict
        yield Reverified(
            *(id, deposit.problem, outcome, reason, verdict.verifier, verdict.version),
            detail.get("version"),
            revoked,
        )


def _verdict_again(deposit: Deposit, verifiers: Verifiers) -> tuple[str, dict[str, Any]]:
    """The outcome, and what the audit log says of it."""
    grounds = deposit.grounds
    if grounds is None:
        return NOT_JUDGED, {"reason": "what its verdict was given on was not kept then"}
    try:
        verifier = verifiers.get(grounds.spec)
        outcome, reason = _judged(deposit, grounds, verifier)
    except KvgraftError as error:
        return NOT_JUDGED, {"reason": str(error)}
    except Exception as error:  # a verifier may be a plug-in; one crash must not lose the others
        return NOT_JUDGED, {"reason": f"the verifier crashed: {type(error).__name__}: {error}"}
    return outcome, {
        "reason": reason,
        "version": verifier.version,
        "deposited_version": deposit.verdict.version,
    }


def _judged(deposit: Deposit, grounds: Grounds, verifier: Verifier) -> tuple[str, str]:
    """The outcome, and why."""
    solution = verifier.verify(grounds.case, deposit.trace + grounds.tail)
    about, verdict = "the solution", solution
    if solution.passed and grounds.restated is not None:
        about = "the restated answer"
        verdict = restatement(verifier, grounds.case, solution, grounds.restated)
    if "failure" in verdict.evidence and verdict.grade == "none":
        return NOT_JUDGED, f"{about}: the verifier failed: {_short(verdict.evidence['failure'])}"
    if not verdict.passed:
        return FAILED, f"{about} does not pass: {_short(verdict.evidence)}"
    if verdict.answer != deposit.answer:
        return FAILED, f"{about} passes with another answer: {_short(verdict.answer)}"
    if weaker := _weaker(deposit.verdict, solution, verdict):
        return FAILED, f"{about} passes, but the grade is {weaker} only"
    return PASSED, ""


def _weaker(deposited: Verdict, *now: Verdict) -> str:
    """The lowest grade now, if it is below the deposited one."""
    lowest = min((verdict.grade for verdict in now), key=GRADES.index)
    return lowest if GRADES.index(lowest) < GRADES.index(deposited.grade) else ""


def _short(value: object) -> str:
    return beginning(value if isinstance(value, str) else repr(value), MAX_EVIDENCE_TEXT_CHARS)
