"""A model that writes what it is told to, and the problems that methods are tested on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvgraft.library.attempts import Attempt, Batch
from kvgraft.library.methods.ask import Abstained, MethodAnswer, ask_method
from kvgraft.library.methods.learn import Learned, Learner
from kvgraft.library.methods.method import Method
from kvgraft.library.methods.records import METHODS_NAME, Methods
from kvgraft.library.methods.trial import Arguments, Instance
from kvgraft.library.records import Library
from kvgraft.meter import Cost
from kvgraft.sandbox.run import NoValue, Ran
from kvgraft.testing.problem_families import problem_families, solved_problems
from kvgraft.testing.problem_family import ProblemFamily

POWER = problem_families()["modular power"]
POWERS = (
    "def solve(a, b, c):\n    return pow(a, b, c)\n",
    "def solve(a, b, c):\n    r = 1\n    for _ in range(b):\n        r = r * a % c\n    return r\n",
)
CHOICE = problem_families()["choices"]
CHOICES = (
    "import math\n\ndef solve(a, b):\n    return math.comb(b, a)\n",
    "def solve(a, b):\n    r = 1\n    for i in range(a):\n        r = r * (b - i) // (i + 1)\n"
    "    return r\n",
)


class Writer:
    """Its lanes say `texts` in turn; one ending in `...` was cut off. `prompts`: what it saw."""

    name = "writer"

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.prompts: list[str] = []

    def attempt(
        self, messages: Any, count: int, sampling: Any, max_new_tokens: int, **options: Any
    ) -> Batch:
        self.prompts.append(messages[-1].content)
        attempts: list[Attempt] = []
        stop = False
        for lane in range(count):
            text = self.texts[lane % len(self.texts)]
            whole = not text.endswith("...")
            attempts.append(Attempt(text, whole and not stop, 10, given_up=stop))
            if whole and not stop:
                stop = options["on_finish"](lane, attempts[-1])
        return Batch(tuple(attempts), Cost(attempts=count, decode_tokens=10 * count))

    def close(self) -> None:
        return


def run_here(source: str, rows: Sequence[Arguments], seconds: float) -> Ran:
    """Programs of the tests' own, without a sandbox: what is not about running is tested faster."""
    names: dict[str, Any] = {}
    exec(source, names)
    values: list[Any] = []
    for row in rows:
        try:
            values.append(names["solve"](*row))
        except Exception as error:
            values.append(NoValue(f"raised {error!r}"))
    return Ran("ended", 0, "", "", 0, tuple(values), None, 0.0, 0.0, ())


def fenced(source: str) -> str:
    return f"Here it is:\n```python\n{source}```\nIt works."


def instances(
    family: ProblemFamily = POWER, count: int = 16, phrasing: int = 0, seed: int = 1
) -> list[Instance]:
    made = solved_problems(family, seed, count, phrasing=phrasing)
    return [Instance(one.text, one.answer, "proved") for one in made]


def learner(methods: Methods, *texts: str, library: Library | None = None, **more: Any) -> Learner:
    model = Writer(*map(fenced, texts)) if texts else None
    return Learner(methods, library, model, **{"run": run_here, **more})


def learn(methods: Methods, given: Sequence[Instance], *texts: str, **more: Any) -> Learned:
    """What becomes of the one phrasing of `given`."""
    (outcome,) = learner(methods, *texts, **more).learn(given)
    return outcome


def learned(methods: Methods, given: Sequence[Instance] | None = None, *texts: str) -> Method:
    outcome = learn(methods, given or instances(), *(texts or POWERS))
    assert outcome.state == "learned", outcome
    assert outcome.method is not None
    return methods.get(outcome.method)


def methods_in(folder: Path) -> Methods:
    return Methods(folder / METHODS_NAME)


def ask(
    methods: Methods | None, text: str, library: Library | None = None, **more: Any
) -> MethodAnswer | Abstained:
    return ask_method(methods, library, text, **{"run": run_here, **more})
