"""A small study whose model says what a script gives it, run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvgraft.engines.base import Engine
from kvgraft.prompt import CUES
from kvgraft.study.bench import OnStep
from kvgraft.study.items import HELD_OUT, RECURRING, Item, collect
from kvgraft.study.protocol import ModelSpec, Protocol, parse_protocol
from kvgraft.study.registration import Registration
from kvgraft.study.run import run_study
from kvgraft.study.worker import identity_of, run_steps
from library.scripted import ScriptedEngine

PLAN: dict[str, Any] = {
    "name": "small",
    "question": "Does the machinery work?",
    "seed": 5,
    "models": [{"name": "toy", "label": "scripted"}],
    "sets": [
        {"name": "sums", "families": ["add", "double"], "count": 8},
        {"name": "others", "families": ["weeks"], "count": 2, "deposit_share": 0},
    ],
    "verifier": "exact",
    "verifier_sees_key": True,
    "solve": {"attempts": 3, "max_new_tokens": 30},
    "ask": {"max_new_tokens": 30},
    "control_problems": 3,
    "near_misses": 1,
}


def plan(**changes: Any) -> Protocol:
    return parse_protocol({**PLAN, **changes})


def script(items: Sequence[Item], seed: int = 0) -> ScriptedEngine:
    """A model that samples a right solution to every problem, and alone gets every other recurring
    one right, no held-out one and no new one."""
    engine = ScriptedEngine(seed)
    for number, item in enumerate(items):
        key = str(item.problem.expected)
        right = f"R{number}\nAnswer: {key}"
        wrong = f"W{number}\nAnswer: {int(key) + 1}"
        alone = right if item.group == RECURRING and number % 2 else wrong
        engine.on_problem(item.problem.text, wrong, right, right, alone=alone)
        engine.on(right + CUES[0], f" {key}\n.")
        engine.on(wrong + CUES[0], f" {int(key) + 1}\n.")
    return engine


class Here:
    """Runs everything in this process, each phase with an engine of its own; `engines` has them."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.engines: list[ScriptedEngine] = []
        self.steps: list[str] = []

    def open(self, spec: ModelSpec) -> Engine:
        self.engines.append(script(self.items))
        return self.engines[-1]

    def identity(self, spec: ModelSpec, follow: OnStep) -> dict[str, Any]:
        return identity_of(spec, self.open)

    def run(self, folder: Path, label: str, steps: Sequence[str], follow: OnStep) -> None:
        self.steps += steps
        run_steps(folder, label, steps, self.open, follow)


def studied(
    folder: Path, made: Protocol | None = None, runner: Here | None = None, **options: Any
) -> tuple[Registration, Here]:
    """The study run to its end in `folder`."""
    made = made or plan()
    runner = runner or Here(collect(made, folder))
    return run_study(made, folder, base=folder, runner=runner, **options), runner


def held_out(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.group == HELD_OUT]
