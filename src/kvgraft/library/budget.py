"""What solving one problem may cost, and what of it is left while it goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvgraft.energy import EnergyMeter, EnergyWindow
from kvgraft.errors import UsageError
from kvgraft.limits import ENERGY_CHECK_SECONDS
from kvgraft.meter import Cost, Stopwatch


@dataclass(frozen=True)
class Budget:
    """Caps for one problem; None is no cap. `tokens` are those computed for all its attempts, of
    prompts and of answers; what was reused is free. `seconds` of wall time, `joules` as metered.

    Raises:
        UsageError: a cap that is not over 0, or not finite.
    """

    tokens: int | None = None
    seconds: float | None = None
    joules: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "seconds", "joules"):
            cap = getattr(self, name)
            if cap is not None and not 0 < cap < math.inf:
                raise UsageError(f"a budget of {cap} {name} is none", hint="give a number over 0")

    def check_meter(self, meter: EnergyMeter | None) -> None:
        """Refuse a cap that nothing measures.

        Raises:
            UsageError: joules without a meter.
        """
        if self.joules is None or (meter is not None and (meter.sources or meter.watts)):
            return
        why = meter.describe() if meter is not None else "no meter was opened"
        raise UsageError(
            f"a budget in joules needs a meter: {why}",
            hint="give the budget in tokens or seconds, or state the watts that are drawn",
        )


class Allowance:
    """What is left of a budget. Without one, everything is allowed.

    `spent` is what an earlier run of the same work took. `ran_out` names what the budget had too
    little of; it stays empty while there is enough.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        spent: Cost | None = None,
        meter: EnergyMeter | None = None,
    ) -> None:
        self._budget = budget or Budget()
        spent = spent or Cost.nothing()
        self._tokens = _sum(spent.prefill_tokens, spent.decode_tokens)
        self._seconds = spent.seconds
        self._watch = Stopwatch()
        self.ran_out = ""
        self._joules = spent.joules
        self._meter = meter if self._budget.joules is not None else None
        self._window: EnergyWindow | None = None
        self._window_watch = Stopwatch()
        if self._meter is not None:
            self._window = self._meter.begin()

    @property
    def tokens_left(self) -> int | None:
        """None: as many as wanted."""
        if self._budget.tokens is None:
            return None
        return max(0, self._budget.tokens - (self._tokens or 0)) if self._tokens is not None else 0

    @property
    def seconds_left(self) -> float | None:
        """None: as many as wanted."""
        if self._budget.seconds is None:
            return None
        return max(0.0, self._budget.seconds - self._seconds - self._watch.seconds)

    def spend(self, tokens: int | None) -> None:
        """Count tokens that were computed; None where nobody knows how many."""
        self._tokens = _sum(self._tokens, tokens)

    def allows(self, tokens: int = 0) -> bool:
        """Whether there is room for `tokens` more; once there was not, there never is again."""
        if not self.ran_out:
            self.ran_out = self._lacking(tokens)
        return not self.ran_out

    def _lacking(self, tokens: int) -> str:
        left = self.tokens_left
        if left is not None and (left < tokens or left == 0):
            return "tokens" if self._tokens is not None else "tokens (not all were counted)"
        if self.seconds_left == 0:
            return "seconds"
        return self._lacking_joules()

    def _lacking_joules(self) -> str:
        cap, meter = self._budget.joules, self._meter
        if cap is None:
            return ""
        if self._window is not None and self._window_watch.seconds >= ENERGY_CHECK_SECONDS:
            # A window ends with its reading, so another one follows it.
            energy = self._window.end()
            self._window = meter.begin() if meter is not None else None
            self._window_watch = Stopwatch()
            self._joules = None if energy.joules is None else _plus(self._joules, energy.joules)
        if self._joules is None:
            return "joules (they could not be measured)"
        return "joules" if self._joules >= cap else ""


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _plus(one: float | None, other: float) -> float | None:
    return None if one is None else one + other
