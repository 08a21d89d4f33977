"""The verifier `regex`: a pattern that the whole answer must match."""

from __future__ import annotations

import time
from typing import Any

import regex

from kvgraft import limits
from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict, summary, version_of, without_answer
from kvgraft.library.verify.extract import extract


class RegexVerifier:
    """Passes when `pattern` matches all of the extracted answer; the expected answer is not used.

    The pattern is in the syntax of the `regex` package, whose matcher can be stopped: backtracking
    that explodes ends at `seconds` and is a failure, not a hang.

    Raises:
        UsageError: the pattern is empty or does not compile.
    """

    name = "regex"
    needs: frozenset[str] = frozenset()

    def __init__(self, pattern: str, *, seconds: float = limits.REGEX_SECONDS) -> None:
        if not pattern:
            raise UsageError("the verifier 'regex' needs a pattern", hint="regex:[0-9]+")
        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError) as error:
            raise UsageError(f"the pattern does not compile: {error}", where=pattern) from error
        self.spec = f"regex:{pattern}"
        self.version = version_of("1", pattern)
        self._seconds = seconds

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`. Raises nothing."""
        found = extract(trace)
        evidence: dict[str, Any] = {"method": "regex", "pattern": summary(self._pattern.pattern)}
        if found is None:
            return without_answer(self, trace, evidence)
        evidence |= {"given": summary(found.answer), "rule": found.rule}
        if len(found.answer) > limits.MAX_ANSWER_CHARS:
            evidence |= {"reason": f"the answer is over {limits.MAX_ANSWER_CHARS:,} characters"}
            return Verdict(False, "none", found.answer, self.name, self.version, evidence)
        started = time.monotonic()
        try:
            passed = self._pattern.fullmatch(found.answer, timeout=self._seconds) is not None
        except (TimeoutError, MemoryError) as error:
            evidence |= {
                "failure": f"the match was given up: {type(error).__name__}",
                "seconds": round(time.monotonic() - started, 6),
            }
            return Verdict(False, "none", found.answer, self.name, self.version, evidence)
        evidence |= {"seconds": round(time.monotonic() - started, 6)}
        return Verdict(passed, "proved", found.answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Nothing is held."""
