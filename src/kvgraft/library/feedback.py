"""What the model is told about an attempt that failed.

One short sentence, and never anything that a verifier knows and the model does not: no key, no
expected output, no word of a hidden check. A verifier may say more than right or wrong under
`feedback` in its evidence; it is passed on where it holds none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvgraft.library.problem import Problem
from kvgraft.library.verify.base import Verdict
from kvgraft.limits import MAX_FEEDBACK_CHARS

_AGAIN = "Solve the problem again, and end with the final answer."
CUT_OFF = f"Your answer was cut off before its end. {_AGAIN[:-1]}, in fewer words."
NO_ANSWER = f"There is no final answer in your text. {_AGAIN}"
WRONG = f"That is not right. {_AGAIN}"
DISAGREES = f"Independent attempts at this problem came to other answers. {_AGAIN}"
NOT_CHECKED = f"Your answer could not be checked. {_AGAIN}"

_COMMON_CHARS = 2  # shorter words are in every text
# The place of a check is nothing of the check.
_PLACE = re.compile(r"\b(?:test|condition|constraint) [0-9]+ of [0-9]+\b")
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def feedback(problem: Problem, attempt: str, verdict: Verdict | None) -> str:
    """What to tell the model about `attempt`; `verdict` is None where it was cut off."""
    if verdict is None:
        return CUT_OFF
    said = verdict.evidence.get("feedback")
    if isinstance(said, str) and 0 < len(said.strip()) <= MAX_FEEDBACK_CHARS:
        said = " ".join(said.split())
        if not _tells(said, problem, attempt):
            return f"{said} {_AGAIN}"
    if verdict.answer is None:
        return NO_ANSWER
    return {"proved": WRONG, "agreed": DISAGREES}.get(verdict.grade, NOT_CHECKED)


def _tells(said: str, problem: Problem, attempt: str) -> bool:
    """Whether `said` may hold something of the key or the checks that the model has not seen:
    better a sentence too few."""
    said = _PLACE.sub("", said)
    seen = f"{problem.text}\n{problem.system or ''}\n{attempt}"
    new_words, new_numbers = _words(said) - _words(seen), _numbers(said) - _numbers(seen)
    for secret in _texts([problem.expected, *problem.checks.values()]):
        words = _words(secret)
        told = words & new_words
        if _numbers(secret) & new_numbers or any(len(word) > _COMMON_CHARS for word in told):
            return True
        if told and told == words:  # the whole of it, short as it is
            return True
        if not words and secret.strip() and secret.strip() in said:  # an operator, a sign
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    """Every text and number in JSON-like data, names of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _numbers(text: str) -> set[float]:
    return set(map(float, _NUMBER.findall(text)))
