"""What a family of problems is: its phrasings, its parameters, and what only looks like it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Parameters = Mapping[str, Any]
Answer = Callable[[Parameters], object]


@dataclass(frozen=True)
class Negative:
    """A text made of a family's parameters, and its right answer: None where there is none."""

    kind: str
    text: str
    answer: Answer | None = None


@dataclass(frozen=True)
class ProblemFamily:
    """`phrasings` (the last one is held out) and texts of `negatives` are format strings over what
    `draw` gives."""

    name: str
    phrasings: tuple[str, ...]
    draw: Callable[[random.Random], Parameters]
    answer: Answer
    negatives: tuple[Negative, ...]

    @property
    def held_out(self) -> int:
        """The number of the phrasing that nothing is learned from."""
        return len(self.phrasings) - 1
