"""What an answer cost. Tokens and seconds are counted; what was not measured is `None`, never 0."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass


@dataclass
class Cost:
    """`decode_tokens` counts forward rows of decoding, over all lanes. Energy has no meter in
    this version: `joules` is None."""

    attempts: int = 0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    decode_tokens: int = 0
    seconds: float = 0.0
    joules: float | None = None

    def __add__(self, other: Cost) -> Cost:
        known = self.joules is not None and other.joules is not None
        return Cost(
            attempts=self.attempts + other.attempts,
            prefill_tokens=self.prefill_tokens + other.prefill_tokens,
            reused_tokens=self.reused_tokens + other.reused_tokens,
            decode_tokens=self.decode_tokens + other.decode_tokens,
            seconds=self.seconds + other.seconds,
            joules=(self.joules or 0.0) + (other.joules or 0.0) if known else None,
        )

    def as_dict(self) -> dict[str, int | float | None]:
        return asdict(self)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began
