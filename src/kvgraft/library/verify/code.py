"""The verifier `code`: the program in the trace passes its tests, in a sandbox."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvgraft import limits as caps
from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict, beginning, version_of
from kvgraft.library.verify.code_tests import (
    AssertTest,
    CallTest,
    OutputTest,
    Test,
    read_tests,
    same_output,
    same_value,
)
from kvgraft.library.verify.program_text import Program, program_in
from kvgraft.sandbox import wire
from kvgraft.sandbox.run import REQUIRED, Limits, NoValue, Session, run_program

_LIMITS = Limits()
_REASON_CHARS = 240
_LISTED_FAILURES = 8


def make(argument: str) -> CodeVerifier:
    """The verifier of the spec `code`, or `code:without=network,files`: what of the sandbox's
    isolation may be missing.

    Raises:
        UsageError: another argument, or the name of nothing that is required.
    """
    key, _, names = argument.partition("=")
    if argument and key != "without":
        raise UsageError(
            "the verifier 'code' takes no such argument",
            where=f"code:{argument}",
            hint=f"code, or code:without=NAMES of {', '.join(sorted(REQUIRED))}",
        )
    return CodeVerifier(without=[name for name in names.split(",") if name])


class CodeVerifier:
    """Passes when the program that `program_in` finds in the trace passes every test of
    `checks["tests"]`. A test is one of

        {"call": "f", "args": [...], "kwargs": {...}, "expect": VALUE, "tolerance": 1e-6}
        {"stdin": "...", "stdout": "...", "tolerance": 1e-6}
        {"assert": "f(2) == 4"}

    (`args`, `kwargs`, `stdin` and `tolerance` may be left out). Functions are called in one process
    that stays for all tests; for each `stdout` the program is run anew. What was expected never
    enters the program's process: it says values, and they are compared out here, where it can
    change nothing (`same_value`, `same_output`). An assertion is any Python expression, or
    statements with `assert`, and is evaluated in a sandbox of its own (`code_judge`).

    The program has `limits` in each run, and `seconds` of wall time for all tests together; what is
    not run by then has failed. `without` names isolation that may be missing, of
    `sandbox.run.REQUIRED`.

    The answer of a verdict is the program: nothing else in the trace was tested. It is None for
    one of over `limits.MAX_ANSWER_CHARS`.

    Raises:
        UsageError: `without` names what is not required anyway.
    """

    name = "code"
    needs = frozenset({"tests"})

    def __init__(
        self,
        *,
        seconds: float = caps.CODE_SECONDS,
        limits: Limits = _LIMITS,
        without: Collection[str] = (),
    ) -> None:
        if unknown := sorted(set(without) - REQUIRED):
            raise UsageError(
                f"not required of a sandbox: {', '.join(unknown)}",
                where="code",
                hint=f"of {', '.join(sorted(REQUIRED))}",
            )
        names = ",".join(sorted(set(without)))
        self.spec = f"code:without={names}" if names else "code"
        # Another Python, other limits: another judge.
        python = f"1+python-{sys.version_info[0]}.{sys.version_info[1]}"
        self.version = version_of(python, names, repr(limits), repr(seconds))
        self._require = REQUIRED - set(without)
        self._limits = limits
        self._seconds = seconds

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`.

        It is of grade "none" where no test came to an end: no program in the trace, or all that
        failed were over a limit. No reason in the evidence tells what was expected.

        Raises:
            VerifierError: no tests, or one that is none.
            SandboxUnavailable: this system cannot isolate the program. It was not run.
        """
        tests = read_tests(case.checks)
        evidence: dict[str, Any] = {
            "method": "tests",
            "tests": len(tests),
            "tests_sha256": _digest(wire.dumps(list(map(dict, case.checks["tests"])))),
        }
        program = program_in(trace)
        if program is None:
            reason = {"reason": "no program in the text"}
            return Verdict(False, "none", None, self.name, self.version, evidence | reason)
        with _Run(program.source, self._limits, self._require, self._seconds) as run:
            outcomes = [run.outcome(test) for test in tests]
        passed = all(outcome.passed for outcome in outcomes)
        decided = passed or any(outcome.decided and not outcome.passed for outcome in outcomes)
        evidence |= _told(program, outcomes, run)
        answer = program.source.strip()
        return Verdict(
            passed,
            "proved" if decided else "none",
            answer if len(answer) <= caps.MAX_ANSWER_CHARS else None,
            self.name,
            self.version,
            evidence,
        )

    def close(self) -> None:
        """Nothing is held between calls."""


