"""Problems, and the JSONL files they come in.

One JSON object a line: `problem` (or `question`): text; optional `answer`: the key a verifier may
compare with, as text or number; optional `checks`: an object with what other verifiers take
(`tests`, `constraints`, `schema`, ...); optional `id`; optional `system`: the system text. A number
stays as it is written: no digit of it is lost; inside `checks` numbers are those of JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeGuard

from kvgraft.errors import InputError, LimitExceeded
from kvgraft.library.address import canonical_text
from kvgraft.library.verify.base import Case
from kvgraft.limits import MAX_MATH_CHARS, MAX_PROBLEM_LINE_BYTES, MAX_PROBLEMS

_KNOWN = {"problem", "question", "answer", "checks", "id", "system"}


@dataclass(frozen=True)
class Problem:
    """`text` and `system` are held in canonical form, whatever was given: what is addressed is
    what is tokenised. `expected` and `checks` are never shown to the model.

    Raises:
        InputError: text that `canonical_text` refuses.
    """

    id: str
    text: str
    expected: str | None = None
    system: str | None = None
    checks: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen; this is its constructor
        put(self, "text", canonical_text(self.text))
        if self.system is not None:
            put(self, "system", canonical_text(self.system))

    def case(self, peers: Sequence[str] = ()) -> Case:
        """What a verifier gets to see of it; `peers`: texts of other attempts at it."""
        return Case(self.text, self.expected, self.checks, tuple(peers))


class _Number(str):
    """A number of a JSON line, as it is written."""


def read_problems(path: Path) -> list[Problem]:
    """All problems of a JSONL file, blank lines left out.

    Raises:
        InputError: no such file, not UTF-8, no problems, an unusable line (named), an id twice.
        LimitExceeded: a line or the number of lines is over its cap.
    """
    problems: list[Problem] = []
    first_line_of: dict[str, int] = {}
    for number, line in _lines(path):
        problem = _parse(line, number, f"{path}:{number}")
        if problem.id in first_line_of:
            raise InputError(
                f"the id {problem.id!r} stands in line {first_line_of[problem.id]} too",
                where=f"{path}:{number}",
            )
        first_line_of[problem.id] = number
        problems.append(problem)
        if len(problems) > MAX_PROBLEMS:
            raise LimitExceeded(f"more than {MAX_PROBLEMS:,} problems", where=str(path))
    if not problems:
        raise InputError("the file holds no problems", where=str(path), hint="one object a line")
    return problems


def read_checks(path: Path) -> dict[str, Any]:
    """The `checks` of one problem, as a JSON file of their own.

    Raises:
        InputError: no such file, not UTF-8, not a JSON object, a number that is none.
        LimitExceeded: it is over the cap of a problem's line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PROBLEM_LINE_BYTES + 1)
        if len(data) > MAX_PROBLEM_LINE_BYTES:
            raise LimitExceeded(f"over {MAX_PROBLEM_LINE_BYTES:,} bytes", where=str(path))
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the checks: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason}", where=str(path)) from None
    return _checks(_json(text, str(path)), str(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_PROBLEM_LINE_BYTES + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > MAX_PROBLEM_LINE_BYTES:
                    raise LimitExceeded(f"over {MAX_PROBLEM_LINE_BYTES:,} bytes", where=where)
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                except UnicodeDecodeError as error:
                    raise InputError(f"not UTF-8: {error.reason}", where=where) from None
                if text:
                    yield number, text
    except OSError as error:
        raise InputError(
            f"cannot read the problem file: {error.strerror}", where=str(path)
        ) from error


def _parse(line: str, number: int, where: str) -> Problem:
    data = _json(line, where)
    if not isinstance(data, dict):
        raise InputError("the line is not a JSON object", where=where, hint='{"problem": "..."}')
    if unknown := sorted(data.keys() - _KNOWN):
        # A misspelt key would silently change what is asked.
        raise InputError(
            f"unknown keys {', '.join(unknown)}", where=where, hint=f"known: {sorted(_KNOWN)}"
        )
    if ("problem" in data) == ("question" in data):
        raise InputError("give either `problem` or `question`", where=where)
    text = data.get("problem", data.get("question"))
    system = data.get("system")
    if not _is_text(text) or not text.strip():
        raise InputError("the problem is not text, or is empty", where=where)
    if system is not None and not _is_text(system):
        raise InputError("`system` is not text", where=where)
    id = _plain(data.get("id"), "id", where) or str(number)
    expected = _plain(data.get("answer"), "answer", where)
    checks = _checks(data.get("checks", {}), where)
    try:
        return Problem(id, text, expected, system, checks)
    except InputError as error:
        place = ", ".join(filter(None, (where, error.where)))
        raise InputError(error.what, where=place, hint=error.hint) from error


def _json(text: str, where: str) -> Any:
    """JSON, its numbers as they are written."""
    try:
        return json.loads(
            text,
            parse_int=_Number,
            parse_float=_Number,
            object_pairs_hook=_without_repeats,
        )
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=where) from None


def _checks(value: Any, where: str) -> dict[str, Any]:
    checks = _json_numbers(value, where)
    if not isinstance(checks, dict):
        raise InputError(
            "`checks` is not an object", where=where, hint='"checks": {"tests": [...]}'
        )
    return checks


def _json_numbers(value: Any, where: str) -> Any:
    """`value` with its numbers as JSON reads them."""
    if isinstance(value, _Number):
        if len(value) > MAX_MATH_CHARS:  # to read one takes time with the square of its length
            raise LimitExceeded(
                f"a number in `checks` is over {MAX_MATH_CHARS:,} digits", where=where
            )
        # Python refuses to read a whole number of more than 4,300 digits from text by itself.
        number = int(Decimal(value)) if value.lstrip("-").isdigit() else float(value)
        return _finite(number, where)
    if isinstance(value, list):
        return [_json_numbers(item, where) for item in value]
    if isinstance(value, dict):
        return {name: _json_numbers(item, where) for name, item in value.items()}
    return _finite(value, where)


def _finite(value: Any, where: str) -> Any:
    """`value`, unless it is what Python takes for a number and JSON does not, or is too large."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError("a number in `checks` is not finite", where=where)
    return value


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and not isinstance(value, _Number)


def _plain(value: Any, name: str, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError(f"`{name}` is neither text nor a number", where=where)
    return str(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return data
