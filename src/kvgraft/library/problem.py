"""Problems, and the JSONL files they come in.

One JSON object a line: `problem` (or `question`): text; optional `answer`: the key a verifier may
compare with, as text or number; optional `id`; optional `system`: the system text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgraft.errors import InputError, LimitExceeded
from kvgraft.library.address import canonical_text
from kvgraft.limits import MAX_PROBLEM_LINE_BYTES, MAX_PROBLEMS

_KNOWN = {"problem", "question", "answer", "id", "system"}


@dataclass(frozen=True)
class Problem:
    """`text` and `system` are in canonical form; `expected` is never shown to the model."""

    id: str
    text: str
    expected: str | None = None
    system: str | None = None


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
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=where) from None
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
    if not isinstance(text, str) or not text.strip():
        raise InputError("the problem is not text, or is empty", where=where)
    if system is not None and not isinstance(system, str):
        raise InputError("`system` is not text", where=where)
    return Problem(
        id=_plain(data.get("id", number), "id", where) or str(number),
        text=canonical_text(text),
        expected=_plain(data.get("answer"), "answer", where),
        system=None if system is None else canonical_text(system),
    )


def _plain(value: Any, name: str, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"`{name}` is neither text nor a number", where=where)
    return str(value)
