"""What an answer cost: tokens, seconds and CPU seconds. Joules are `kvgraft.energy`'s, FLOPs
`kvgraft.flops`'s. What was not measured is `None`, never 0."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

_PROCESSES = Path("/proc")
_TRIES = 5
_ESTIMATE = "estimate"
_AND = "; "
_Number = TypeVar("_Number", int, float)


@dataclass
class Cost:
    """What some work took.

    Tokens, attempts and wall seconds are counted by whoever does the work, so they begin at 0.
    Another machine may not tell its tokens: then they are None.
    `decode_tokens` counts forward rows of decoding, over all lanes. The rest needs something that
    may be missing, so it begins unknown: `cpu_seconds` of this process and its children
    (`process_cpu_seconds`), `model_flops` (`kvgraft.flops`), `joules` (`kvgraft.energy`).
    `joules_from` says where the joules come from: "rapl", "nvml+rapl", "estimate: 65 W stated".
    """

    attempts: int = 0
    prefill_tokens: int | None = 0
    reused_tokens: int | None = 0
    decode_tokens: int | None = 0
    seconds: float = 0.0
    cpu_seconds: float | None = None
    model_flops: int | None = None
    joules: float | None = None
    joules_from: str | None = None

    @classmethod
    def nothing(cls) -> Cost:
        """Of work that was not done: known to be 0 throughout. Sums begin with it."""
        return cls(cpu_seconds=0.0, model_flops=0, joules=0.0)

    def __add__(self, other: Cost) -> Cost:
        """Both together. What one of them does not know, the sum does not know; joules of which a
        part is an estimate are labelled as an estimate."""
        joules = _sum(self.joules, other.joules)
        return Cost(
            attempts=self.attempts + other.attempts,
            prefill_tokens=_sum(self.prefill_tokens, other.prefill_tokens),
            reused_tokens=_sum(self.reused_tokens, other.reused_tokens),
            decode_tokens=_sum(self.decode_tokens, other.decode_tokens),
            seconds=self.seconds + other.seconds,
            cpu_seconds=_sum(self.cpu_seconds, other.cpu_seconds),
            model_flops=_sum(self.model_flops, other.model_flops),
            joules=joules,
            joules_from=None if joules is None else _both(self._sources(), other._sources()),
        )

    def _sources(self) -> list[str]:
        if self.joules_from is None:
            return ["unknown source"] if self.joules else []
        return self.joules_from.split(_AND)

    def as_dict(self) -> dict[str, int | float | str | None]:
        """As plain data; each name ends in its unit, or says what it counts."""
        return asdict(self)


def is_estimate(joules_from: str | None) -> bool:
    """Whether joules of that source are, in whole or in part, an estimate."""
    return joules_from is not None and joules_from.startswith(_ESTIMATE)


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    return None if one is None or other is None else one + other


def _both(ours: list[str], theirs: list[str]) -> str | None:
    """Each source once, estimates first."""
    named = sorted({*ours, *theirs}, key=lambda source: (not is_estimate(source), source))
    return _AND.join(named) or None


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began


def process_cpu_seconds() -> float | None:
    """CPU seconds, user and system, of this process with all its threads, of every child that has
    ended and was waited for, and of every descendant that still runs, such as a verifier's worker.
    None where the system does not tell all of it (Linux does).

    Not counted: processes that left the family (their parent ended, and none of ours adopted
    them), and what devices and other machines do. Whatever else this process does meanwhile is.
    """
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    ended = _seconds(resource.getrusage(resource.RUSAGE_CHILDREN))
    running = 0.0
    for _ in range(_TRIES):
        try:
            running = sum(_running_seconds("self"))
        except OSError:
            return None
        before, ended = ended, _seconds(resource.getrusage(resource.RUSAGE_CHILDREN))
        if ended == before:
            break  # else a child ended meanwhile, and may be in both sums or in neither
    return _seconds(resource.getrusage(resource.RUSAGE_SELF)) + ended + running


def _seconds(usage: Any) -> float:
    return float(usage.ru_utime + usage.ru_stime)


def _running_seconds(process: str) -> Iterator[float]:
    """Of each running descendant, with what it has waited for itself (proc(5), `stat`).

    Raises:
        OSError: the children of `process` cannot be seen.
    """
    for thread in list((_PROCESSES / process / "task").iterdir()):
        try:
            children = (thread / "children").read_text(encoding="ascii").split()
        except FileNotFoundError:
            if thread.exists():  # this kernel does not list children
                raise
            continue  # the thread ended
        for child in children:
            try:
                line = (_PROCESSES / child / "stat").read_bytes().rpartition(b")")[2]
                yield sum(map(int, line.split()[11:15])) / os.sysconf("SC_CLK_TCK")
                yield from _running_seconds(child)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended just now
