"""Joules of CPU packages and their memory, from the RAPL counters that Linux shows as files.

Each zone counts microjoules up to a range and begins anew (Documentation/power/powercap of the
kernel). Packages and their `dram` are counted. `core` and `uncore` are parts of a package, and
`psys` holds the package again: adding them would count joules twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvgraft.limits import MAX_ZONE_WATTS, MIN_POLL_SECONDS

POWERCAP = Path("/sys/class/powercap")
MAY_HAVE_WRAPPED = "may have wrapped more than once"
OVER_POWER = "over the stated maximum power"

_ZONES = "intel-rapl:"  # AMD's are called so too
_PER_JOULE = 1_000_000
# Of the shortest time in which a counter can wrap. Two readings in it would do; the rest is slack.
_POLL_SHARE = 0.4
_UPDATE_SECONDS = 0.01  # counters move every millisecond; what a window begins with may be older


class Unavailable(Exception):
    """There is no reading, and why."""


@dataclass(frozen=True)
class Zone:
    """A counter: its folder, and the microjoules at which it begins anew."""

    folder: Path
    range_microjoules: int

    def read(self) -> int:
        """Microjoules.

        Raises:
            Unavailable: unreadable, or no number within the range.
        """
        found = _number(self.folder / "energy_uj")
        if found > self.range_microjoules:
            raise Unavailable(f"{self.folder} counts {found}, past its range")
        return found


def find_zones(root: Path = POWERCAP) -> tuple[Zone, ...]:
    """The zones to be counted, each of which can be read now.

    Raises:
        Unavailable: there are none, or one of them cannot be read: a part of the joules, taken
            for all of them, would be too few.
    """
    try:
        folders = sorted(path for path in root.iterdir() if path.name.startswith(_ZONES))
    except OSError as error:
        raise Unavailable(_why(error, root)) from error
    names = {folder: _text(folder / "name") for folder in folders}
    counted = [f for f, name in names.items() if name.startswith("package") or name == "dram"]
    if not any(names[folder] != "dram" for folder in counted):
        raise Unavailable(f"no CPU package among the zones of {root}")
    zones = tuple(Zone(folder, _number(folder / "max_energy_range_uj")) for folder in counted)
    for zone in zones:
        if zone.range_microjoules < 1:
            raise Unavailable(f"{zone.folder} has a range of 0")
        zone.read()
    return zones


def _number(path: Path) -> int:
    text = _text(path)
    if not (text.isascii() and text.isdigit() and len(text) <= 20):  # 64 bits
        raise Unavailable(f"{path} holds no number")
    return int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise Unavailable(_why(error, path)) from error


def _why(error: OSError, path: Path) -> str:
    if isinstance(error, PermissionError):
        return f"permission denied: {path} (root may read it, or give this user the right to)"
    return f"{path}: {error.strerror or error}"


class RaplWindow:
    """Joules of `zones` since it was made.

    A thread reads the counters in time before any of them can wrap twice; it ends with `end`, or
    with the last reference to the window.

    Raises:
        Unavailable: a counter cannot be read.
    """

    def __init__(
        self,
        zones: Sequence[Zone],
        max_watts: float = MAX_ZONE_WATTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = [_Counter(zone, max_watts, clock) for zone in zones]
        interval = _POLL_SHARE * min(counter.wrap_seconds for counter in self._counters)
        self._stop = threading.Event()
        arguments = (self._counters, self._stop, max(interval, MIN_POLL_SECONDS))
        self._thread = threading.Thread(target=_poll, args=arguments, name="rapl", daemon=True)
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def end(self) -> tuple[float, tuple[str, ...]]:
        """Joules, and what makes them doubtful: `MAY_HAVE_WRAPPED`, `OVER_POWER`.

        Raises:
            Unavailable: a counter could not be read meanwhile, or has not moved yet.
        """
        self._stop.set()
        self._thread.join()
        for counter in self._counters:
            counter.advance()
        used = sum(counter.microjoules for counter in self._counters)
        if not used:
            raise Unavailable("the window was shorter than the counters take to move")
        flags = {flag for counter in self._counters for flag in counter.flags}
        return used / _PER_JOULE, tuple(sorted(flags))


class _Counter:
    """What a zone used since this was made."""

    def __init__(self, zone: Zone, max_watts: float, clock: Callable[[], float]) -> None:
        self.zone = zone
        self.microjoules = 0
        self.flags: set[str] = set()
        self.wrap_seconds = zone.range_microjoules / _PER_JOULE / max_watts
        self._max_watts = max_watts
        self._clock = clock
        self._last, self._at = zone.read(), clock()

    def advance(self) -> None:
        """Take in what was used since the last reading.

        Raises:
            Unavailable: the counter cannot be read.
        """
        now, at = self.zone.read(), self._clock()
        used = now - self._last
        if used < 0:
            used += self.zone.range_microjoules
        passed = at - self._at
        if passed >= self.wrap_seconds:
            self.flags.add(MAY_HAVE_WRAPPED)
        if used > self._max_watts * (passed + _UPDATE_SECONDS) * _PER_JOULE:
            self.flags.add(OVER_POWER)
        self.microjoules += used
        self._last, self._at = now, at


def _poll(counters: list[_Counter], stop: threading.Event, interval: float) -> None:
    while not stop.wait(interval):
        for counter in counters:
            with contextlib.suppress(Unavailable):  # a reading that stays out is a long gap
                counter.advance()
