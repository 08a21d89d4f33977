"""The combinators `all` and `any`: several verifiers as one, about one answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from kvgraft import limits
from kvgraft.errors import UsageError
from kvgraft.library.verify.base import GRADES, Case, Verdict, Verifier, summary, version_of
from kvgraft.library.verify.canonical import canonical_answer

HINT = "each verifier in brackets of its own: all:[math] [regex:[0-9]+]"
MAX_DEPTH = 8  # of brackets


class AllVerifier:
    """Passes what every member passes, about one and the same answer; later members are not asked
    after one that failed.

    Each member that passed has shown its own statement, so the grade is the strongest among them.

    Raises:
        UsageError: no members.
    """

    name = "all"

    def __init__(self, members: Sequence[Verifier]) -> None:
        self._members = _some(self.name, members)
        self.spec = _spec(self.name, members)
        self.version = _version(members)
        self.needs = frozenset().union(*(member.needs for member in members))

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`. Its answer is that of the first member that has one.

        Raises:
            VerifierError: as the members.
        """
        told: list[dict[str, Any]] = []
        answer: str | None = None
        grade = GRADES[0]
        for number, member in enumerate(self._members):
            verdict = member.verify(case, trace)
            told.append(_told(verdict))
            failed = not verdict.passed
            if not failed and answer is not None and verdict.answer is not None:
                failed = not _same(answer, verdict.answer)
                if failed:
                    told[-1]["reason"] = "it passed another answer than those before it"
            answer = verdict.answer if answer is None else answer
            if failed:
                not_run = [one.spec for one in self._members[number + 1 :]]
                evidence = _evidence(self.name, told, not_run)
                failing = verdict.grade if not verdict.passed else GRADES[0]
                return Verdict(False, failing, answer, self.name, self.version, evidence)
            grade = max(grade, verdict.grade, key=GRADES.index)
        evidence = _evidence(self.name, told, [])
        return Verdict(True, grade, answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Closes every member."""
        _close(self._members)


class AnyVerifier:
    """Passes what one member passes: the first in their order, whose grade and answer it takes.

    Raises:
        UsageError: no members.
    """

    name = "any"

    def __init__(self, members: Sequence[Verifier]) -> None:
        self._members = _some(self.name, members)
        self.spec = _spec(self.name, members)
        self.version = _version(members)
        # What one member lacks another may not need; but which of them will be asked depends on the
        # trace, and a case that lacks something would end a batch in its midst.
        self.needs = frozenset().union(*(member.needs for member in members))

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`; where all fail, the answer of the first that has one.

        Raises:
            VerifierError: as the members.
        """
        told: list[dict[str, Any]] = []
        failed: list[Verdict] = []
        for number, member in enumerate(self._members):
            verdict = member.verify(case, trace)
            told.append(_told(verdict))
            if verdict.passed:
                not_run = [one.spec for one in self._members[number + 1 :]]
                evidence = _evidence(self.name, told, not_run)
                grade, answer = verdict.grade, verdict.answer
                return Verdict(True, grade, answer, self.name, self.version, evidence)
            failed.append(verdict)
        answer = next((one.answer for one in failed if one.answer is not None), None)
        grade = min((one.grade for one in failed), key=GRADES.index)
        evidence = _evidence(self.name, told, [])
        return Verdict(False, grade, answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Closes every member."""
        _close(self._members)


def member_specs(argument: str) -> list[str]:
    """The specs in `[SPEC] [SPEC] ...`; brackets within a spec are balanced.

    Raises:
        UsageError: something outside brackets, an unbalanced one, no spec.
    """
    specs, depth, start = [], 0, 0
    for place, character in enumerate(argument):
        if character == "[":
            depth += 1
            if depth == 1:
                start = place + 1
            if depth > MAX_DEPTH:
                raise UsageError(f"brackets more than {MAX_DEPTH} deep", where=argument[:200])
        elif character == "]":
            depth -= 1
            if depth == 0:
                specs.append(argument[start:place])
        elif depth == 0 and not character.isspace():
            raise UsageError("a verifier stands outside brackets", where=argument, hint=HINT)
        if depth < 0:
            break
    if depth or not specs or not all(spec.strip() for spec in specs):
        raise UsageError("brackets do not match, or are empty", where=argument, hint=HINT)
    return specs


def make(
    kind: type[AllVerifier] | type[AnyVerifier], argument: str, maker: Callable[[str], Verifier]
) -> Verifier:
    """A combinator of what `maker` makes of each spec; those made are closed if a later one fails.

    Raises:
        UsageError: as `member_specs` and `maker`.
    """
    members: list[Verifier] = []
    try:
        for spec in member_specs(argument):
            members.append(maker(spec))
    except BaseException:
        _close(members)
        raise
    return kind(members)


def _some(name: str, members: Sequence[Verifier]) -> tuple[Verifier, ...]:
    if not members:
        raise UsageError(f"the verifier {name!r} needs others", hint=HINT)
    specs = [member.spec for member in members]
    if member_specs(" ".join(f"[{spec}]" for spec in specs)) != specs:
        # Else the spec would not say what it was made of, and nothing could be verified again.
        raise UsageError("the brackets in a member's spec do not match", where=" ".join(specs))
    return tuple(members)


def _spec(name: str, members: Sequence[Verifier]) -> str:
    return f"{name}:" + " ".join(f"[{member.spec}]" for member in members)


def _version(members: Sequence[Verifier]) -> str:
    return version_of("2", *(f"{member.spec} {member.version}" for member in members))


def _same(one: str, other: str) -> bool:
    return one == other or canonical_answer(one) == canonical_answer(other) is not None


def _told(verdict: Verdict) -> dict[str, Any]:
    return {
        "verifier": verdict.verifier,
        "version": verdict.version,
        "passed": verdict.passed,
        "grade": verdict.grade,
        "evidence": verdict.evidence,
    }


def _evidence(name: str, told: list[dict[str, Any]], not_run: list[str]) -> dict[str, Any]:
    """What speaks for each member's verdict; where all of it is too long, each shortened."""
    whole = {"method": name, "members": told, "not_run": not_run}
    if len(json.dumps(whole)) <= limits.MAX_EVIDENCE_CHARS:
        return whole
    short = [{**one, "evidence": summary(json.dumps(one["evidence"]))} for one in told]
    whole = {"method": name, "members": short, "not_run": [summary(spec) for spec in not_run]}
    if len(json.dumps(whole)) <= limits.MAX_EVIDENCE_CHARS:
        return whole
    return {"method": name, "members": summary(json.dumps(short)), "not_run": len(not_run)}


def _close(members: Sequence[Verifier]) -> None:
    """All of them, also where one raises; the first error is raised in the end."""
    errors: list[BaseException] = []
    for member in members:
        try:
            member.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
