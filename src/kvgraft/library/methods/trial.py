"""Running programs of a method in the sandbox, and what counts as right.

A program gets the values of slots and nothing else: no text, no answer, no other program. Its value
counts only where it is, in the form of the family's answers, the verified answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from kvgraft.library.methods.answers import AnswerForm
from kvgraft.library.methods.skeleton import Skeleton
from kvgraft.library.methods.source import FUNCTION
from kvgraft.limits import (
    MAX_METHOD_BINDINGS,
    METHOD_SECONDS,
    METHOD_TRIAL_SECONDS,
)
from kvgraft.sandbox.run import Limits, NoValue, Ran, call_functions

Arguments = tuple[Any, ...]
Binding = tuple[int, ...]  # the number of the slot that each parameter takes
_MOST_ENDLESS = 8  # orders of parameters with which a program does not end, before it is given up
Run = Callable[[str, Sequence[Arguments], float], Ran]


@dataclass(frozen=True)
class Instance:
    """A problem whose answer was verified, in canonical form. `deposit`: the id of the deposit that
    holds it, None where it comes with a key from elsewhere."""

    text: str
    answer: str
    grade: str
    deposit: str | None = None


def run_sandboxed(source: str, rows: Sequence[Arguments], seconds: float) -> Ran:
    """`solve` called with each of `rows`, in one sandbox. This is the `Run` of everything here.

    Raises:
        SandboxUnavailable: this system cannot hold a program.
    """
    calls = [(FUNCTION, row) for row in rows]
    return call_functions(source, calls, limits=Limits(seconds=seconds, cpu_seconds=seconds))


def answers_of(
    source: str,
    rows: Sequence[Arguments],
    form: AnswerForm,
    run: Run,
    seconds: float = METHOD_SECONDS,
) -> list[str | NoValue]:
    """The answer to each row of arguments; `NoValue` where the program gave none of that form."""
    return _answers(run(source, rows, seconds), len(rows), form)


def _answers(ran: Ran, count: int, form: AnswerForm) -> list[str | NoValue]:
    missing = [NoValue(ran.failure or "it was not called")] * (count - len(ran.values))
    return [_answer(value, form) for value in [*ran.values, *missing]]


def _answer(value: Any, form: AnswerForm) -> str | NoValue:
    if isinstance(value, NoValue):
        return value
    spelled = form.spell(value)
    if spelled is None:
        return NoValue(f"gave a {type(value).__name__} that is no {form.kind} answer")
    return spelled


def fault(
    source: str, rows: Sequence[Arguments], answers: Sequence[str], form: AnswerForm, run: Run
) -> str | None:
    """What is wrong with a program on problems whose answers are known, or None.

    It runs twice, the second time from the last to the first: a program that remembers or counts
    its calls, or that draws by chance, does not come to the same answers again.
    """
    seen = answers_of(source, rows, form, run, METHOD_TRIAL_SECONDS)
    for given, answer in zip(seen, answers, strict=True):
        if isinstance(given, NoValue):
            return given.reason
        if given != answer:
            return f"gave {given:.60} for {answer:.60}"
    again = answers_of(source, rows[::-1], form, run, METHOD_TRIAL_SECONDS)
    return None if again[::-1] == seen else "gives other answers in another order"


def bound(arguments: Arguments, binding: Binding) -> Arguments:
    """The arguments of a program, from the values in the slots."""
    return tuple(arguments[slot] for slot in binding)


def bindings(
    skeleton: Skeleton,
    types: Sequence[str],
    instances: Sequence[Instance],
    programs: Sequence[str],
    form: AnswerForm,
    run: Run,
) -> tuple[Binding, ...]:
    """Every way to fill parameters of `types` from the slots of another phrasing with which all
    programs reproduce all of its verified answers; there may be several, or none."""
    if sorted(skeleton.types) != sorted(types):
        return ()
    rows = [arguments_in(skeleton, instance) for instance in instances]
    answers = [instance.answer for instance in instances]
    found = [
        order
        for order in permutations(range(len(types)))
        if all(skeleton.types[slot] == kind for slot, kind in zip(order, types, strict=True))
    ]
    if len(found) > MAX_METHOD_BINDINGS:
        return ()
    for source in programs:
        found = _reproducing(source, found, rows, answers, form, run)
    return tuple(
        order
        for order in found
        if all(
            fault(source, [bound(row, order) for row in rows], answers, form, run) is None
            for source in programs
        )
    )


def _reproducing(
    source: str,
    orders: Sequence[Binding],
    rows: Sequence[Arguments],
    answers: Sequence[str],
    form: AnswerForm,
    run: Run,
) -> list[Binding]:
    """Those of `orders` with which the program gives `answers`. One with which it does not come to
    an end is passed over, and the rest are tried in another sandbox."""
    found: list[Binding] = []
    left = list(orders)
    for _ in range(_MOST_ENDLESS):
        calls = [bound(row, order) for order in left for row in rows]
        ran = run(source, calls, METHOD_TRIAL_SECONDS)
        seen = _answers(ran, len(calls), form)
        tried = [seen[n : n + len(rows)] for n in range(0, len(seen), len(rows))]
        found += [order for order, given in zip(left, tried, strict=True) if given == answers]
        answered = [n for n, one in enumerate(seen) if not isinstance(one, NoValue)]
        endless = (answered[-1] + 1 if answered else 0) // len(rows)
        left = left[endless + 1 :]
        if ran.ended == "ended" or not left:
            break
    return found


def arguments_in(skeleton: Skeleton, instance: Instance) -> Arguments:
    """What a program gets for an instance of the skeleton."""
    texts = skeleton.match(instance.text)
    if texts is None:
        raise AssertionError("an instance does not match the skeleton that it is of")
    return skeleton.arguments(texts)
