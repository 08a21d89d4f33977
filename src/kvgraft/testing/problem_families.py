"""Families of problems with known answers, made from a seed: for learning methods, and trying them.

Each family has phrasings to learn from and one that is held out, draws its parameters afresh, and
has hard negatives: texts that read like its problems and ask something else, or nothing. A method
has to stay silent on those, or be right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvgraft.errors import UsageError
from kvgraft.testing.problem_family import Parameters, ProblemFamily
from kvgraft.testing.problem_family_dates import DATE_FAMILIES
from kvgraft.testing.problem_family_numbers import NUMBER_FAMILIES
from kvgraft.testing.problem_family_things import THING_FAMILIES


@dataclass(frozen=True)
class SolvedProblem:
    """An instance of a family, in one of its phrasings."""

    family: str
    phrasing: int
    text: str
    parameters: Parameters
    answer: str


@dataclass(frozen=True)
class HardNegative:
    """A text that is no problem of the family. `answer`: its own right answer, or None: then every
    answer is wrong."""

    family: str
    kind: str
    text: str
    answer: str | None


def problem_families() -> Mapping[str, ProblemFamily]:
    """All families by their names."""
    return {family.name: family for family in (*NUMBER_FAMILIES, *DATE_FAMILIES, *THING_FAMILIES)}


def solved_problems(
    family: ProblemFamily, seed: int, count: int, *, phrasing: int = 0
) -> tuple[SolvedProblem, ...]:
    """`count` different problems, the same ones for the same seed; another phrasing draws others.

    Raises:
        UsageError: no such phrasing, or there are not that many problems.
    """
    if not 0 <= phrasing < len(family.phrasings):
        raise UsageError(f"{family.name} has phrasings 0 to {family.held_out}, not {phrasing}")
    rng = random.Random(f"{seed} {family.name} {phrasing}")
    found: dict[str, SolvedProblem] = {}
    for _ in range(100 * count):
        if len(found) == count:
            break
        drawn = family.draw(rng)
        text = family.phrasings[phrasing].format(**drawn)
        answer = str(family.answer(drawn))
        found.setdefault(text, SolvedProblem(family.name, phrasing, text, drawn, answer))
    if len(found) < count:
        raise UsageError(f"{family.name} has only about {len(found)} problems, not {count}")
    return tuple(found.values())


def hard_negatives(family: ProblemFamily, seed: int, count: int) -> tuple[HardNegative, ...]:
    """`count` hard negatives, of all kinds in turn: those of the family, and those that any problem
    has (`spoiled`)."""
    rng = random.Random(f"{seed} {family.name} negatives")
    found: dict[str, HardNegative] = {}
    for _ in range(100 * count):
        for one in _negatives_of(family, rng):
            if len(found) == count:
                return tuple(found.values())
            found.setdefault(one.text, one)
    raise UsageError(f"{family.name} has only about {len(found)} hard negatives, not {count}")


def _negatives_of(family: ProblemFamily, rng: random.Random) -> Iterator[HardNegative]:
    for negative in family.negatives:
        drawn = family.draw(rng)
        answer = None if negative.answer is None else str(negative.answer(drawn))
        text = negative.text.format(**drawn)
        yield HardNegative(family.name, negative.kind, text, answer)
    drawn = family.draw(rng)
    template = family.phrasings[rng.randrange(family.held_out)]
    for kind, text, keeps in spoiled(template.format(**drawn), rng):
        answer = str(family.answer(drawn)) if keeps else None
        yield HardNegative(family.name, kind, text, answer)


_INTEGER = re.compile(r"(?<![\w.,:-])[1-9][0-9]*(?![\w.:]|,[0-9]|-[0-9])")
_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)


def spoiled(text: str, rng: random.Random) -> Iterator[tuple[str, str, bool]]:
    """A problem's text with one edit: its kind, the text, and whether it still has the answer."""
    for verb in (" is ", " are ", " does ", " can ", " earns "):
        if verb in text:
            yield "negation", text.replace(verb, f"{verb}not ", 1), False
            break
    yield "more is asked", f"{text} Add {rng.randint(2, 9)} to the result.", False
    yield "a number beside it", f"({rng.randint(2, 99)}) {text}", True
    yield "two at once", f"{text} {text}", False
    yield "said to be wrong", f'It is not asked: "{text}"', False
    numbers = list(_INTEGER.finditer(text))
    if numbers:
        match = rng.choice(numbers)
        before, after = text[: match.start()], text[match.end() :]
        yield "half a number more", f"{before}{match[0]}.5{after}", False
        yield "digits lost", f"{before}{match[0]}?{after}", False
        yield "minus", f"{before}-{match[0]}{after}", False
        yield "far too large", f"{before}{match[0]}{'0' * 30}{after}", False
        value = int(match[0])
        if value < len(_WORDS):
            yield "number in words", f"{before}{_WORDS[value]}{after}", True
