"""What a verifier is, what it says, and how one is made from a spec such as `regex:[0-9]+`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvgraft import limits
from kvgraft.errors import LimitExceeded, VerifierError

GRADES = ("none", "agreed", "proved")  # from weakest to strongest


@dataclass(frozen=True)
class Extraction:
    """The answer found in a trace: `trace[start:end] == answer`, offsets in characters."""

    answer: str
    start: int
    end: int
    rule: str  # "boxed", "hash", "stated", "whole" or "last": see `extract`


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one trace.

    `grade` says what kind of check came to this verdict, whichever way it fell; it is "none" where
    no check ran to its end: no answer in the trace, or the verifier itself failed. `answer` is the
    answer span as the model wrote it. `evidence` is JSON and enough to run the check again.

    Raises:
        VerifierError: an unknown grade, a pass without a grade, or evidence that is not JSON.
        LimitExceeded: evidence longer than `limits.MAX_EVIDENCE_CHARS` characters of JSON.
    """

    passed: bool
    grade: str
    answer: str | None
    verifier: str
    version: str
    evidence: dict[str, Any]

    def __post_init__(self) -> None:
        if self.grade not in GRADES or (self.passed and self.grade == "none"):
            raise VerifierError(f"passed={self.passed} with grade {self.grade!r} is no verdict")
        try:
            size_chars = len(json.dumps(self.evidence, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise VerifierError(f"evidence is not JSON: {error}", where=self.verifier) from error
        if size_chars > limits.MAX_EVIDENCE_CHARS:
            raise LimitExceeded(
                f"evidence has {size_chars:,} characters; the cap is {limits.MAX_EVIDENCE_CHARS:,}",
                where=self.verifier,
            )


@dataclass(frozen=True)
class Case:
    """A problem as a verifier sees it.

    `expected` is the key, for verifiers that compare with one. `checks` is what other kinds of
    check take, by their names ("tests", "constraints", "schema", ...), as JSON. `peers` are the
    texts of other attempts at the same problem, made without sight of this one.
    """

    problem: str
    expected: str | None = None
    checks: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ()


class Verifier(Protocol):
    """Judges one trace at a time. Its own crash or time-out is a verdict that did not pass, with
    the reason under `failure` in the evidence: one bad trace never loses a batch."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> str:
        """What `make_verifier` makes it from."""

    @property
    def needs(self) -> frozenset[str]:
        """What of a `Case` it cannot do without: "expected", "peers", or names of checks."""

    @property
    def version(self) -> str:
        """Changes whenever the same trace may get another verdict."""

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`, the whole text that the model wrote.

        Raises:
            VerifierError: the case lacks something that is in `needs`.
        """

    def close(self) -> None:
        """Ends the verifier's processes. May be called twice; a later `verify` starts anew."""


def version_of(version: str, *arguments: str) -> str:
    """A verifier's version with a digest of its arguments: other arguments, another judge."""
    data = json.dumps(arguments).encode("utf-8", "surrogatepass")
    return f"{version}+{hashlib.sha256(data).hexdigest()[:16]}"


def summary(text: str) -> str | dict[str, Any]:
    """`text` for evidence: itself while short, else its digest, its length and its start."""
    if len(json.dumps(text)) <= limits.MAX_EVIDENCE_TEXT_CHARS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return {"sha256": digest, "chars": len(text), "start": beginning(text, 256)}


def beginning(text: str, json_chars: int) -> str:
    """The start of `text` that takes at most `json_chars` characters in JSON, where one character
    may take twelve."""
    text = text[:json_chars]
    while len(json.dumps(text)) > json_chars:
        text = text[: len(text) * 3 // 4]
    return text


def without_answer(verifier: Verifier, trace: str, evidence: dict[str, Any]) -> Verdict:
    """The verdict on a trace in which `extract` found nothing."""
    reason = "no answer in the text"
    if len(trace) > limits.MAX_TRACE_CHARS:
        reason = f"the text is over {limits.MAX_TRACE_CHARS:,} characters"
    return Verdict(
        False, "none", None, verifier.name, verifier.version, evidence | {"reason": reason}
    )


def need_expected(verifier: str, expected: str | None) -> str:
    """The gold answer.

    Raises:
        VerifierError: there is none, or it is blank.
    """
    if expected is None or not expected.strip():
        raise VerifierError(
            f"the verifier {verifier!r} needs `expected`, the gold answer of the problem",
            where=verifier,
            hint="give each problem an answer, or choose a verifier that needs none",
        )
    return expected
