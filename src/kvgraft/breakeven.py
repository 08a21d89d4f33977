"""Load or compute: decided from what both cost here, as far as it was measured (invariant I7).

Which of the two is chosen changes no bit of any logits, so the choice may depend on the clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from kvgraft.plan import Call

# What is older counts less: of a hundred observations ago, a seventh.
_KEEP = 0.98
# Before so many observations a rate is not known.
_ENOUGH = 4.0
# While computing is chosen, one load in so many is made all the same: a store may have become fast.
_EXPLORE = 16
_SHORTEST_SECONDS = 1e-4  # below it, a clock's own error would rule
_ABSURD = 1e30  # no sum of bytes squared gets there


class Load(Enum):
    """When a stored state is loaded: whenever it is there, when that is predicted to be faster
    than computing it, or never."""

    ALWAYS = "always"
    MEASURED = "measured"
    NEVER = "never"


@dataclass
class Line:
    """A straight line through observations `(x, seconds)`, older ones fading.

    It is fitted to relative errors: a long load that is a tenth off must not cost a short one, for
    which the question is open, all of its precision.
    """

    count: float = 0.0
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, seconds: float) -> None:
        """Note an observation."""
        share = 1.0 / max(seconds, _SHORTEST_SECONDS) ** 2
        self.count = self.count * _KEEP + 1.0
        for name, value in (
            ("weight", 1.0),
            ("x", x),
            ("y", seconds),
            ("xx", x * x),
            ("xy", x * seconds),
        ):
            setattr(self, name, getattr(self, name) * _KEEP + value * share)

    def at(self, x: float) -> float | None:
        """Predicted seconds; None where too little was seen.

        Costs do not fall as sizes grow: a slope that noise made negative counts as none, and so
        does an intercept below zero.
        """
        if self.count < _ENOUGH or not self.weight:
            return None
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        spread = self.xx / self.weight - mean_x**2
        if spread <= 1e-9 * max(self.xx / self.weight, 1.0):
            return mean_y  # one size alone was seen
        slope = max(0.0, (self.xy / self.weight - mean_x * mean_y) / spread)
        if slope * mean_x > mean_y:
            slope = mean_y / mean_x
        return max(0.0, mean_y + slope * (x - mean_x))


@dataclass
class Rates:
    """What loading and computing cost, for one model on one machine and one store.

    `load` is over bytes. `calls` has one line per size of call (rows rounded up to a power of two)
    over the position at which it starts: attention costs more the more it sees.
    """

    load: Line = field(default_factory=Line)
    calls: dict[int, Line] = field(default_factory=dict)
    declined: int = 0  # times in a row that computing was chosen
    unsaved: int = 0

    def note_load(self, size_bytes: int, seconds: float) -> None:
        """A state of so many bytes was read, verified and made a context's own."""
        self.load.add(size_bytes, seconds)
        self.unsaved += 1

    def note_call(self, call: Call, seconds: float) -> None:
        """A planned call was made."""
        self.calls.setdefault(_rows(call), Line()).add(call.start, seconds)
        self.unsaved += 1

    def load_seconds(self, size_bytes: int) -> float | None:
        """Predicted seconds to load so many bytes, or None."""
        return self.load.at(size_bytes)

    def compute_seconds(self, calls: Iterable[Call]) -> float | None:
        """Predicted seconds to make these calls, or None."""
        total = 0.0
        for call in calls:
            line = self.calls.get(_rows(call))
            seconds = line.at(call.start) if line else None
            if seconds is None:
                return None
            total += seconds
        return total

    def prefers_computing(self, size_bytes: int, calls: Iterable[Call]) -> bool:
        """Whether making `calls` is predicted to be faster than loading what they left behind.
        What is not known is loaded, and so becomes known."""
        load, compute = self.load_seconds(size_bytes), self.compute_seconds(calls)
        if load is None or compute is None or load <= compute:
            self.declined = 0
            return False
        self.declined = (self.declined + 1) % _EXPLORE
        self.unsaved += 1  # or short processes, each with its own count, would never explore
        return self.declined != 0

    def to_json(self) -> str:
        """For the next process."""
        lines = {"load": self.load, **{str(rows): line for rows, line in self.calls.items()}}
        saved = {name: vars(line) for name, line in lines.items()}
        return json.dumps({"declined": self.declined, "lines": saved})

    @classmethod
    def from_json(cls, text: str) -> Rates:
        """Inverse of `to_json`. Anything else is as good as nothing: rates are measured again."""
        try:
            saved = json.loads(text)
            lines = {name: Line(**values) for name, values in saved["lines"].items()}
            numbers = [value for line in lines.values() for value in vars(line).values()]
            declined = saved["declined"]
            if not all(type(n) in (int, float) and 0 <= n < _ABSURD for n in (declined, *numbers)):
                return cls()
            load = lines.pop("load")
            calls = {int(name): line for name, line in lines.items()}
            return cls(load, calls, int(declined) % _EXPLORE)
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return cls()


def _rows(call: Call) -> int:
    return 1 << (call.rows - 1).bit_length()
