"""Programs in the sandbox: what counts as right, and how another phrasing is bound."""

from __future__ import annotations

import pytest

from kvgraft.library.methods.answers import form_of
from kvgraft.library.methods.skeleton import Skeleton, phrasings
from kvgraft.library.methods.trial import (
    Instance,
    answers_of,
    arguments_in,
    bindings,
    fault,
    run_sandboxed,
)
from kvgraft.sandbox.run import NoValue, Ran

ROWS = [(7, 3), (9, 4), (20, 6), (5, 5)]
ANSWERS = ["4", "5", "14", "0"]
FORM = form_of(ANSWERS)
MINUS = "def solve(a, b):\n    return a - b\n"


def wrong_with(source: str) -> str | None:
    return fault(source, ROWS, ANSWERS, FORM, run_sandboxed)


def test_a_right_program() -> None:
    assert wrong_with(MINUS) is None
    assert answers_of(MINUS, ROWS, FORM, run_sandboxed) == ANSWERS


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def solve(a, b):\n    return a + b\n", "gave 10 for 4"),
        ("def solve(a, b):\n    return 4\n", "gave 4 for 5"),
        ("def solve(a, b):\n    return None\n", "no integer answer"),
        ("def solve(a, b):\n    print(a - b)\n", "no integer answer"),
        ("def solve(a, b):\n    return (a - b) / 3\n", "no integer answer"),
        ("def solve(a, b):\n    return a // (b - 3)\n", "ZeroDivisionError"),
        ("def other(a, b):\n    return a - b\n", "no such function"),
        ("def solve(a, b):\n    raise SystemExit(a - b)\n", "raised"),
        (
            "A = [4, 5, 14, 0]\nN = [0]\ndef solve(a, b):\n    N[0] += 1\n    return A[N[0] - 1]\n",
            "another order",
        ),
        (
            "SEEN = []\ndef solve(a, b):\n    SEEN.append(a)\n"
            "    return 99 if SEEN == [5] else a - b\n",
            "another order",
        ),
        (
            "def solve(a, b):\n    import sys\n"
            "    frame = sys._getframe()\n    while frame.f_back: frame = frame.f_back\n"
            "    return next(v for v in frame.f_globals.values() if v == 4)\n",
            "raised",  # there is no answer in there to be found
        ),
    ],
)
def test_a_program_that_is_not_right(source: str, why: str) -> None:
    assert why in (wrong_with(source) or "")


def test_chance_shows_in_the_second_run() -> None:
    calls = []

    def run(source: str, rows: object, seconds: float) -> Ran:
        calls.append(rows)
        values = (4, 5, 14, 0) if len(calls) == 1 else (0, 14, 5, 9)
        return Ran("ended", 0, "", "", 0, values, None, 0.0, 0.0, ())

    assert "another order" in (fault(MINUS, ROWS, ANSWERS, FORM, run) or "")
    assert calls == [ROWS, ROWS[::-1]]


def test_a_run_that_came_to_less_than_it_should() -> None:
    def run(source: str, rows: object, seconds: float) -> Ran:
        return Ran("late", None, "", "", 0, (4,), "it was late", 1.0, 1.0, ())

    first, *rest = answers_of(MINUS, ROWS, FORM, run)
    assert first == "4"
    assert rest == [NoValue("it was late")] * 3


def test_an_endless_program_ends() -> None:
    loop = "def solve(a, b):\n    while True: pass\n"
    (only,) = answers_of(loop, [(1, 2)], FORM, run_sandboxed, seconds=1.0)
    assert isinstance(only, NoValue)


# --- another phrasing -----------------------------------------------------------------------------


def phrased(*texts: tuple[str, str]) -> tuple[Skeleton, list[Instance]]:
    ((found, _),) = phrasings([text for text, _ in texts], enough=2).items()
    return found, [Instance(text, answer, "proved") for text, answer in texts]


TAKEN = phrased(*((f"Take {b} from {a}.", str(a - b)) for a, b in ROWS))


def orders(source: str, *more: str, phrasing: tuple[Skeleton, list[Instance]] = TAKEN) -> object:
    types = ("integer", "integer")
    return bindings(phrasing[0], types, phrasing[1], (source, *more), FORM, run_sandboxed)


def test_the_one_order_that_agrees() -> None:
    skeleton, instances = TAKEN
    assert arguments_in(skeleton, instances[0]) == (3, 7)
    assert orders(MINUS) == ((1, 0),)
    assert orders("def solve(a, b):\n    return b - a\n") == ((0, 1),)
    assert orders("def solve(a, b):\n    return a + b\n") == ()


def test_every_order_that_agrees() -> None:
    assert orders("def solve(a, b):\n    return abs(a - b)\n") == ((0, 1), (1, 0))
    # Where one program is sure, the others have to be.
    assert orders("def solve(a, b):\n    return abs(a - b)\n", MINUS) == ((1, 0),)
    assert orders(MINUS, "def solve(a, b):\n    return b - a\n") == ()


def test_an_order_in_which_a_program_does_not_end() -> None:
    steps = (
        "def solve(a, b):\n    n = 0\n    while a != b:\n        a -= 1\n        n += 1\n"
        "    return n\n"
    )

    def run(source: str, rows: object, seconds: float) -> Ran:
        return run_sandboxed(source, rows, 1.0)  # type: ignore[arg-type]

    skeleton, instances = TAKEN
    assert bindings(skeleton, ("integer",) * 2, instances, (steps,), FORM, run) == ((1, 0),)


def test_other_types_do_not_fit() -> None:
    skeleton, instances = TAKEN
    for types in (("integer",), ("integer", "decimal"), ("integer",) * 3):
        assert bindings(skeleton, types, instances, (MINUS,), FORM, run_sandboxed) == ()