@dataclass(frozen=True)
class _Outcome:
    """`decided`: the program itself passed or failed; else it was ended, or not run."""

    passed: bool
    decided: bool = True
    reason: str = ""


class _Run:
    """One program under all its tests. Use as a context."""

    def __init__(
        self, source: str, limits: Limits, require: Collection[str], seconds: float
    ) -> None:
        self.isolation: tuple[str, ...] | None = None  # what held in every run
        self.started = time.monotonic()
        self._source = source
        self._limits = limits
        self._require = require
        self._deadline = self.started + seconds
        self._sessions: dict[str, Session] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def outcome(self, test: Test) -> _Outcome:
        left = self._deadline - time.monotonic()
        if left <= 0:
            return _Outcome(False, False, "not run: no time was left")
        limits = replace(self._limits, seconds=min(self._limits.seconds, left))
        if isinstance(test, OutputTest):
            return self._of_output(test, limits)
        program = self._session("program", self._source, limits)
        if isinstance(test, CallTest):
            value = program.call(test.name, test.arguments, test.named)
            if not isinstance(value, NoValue):
                passed = same_value(value, test.expect, test.tolerance)
                return _Outcome(passed, True, f"{test.name} returned {_shown(value)}")
            return _Outcome(False, not program.forced, f"{test.name}: {value.reason}")
        return self._of_assertion(test, program, limits)

    def _of_assertion(self, test: AssertTest, program: Session, limits: Limits) -> _Outcome:
        source = Path(__file__).with_name("code_judge.py").read_text(encoding="utf-8")
        judge = self._session("judge", source, limits)
        verdict = judge.call("evaluate", [test.source], ask=program.call)
        if isinstance(verdict, NoValue):
            return _Outcome(False, False, f"the assertion could not be evaluated: {verdict.reason}")
        passed, reason = verdict
        return _Outcome(passed is True, not program.forced, reason)

    def _of_output(self, test: OutputTest, limits: Limits) -> _Outcome:
        ran = run_program(self._source, stdin=test.stdin, limits=limits, require=self._require)
        self._held(ran.isolation)
        if ran.failure is not None:
            return _Outcome(False, not ran.forced, ran.failure)
        if ran.stdout_bytes > limits.output_bytes:
            return _Outcome(False, False, f"it printed {ran.stdout_bytes:,} bytes")
        passed = same_output(ran.stdout, test.stdout, test.tolerance)
        return _Outcome(passed, True, f"it printed {_shown(ran.stdout)}")

    def _session(self, name: str, source: str, limits: Limits) -> Session:
        if name not in self._sessions:
            session = Session(source, limits=limits, require=self._require)
            self._sessions[name] = self._open.enter_context(session)
            self._held(session.isolation)
        return self._sessions[name]

    def _held(self, names: tuple[str, ...]) -> None:
        held = names if self.isolation is None else self.isolation
        self.isolation = tuple(name for name in held if name in names)


def _told(program: Program, outcomes: list[_Outcome], run: _Run) -> dict[str, Any]:
    failures = [(number, one) for number, one in enumerate(outcomes, 1) if not one.passed]
    told: dict[str, Any] = {
        "program": {
            "sha256": _digest(program.source),
            "chars": len(program.source),
            "start": program.start,
            "end": program.end,
        },
        "python": ".".join(map(str, sys.version_info[:3])),
        "isolation": list(run.isolation or ()),
        "seconds": round(time.monotonic() - run.started, 6),
        "outcomes": "".join(".-F"[0 if one.passed else 1 + one.decided] for one in outcomes),
        "failures": [
            {"test": number, "reason": beginning(one.reason, _REASON_CHARS)}
            for number, one in failures[:_LISTED_FAILURES]
        ],
    }
    if failures:
        number, first = failures[0]
        reason = beginning(first.reason, _REASON_CHARS)
        told["feedback"] = f"The program fails test {number} of {len(outcomes)}: {reason}."
        if not any(one.decided for _, one in failures):
            told["failure"] = reason
    return told


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(value: Any) -> str:
    try:
        return beginning(repr(value), _REASON_CHARS // 2)
    except ValueError:  # an integer of thousands of digits is not written out
        return f"a {type(value).__name__} of thousands of digits"
