"""Answering from methods: no model, no decoded token, and no answer where anything is uncertain.

A text is answered only where it is, character by character, a phrasing that was verified, with
values inside of what was verified; where every program, bound in every way that agrees with the
evidence, comes to one answer; and where what all of it was learned from still stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvgraft.errors import KvgraftError, SandboxUnavailable, StoreError
from kvgraft.library.address import canonical_text
from kvgraft.library.methods.checker import passes
from kvgraft.library.methods.domain import join
from kvgraft.library.methods.method import Method
from kvgraft.library.methods.records import Methods
from kvgraft.library.methods.skeleton import shape_of
from kvgraft.library.methods.trial import Arguments, Run, answers_of, bound, run_sandboxed
from kvgraft.library.methods.trust import standing
from kvgraft.library.methods.writing import NAMES
from kvgraft.library.records import Library
from kvgraft.library.verify.base import GRADES
from kvgraft.library.workspace import PUBLIC
from kvgraft.limits import MAX_METHOD_TEXT_CHARS
from kvgraft.meter import Cost, Stopwatch, process_cpu_seconds
from kvgraft.sandbox.run import NoValue

# Why there is no answer, in the order in which it is found out.
REASONS = (
    "too_long",
    "no_method",
    "another_text",
    "fallen",
    "outside",
    "no_sandbox",
    "program_failed",
    "disagreement",
    "refuted",
    "changed_meanwhile",
    "damaged",
)


@dataclass(frozen=True)
class MethodAnswer:
    """An answer that programs came to. `grade`: agreed (independent programs gave it), or that of
    the family's checker, which passed it. `methods`: the ids of those that gave it; `parameters`:
    what the first of them read from the text; `programs`: how many agreed."""

    answer: str
    grade: str
    methods: tuple[str, ...]
    parameters: Mapping[str, str]
    programs: int
    cost: Cost


@dataclass(frozen=True)
class Abstained:
    """No answer. `reason` is one of `REASONS`; `detail` says more."""

    reason: str
    detail: str
    cost: Cost


@dataclass(frozen=True)
class _Reading:
    """How a method reads a text, in each way that agrees with the evidence: the texts in the slots
    by the names of the parameters, and the arguments that they spell."""

    method: Method
    ways: tuple[tuple[dict[str, str], Arguments], ...]


class _No(Exception):
    """Ends the way to an answer."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def ask_method(
    methods: Methods | None,
    library: Library | None,
    text: str,
    *,
    tenant: str = PUBLIC,
    run: Run = run_sandboxed,
) -> MethodAnswer | Abstained:
    """Answer a problem from the methods of `tenant`, or abstain. `library` holds the deposits that
    they were learned from; None where there is none.

    Raises:
        InputError: text that no problem may be (`canonical_text`).
    """
    watch, cpu = Stopwatch(), process_cpu_seconds()
    text = canonical_text(text)
    try:
        answer, grade, readings = _answer(methods, library, text, tenant, run)
    except _No as no:
        return Abstained(no.reason, no.detail, _cost(watch, cpu))
    except StoreError as error:
        return Abstained("damaged", str(error), _cost(watch, cpu))
    return MethodAnswer(
        answer,
        grade,
        tuple(reading.method.id for reading in readings),
        readings[0].ways[0][0],
        sum(len(reading.method.programs) for reading in readings),
        _cost(watch, cpu),
    )


def _cost(watch: Stopwatch, cpu: float | None) -> Cost:
    """No token and no FLOP of any model: that much is known. Joules were not measured."""
    now = process_cpu_seconds()
    spent = None if cpu is None or now is None else now - cpu
    return Cost(seconds=watch.seconds, cpu_seconds=spent, model_flops=0)


def _answer(
    methods: Methods | None, library: Library | None, text: str, tenant: str, run: Run
) -> tuple[str, str, list[_Reading]]:
    """Raises `_No` with the reason where there is no answer."""
    if len(text) > MAX_METHOD_TEXT_CHARS:
        raise _No("too_long", f"over {MAX_METHOD_TEXT_CHARS:,} characters")
    if methods is None:
        raise _No("no_method", "no method was learned")
    readings = _readings(methods, library, text, tenant)
    answers = {
        answer
        for reading in readings
        for source in reading.method.programs
        for answer in _answers(reading, source, run)
    }
    if len(answers) > 1:
        raise _No("disagreement", f"{len(answers)} different answers")
    (answer,) = answers
    grade = min((_graded(reading, text, answer) for reading in readings), key=GRADES.index)
    # Once more: running takes time, in which another process may revoke.
    if _readings(methods, library, text, tenant) != readings:
        raise _No("changed_meanwhile", "a method was revoked or learned while programs ran")
    return answer, grade, readings


def _readings(methods: Methods, library: Library | None, text: str, tenant: str) -> list[_Reading]:
    known = methods.matching(tenant, shape_of(text))
    no = _No("no_method", "no phrasing of this shape was learned")
    found = []
    for method in known:
        try:
            found.append(_reading(method, library, text, tenant))
        except _No as error:
            # What came furthest says most.
            no = max(no, error, key=lambda one: REASONS.index(one.reason))
    if not found:
        raise no
    return found


def _reading(method: Method, library: Library | None, text: str, tenant: str) -> _Reading:
    read = {one.skeleton: one.skeleton.match(text) for one in method.evidence}
    if not any(texts is not None for texts in read.values()):
        raise _No("another_text", "a phrasing of this shape was learned, with other words")
    evidence, why = standing(method, library, tenant)
    ways = []
    for skeleton, texts in read.items():
        mine = [set(one.bindings) for one in evidence if one.skeleton == skeleton]
        if texts is None or not mine:
            continue
        arguments = skeleton.arguments(texts)
        for order in sorted(set.intersection(*mine)):
            named = dict(zip(NAMES, (texts[slot] for slot in order), strict=False))
            ways.append((named, bound(arguments, order)))
    if not ways:
        raise _No("fallen", why or "its evidence contradicts itself")
    domain = join([one.domain for one in evidence])
    for _, arguments in ways:
        if refusal := domain.refusal(arguments):
            raise _No("outside", refusal)
    return _Reading(method, tuple(ways))


def _answers(reading: _Reading, source: str, run: Run) -> Iterator[str]:
    rows = [arguments for _, arguments in reading.ways]
    try:
        given = answers_of(source, rows, reading.method.form, run)
    except SandboxUnavailable as error:
        raise _No("no_sandbox", str(error)) from error
    for answer in given:
        if isinstance(answer, NoValue):
            raise _No("program_failed", answer.reason)
        yield answer


def _graded(reading: _Reading, text: str, answer: str) -> str:
    """What speaks for the answer: the checker's verdict, else the agreement of the programs."""
    checker = reading.method.checker
    if checker is None:
        return reading.method.grade
    try:
        verifier = checker.open()
        try:
            verdicts = [checker.judge(verifier, text, named, answer) for named, _ in reading.ways]
        finally:
            verifier.close()
    except KvgraftError as error:
        raise _No("refuted", f"the checker came to no verdict: {error}") from error
    if not all(passes(verdict, answer) for verdict in verdicts):
        raise _No("refuted", f"the checker {checker.spec} does not pass {answer:.60}")
    return min((verdict.grade for verdict in verdicts), key=GRADES.index)
