"""The verifier `substitute`: the answer is put back into the problem's constraints. No key."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
from typing import Any

from kvgraft import limits
from kvgraft.errors import MissingExtra, VerifierError
from kvgraft.library.json_numbers import dumps
from kvgraft.library.verify.base import Case, Verdict, summary, without_answer
from kvgraft.library.verify.extract import extract
from kvgraft.library.verify.json_schema import json_in
from kvgraft.library.verify.worker import Worker

_OF_SYMBOLS = {"symbols", "where", "answer", "all"}
_OF_PRODUCT = {"product", "prime"}
_SLOT = re.compile(r"\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TAKEN = {*keyword.kwlist, "pi", "E", "json"}


class SubstituteVerifier:
    """Passes an answer that fulfils `checks["constraints"]`; docs/VERIFIERS.md has their form.

    Exact arithmetic by sympy in a worker process, under limits; what it cannot decide is a fail of
    grade "none", never a pass.

    Raises:
        MissingExtra: `sympy` is not installed.
    """

    name = spec = "substitute"
    needs = frozenset({"constraints"})

    def __init__(
        self,
        *,
        seconds: float = limits.SUBSTITUTE_SECONDS,
        memory_bytes: int = limits.MATH_VERIFY_MEMORY_BYTES,
    ) -> None:
        if importlib.util.find_spec("sympy") is None:
            raise MissingExtra(
                "the verifier 'substitute' needs the package sympy",
                hint="pip install 'kvgraft[math]'",
            )
        self.version = f"2+sympy-{importlib.metadata.version('sympy')}"
        self._worker = Worker(
            "kvgraft.library.verify.substitute_check:load",
            seconds=seconds,
            memory_bytes=memory_bytes,
        )

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`.

        Raises:
            VerifierError: the case has no constraints, or they cannot be used.
        """
        constraints = _constraints(case)
        evidence: dict[str, Any] = {
            "method": "substitute",
            "constraints": summary(dumps(constraints, sort_keys=True)),
        }
        if constraints.get("answer") == "json":
            answer = json_in(trace)
        else:
            found = extract(trace)
            answer = None if found is None else found.answer
        if answer is None:
            return without_answer(self, trace, evidence)
        evidence["given"] = summary(answer)
        if len(answer) > limits.MAX_ANSWER_CHARS:
            evidence["reason"] = f"the answer is over {limits.MAX_ANSWER_CHARS:,} characters"
            return Verdict(False, "none", None, self.name, self.version, evidence)
        reply = self._worker.ask({"constraints": constraints, "answer": answer})
        evidence["seconds"] = round(reply.seconds, 6)
        if reply.failure is not None:
            evidence["failure"] = summary(reply.failure)
            return Verdict(False, "none", answer, self.name, self.version, evidence)
        if (bad := reply.value.get("bad")) is not None:
            raise VerifierError(f"`checks.constraints` cannot be used: {bad}", where=self.name)
        if (why := reply.value.get("unreadable")) is not None:
            evidence["reason"] = summary(f"the answer cannot be put back: {why}")
            return Verdict(False, "none", answer, self.name, self.version, evidence)
        if (why := reply.value.get("undecided")) is not None:
            evidence["failure"] = summary(f"not decided: {why}")
            return Verdict(False, "none", answer, self.name, self.version, evidence)
        if (fails := reply.value.get("fails")) is not None:
            evidence["fails"] = summary(fails)
            return Verdict(False, "proved", answer, self.name, self.version, evidence)
        evidence["holds"] = reply.value["holds"]
        return Verdict(True, "proved", answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Ends the worker process."""
        self._worker.close()


def _constraints(case: Case) -> dict[str, Any]:
    found = case.checks.get("constraints")
    problem = _problem_of(found)
    if problem or not isinstance(found, dict):
        raise VerifierError(
            f"`checks.constraints` cannot be used: {problem}",
            where="substitute",
            hint='{"constraints": {"symbols": ["x"], "where": ["x**2 = 9", "x > 0"]}}',
        )
    return found


def _problem_of(found: Any) -> str:
    """What is wrong with the form of constraints, "" if nothing."""
    if not isinstance(found, dict):
        return "an object is needed"
    known = _OF_PRODUCT if "product" in found else _OF_SYMBOLS
    if unknown := sorted(found.keys() - known):
        # What is misspelt, or has no meaning beside the rest, would silently check less.
        return f"{', '.join(map(repr, unknown))} is not one of {', '.join(sorted(known))}"
    if not all(isinstance(found.get(name, False), bool) for name in ("all", "prime")):
        return "`all` and `prime` are true or false"
    if "product" in found:
        whole = type(found["product"]) is int or isinstance(found["product"], str)
        return "" if whole else "`product` is a text or a whole number"
    if not (_texts(found.get("symbols")) and _texts(found.get("where"))):
        return "`symbols` and `where` are needed, lists of texts, or a `product`"
    return _problem_of_names(found["symbols"], found.get("answer"), found.get("all", False))


def _problem_of_names(symbols: list[str], form: Any, lists: bool) -> str:
    named = all(_NAME.fullmatch(name) and name not in _TAKEN for name in symbols)
    if not named or len(set(symbols)) < len(symbols):
        return "`symbols` are different names, none of them with a meaning of its own"
    if lists:
        one = len(symbols) == 1 and form in (None, *symbols)
        return "" if one else "`all` is for one symbol, whose values the answer lists"
    if form in (None, "json"):
        return ""
    if not isinstance(form, str):
        return "`answer` is a text"
    names = _SLOT.findall(form) or [name.strip() for name in form.strip(" ()").split(",")]
    return "" if sorted(names) == sorted(symbols) else "`answer` has to name each symbol once"


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
