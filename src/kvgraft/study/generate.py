"""Problems made from a seed: short arithmetic that a small model solves in part.

Each family has one answer, a whole number, and phrases of its own. An id names its family first:
`add/93+5`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kvgraft.errors import InputError
from kvgraft.library.problem import Problem

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June")
_THINGS = ("apples", "books", "cards", "coins", "pens", "shells", "stamps", "tickets")
_Row = tuple[str, str, int]  # what tells it apart, the text, the answer


def _add(draw: random.Random) -> _Row:
    a, b = draw.randint(2, 29), draw.randint(2, 9)
    return f"{a}+{b}", f"What is {a} + {b}?", a + b


def _subtract(draw: random.Random) -> _Row:
    a, b = draw.randint(11, 29), draw.randint(2, 9)
    return f"{a}-{b}", f"What is {a} - {b}?", a - b


def _multiply(draw: random.Random) -> _Row:
    a, b = draw.randint(2, 12), draw.randint(2, 12)
    return f"{a}x{b}", f"What is {a} times {b}?", a * b


def _double(draw: random.Random) -> _Row:
    a = draw.randint(3, 60)
    return f"{a}", f"What is twice {a}?", 2 * a


def _larger(draw: random.Random) -> _Row:
    a, b = draw.sample(range(10, 99), 2)
    return f"{a}or{b}", f"Which number is larger: {a} or {b}?", max(a, b)


def _after(draw: random.Random) -> _Row:
    a = draw.randint(11, 98)
    return f"{a}", f"Which whole number comes right after {a}?", a + 1


def _percent(draw: random.Random) -> _Row:
    share, whole = draw.choice((10, 20, 25, 50)), 20 * draw.randint(1, 20)
    return f"{share}of{whole}", f"What is {share}% of {whole}?", share * whole // 100


def _weeks(draw: random.Random) -> _Row:
    weeks, days = draw.randint(2, 15), draw.randint(1, 6)
    return (
        f"{weeks}w{days}d",
        f"How many days are {weeks} weeks and {days} days?",
        7 * weeks + days,
    )


def _gift(draw: random.Random) -> _Row:
    name, thing = draw.choice(_NAMES), draw.choice(_THINGS)
    had, more = draw.randint(3, 15), draw.randint(2, 9)
    return (
        f"{name}-{had}-{more}-{thing}",
        f"{name} has {had} {thing} and gets {more} more. How many {thing} does {name} have now?",
        had + more,
    )


def _boxes(draw: random.Random) -> _Row:
    thing, boxes, each = draw.choice(_THINGS), draw.randint(2, 12), draw.randint(2, 12)
    return (
        f"{boxes}x{each}-{thing}",
        f"There are {boxes} boxes with {each} {thing} in each box. How many {thing} are there?",
        boxes * each,
    )


def _change(draw: random.Random) -> _Row:
    name, price = draw.choice(_NAMES), draw.randint(2, 18)
    return (
        f"{name}-{price}",
        f"{name} buys a book for {price} dollars and pays with a 20 dollar bill. How many dollars"
        f" does {name} get back?",
        20 - price,
    )


FAMILIES: dict[str, Callable[[random.Random], _Row]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "double": _double,
    "larger": _larger,
    "after": _after,
    "percent": _percent,
    "weeks": _weeks,
    "gift": _gift,
    "boxes": _boxes,
    "change": _change,
}
_TRIES = 1_000  # to find one more problem that is not there yet


def generate(families: Sequence[str], count: int, seed: int) -> list[Problem]:
    """`count` different problems, the families by turns; equal for equal arguments.

    Raises:
        InputError: no such family, or too few different problems in one.
    """
    strangers = [name for name in families if name not in FAMILIES]
    if strangers or not families:
        raise InputError(f"there is no family {', '.join(strangers)}", hint=", ".join(FAMILIES))
    streams = {name: random.Random(f"{seed}/{name}") for name in families}
    made: dict[str, Problem] = {}
    for number in range(count):
        family = families[number % len(families)]
        for _ in range(_TRIES):
            mark, text, answer = FAMILIES[family](streams[family])
            id = f"{family}/{mark}"
            if id not in made:
                made[id] = Problem(id, text, str(answer))
                break
        else:
            raise InputError(f"the family {family} has no {count // len(families)} problems")
    return list(made.values())


def family_of(problem: Problem) -> str:
    """What stands before the slash of an id; empty where there is none."""
    return problem.id.partition("/")[0] if "/" in problem.id else ""
