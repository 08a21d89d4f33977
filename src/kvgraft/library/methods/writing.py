"""Asking a model for programs: the phrasing with its slots, some solved problems, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvgraft.decode import Sampling
from kvgraft.engines.base import Message
from kvgraft.library.attempts import Attempt, Model
from kvgraft.library.methods.answers import INTEGER, TEXT, AnswerForm
from kvgraft.library.methods.lex import KINDS
from kvgraft.library.methods.skeleton import CLOSED, Skeleton
from kvgraft.library.methods.source import FUNCTION, Program, Unusable, program_of
from kvgraft.meter import Cost
from kvgraft.reuse import Keep

NAMES = "abcdefgh"  # of parameters, in the order of the slots
_NOTES = {
    "date": 'a date as "YYYY-MM-DD"',
    "clock": 'a time of day as "HH:MM"',
    "edges": "pairs of nodes",
}


@dataclass(frozen=True)
class Style:
    """What a batch is told; `as_text`: every answer is shown as text, which some models need for
    answers that are digits and no number."""

    words: str
    as_text: bool


# One for each batch: the second looks for another way to the same answers.
STYLES = (
    Style("Use Python's standard library where it helps, and import what you use.", False),
    Style("Use only loops, conditions and basic arithmetic. Import nothing.", True),
)


@dataclass(frozen=True)
class WritingEffort:
    """`attempts` in each batch; the batches have the `STYLES` in turn."""

    attempts: int = 8
    batches: int = 2
    max_new_tokens: int = 200
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class Written:
    """What became of the attempts: `cost`, and of each text that was no program, why."""

    cost: Cost
    refused: list[str]


def ask_for(
    skeleton: Skeleton,
    examples: Sequence[tuple[Sequence[Any], str]],
    form: AnswerForm,
    style: Style,
) -> str:
    """The prompt: `examples` are arguments with their answers."""
    names = NAMES[: len(skeleton.kinds)]
    hints = [_hint(kind) for kind in skeleton.kinds]
    given = ", ".join(f"{name}: {hint}" for name, hint in zip(names, hints, strict=True))
    as_text = style.as_text or form.kind == TEXT
    gives = "str" if as_text else {INTEGER: "int"}.get(form.kind, "float")
    notes = [
        f"{name} is {_NOTES[kind]}."
        for name, kind in zip(names, skeleton.types, strict=True)
        if kind in _NOTES
    ]
    lines = [
        f"{FUNCTION}({_listed(row)}) == {repr(answer) if as_text else answer}"
        for row, answer in examples
    ]
    return "\n".join(
        [
            "Write a Python function that answers every problem of this kind:",
            "",
            skeleton.named(names),
            "",
            f"Its first line is `def {FUNCTION}({given}) -> {gives}:`.",
            *notes,
            "Examples:",
            *lines,
            "",
            f"{style.words} Reply with the code only, in one ```python block.",
        ]
    )


def write_programs(
    model: Model,
    skeleton: Skeleton,
    examples: Sequence[tuple[Sequence[Any], str]],
    form: AnswerForm,
    effort: WritingEffort,
    on_program: Callable[[Program], bool],
) -> Written:
    """Let the model write programs; each goes to `on_program` as it is finished, which says True
    when no more are needed. Programs that were seen before are not passed on."""
    cost = Cost.nothing()
    ear = _Ear(len(skeleton.kinds), on_program)
    for number, style in enumerate(_styles(effort.batches)):
        finished: set[int] = set()

        def hear(lane: int, attempt: Attempt, finished: set[int] = finished) -> bool:
            finished.add(lane)
            return ear.hear(attempt)

        batch = model.attempt(
            [Message("user", ask_for(skeleton, examples, form, style))],
            effort.attempts,
            replace(effort.sampling, seed=effort.sampling.seed + number),
            effort.max_new_tokens,
            keep=Keep.NOTHING,
            on_finish=hear,
        )
        cost += batch.cost
        for lane, attempt in enumerate(batch.attempts):
            if lane not in finished and not attempt.given_up and not ear.enough:
                ear.hear(attempt)  # cut off: its program may be whole all the same
        if ear.enough:
            break
    return Written(cost, ear.refused)


class _Ear:
    """Hears attempts, and passes on the programs in them, each once."""

    def __init__(self, parameters: int, on_program: Callable[[Program], bool]) -> None:
        self._parameters = parameters
        self._on_program = on_program
        self._known: set[str] = set()
        self.refused: list[str] = []
        self.enough = False

    def hear(self, attempt: Attempt) -> bool:
        try:
            program = program_of(attempt.text, self._parameters, finished=attempt.finished)
        except Unusable as error:
            self.refused.append(str(error))
            return self.enough
        if program.source not in self._known:
            self._known.add(program.source)
            self.enough = self._on_program(program) or self.enough
        return self.enough


def _styles(batches: int) -> Iterator[Style]:
    for number in range(batches):
        yield STYLES[number % len(STYLES)]


def _hint(kind: str) -> str:
    return "str" if kind in CLOSED else KINDS[kind].hint


def _listed(row: Sequence[Any]) -> str:
    return ", ".join(map(repr, row))
