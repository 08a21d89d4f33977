"""Whether what a method was learned from still stands. Asked each time, never remembered."""

from __future__ import annotations

from collections.abc import Iterable

from kvgraft.errors import DepositExpired, DepositRevoked, RecordNotFound, StoreError
from kvgraft.library.deposit import SUPERSEDED, check_trusted
from kvgraft.library.methods.method import Evidence, Method
from kvgraft.library.records import Library

_MOST_SUCCESSORS = 64


def standing(
    method: Method, library: Library | None, tenant: str
) -> tuple[tuple[Evidence, ...], str]:
    """The evidence of a method whose deposits all stand, and why the rest does not. There is none
    where what its programs were written from does not stand: then the method does not either."""
    whole: list[Evidence] = []
    why = ""
    for number, evidence in enumerate(method.evidence):
        fallen = _fallen(evidence, library, tenant)
        if fallen and number == 0:
            return (), fallen
        why = why or fallen
        if not fallen:
            whole.append(evidence)
    return tuple(whole), why


def _fallen(evidence: Evidence, library: Library | None, tenant: str) -> str:
    """Why a deposit of the evidence does not stand, or nothing."""
    answers = {one.deposit: one.answer for one in evidence.instances if one.deposit is not None}
    if not answers:
        return ""
    if library is None:
        return "the library with its deposits is not there"
    reasons = (_reason(library, id, answer, tenant) for id, answer in answers.items())
    return next(filter(None, reasons), "")


def _reason(library: Library, id: str, answer: str, tenant: str) -> str:
    try:
        for one in _line(library, id):
            deposit = check_trusted(library.get(one))
            if deposit.tenant != tenant:
                return f"deposit {one} is another tenant's"
            if deposit.answer.strip() != answer:
                return f"deposit {one} has another answer"
    except (RecordNotFound, StoreError, DepositRevoked, DepositExpired) as error:
        return f"deposit {error.where or id}: {error.what}"
    return ""


def _line(library: Library, id: str) -> Iterable[str]:
    """A deposit, and what superseded it one after the other: all of them must say the same."""
    following: str | None = id
    for _ in range(_MOST_SUCCESSORS):
        if following is None:
            return
        yield following
        superseded = library.get(following).status == SUPERSEDED
        following = library.neighbours(following)[1] if superseded else None
    raise StoreError("it was superseded too often", where=id)
