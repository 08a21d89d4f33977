"""Joules of a piece of work, from the meters that this machine has, or why there are none.

RAPL counters are read here (`kvgraft.rapl`). GPUs, systems on a chip, and RAPL where only a daemon
may read it are read by the package `zeus`, if it is installed. What is counted belongs to the
whole machine, idle draw and other programs included; the idle share is reported apart.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from kvgraft.errors import UsageError
from kvgraft.limits import MAX_IDLE_SECONDS, MAX_STATED_WATTS, MAX_ZONE_WATTS
from kvgraft.meter import Cost, Stopwatch, is_estimate, process_cpu_seconds
from kvgraft.rapl import POWERCAP, RaplWindow, Unavailable, find_zones

_GPUS = {"NVIDIAGPUs": "nvml", "AMDGPUs": "amdsmi"}
# The fields of a chip's measurement that add up to the whole of it, in millijoules.
_CHIPS = {
    "AppleSilicon": ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj"),
    "Jetson": ("total_energy_mj",),
}
_KEYS = itertools.count()


@dataclass(frozen=True)
class Energy:
    """Joules of a window of `seconds`.

    `source` names the meters, such as "nvml+rapl", or says "estimate: 65 W stated". `reason`: why
    there are no measured joules, or what is not in them. `idle_joules`: what the same meters would
    have counted in that time with the machine idle, at `idle_watts`; it is a part of `joules`, and
    None where the idle draw was not measured. `flags` are `kvgraft.rapl`'s doubts.
    """

    joules: float | None
    source: str | None
    reason: str | None
    seconds: float
    idle_joules: float | None = None
    idle_watts: float | None = None
    flags: tuple[str, ...] = ()

    @property
    def label(self) -> str | None:
        """The source and the doubts, for `Cost.joules_from`."""
        if self.source is None or not self.flags:
            return self.source
        return f"{self.source} ({', '.join(self.flags)})"


class EnergyMeter:
    """What counts joules here: `sources`, and why not more: `missing`.

    `watts` is what the user says the machine draws: joules that no meter counts are then estimated,
    and labelled so. `root` is the folder of the RAPL zones; `max_watts`, of one zone, says how soon
    its counter can wrap. Windows may overlap, also in several threads.

    Raises:
        UsageError: watts that are no power.
    """

    def __init__(
        self,
        *,
        watts: float | None = None,
        root: Path = POWERCAP,
        max_watts: float = MAX_ZONE_WATTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for stated in (watts, max_watts):
            if stated is not None and not 0 < stated <= MAX_STATED_WATTS:
                raise UsageError(f"{stated} W is no power", hint="state watts, such as 65")
        self.watts = watts
        self.idle_watts: float | None = None
        self.sources: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._clock = clock
        self._readers: list[Callable[[], _Reading]] = []
        try:
            zones = find_zones(root)
        except Unavailable as error:
            self.missing += (f"rapl unavailable: {error}",)
        else:
            self.sources += ("rapl",)
            self._readers.append(lambda: RaplWindow(zones, max_watts, clock))
        try:
            zeus = _Zeus(with_cpus=not self.sources)
        except Unavailable as error:
            self.missing += (f"zeus unavailable: {error}",)
        else:
            self.sources += zeus.sources
            self._readers.append(lambda: _ZeusWindow(zeus))

    def describe(self) -> str:
        """Which meters are used, and why not more."""
        if not self.sources:
            return f"no meter: {'; '.join(self.missing)}"
        return "; ".join(["+".join(self.sources), *self.missing])

    def begin(self) -> EnergyWindow:
        """Begin to measure; `with meter.begin() as window:` ends by itself."""
        return EnergyWindow(self)

    def measure_idle(self, seconds: float) -> Energy:
        """Wait, and take what is drawn meanwhile for the idle draw. Nothing else should run then.

        Raises:
            UsageError: no time, or over `limits.MAX_IDLE_SECONDS`.
        """
        if not 0 < seconds <= MAX_IDLE_SECONDS:
            raise UsageError(f"{seconds} s is not within 0 and {MAX_IDLE_SECONDS:.0f}")
        with self.begin() as window:
            time.sleep(seconds)
        energy = window.end()
        measured = energy.joules is not None and not is_estimate(energy.source)
        if measured and energy.joules and energy.seconds and not energy.flags:
            self.idle_watts = energy.joules / energy.seconds
        return energy


class _Reading(Protocol):
    def end(self) -> tuple[float, tuple[str, ...]]:
        """Joules since it was made, and doubts. Raises Unavailable."""


class EnergyWindow:
    """A measurement that runs from now until `end`. Made by `EnergyMeter.begin`."""

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter
        self._energy: Energy | None = None
        self._failed: list[str] = []
        self._readings: list[_Reading] = []
        self._began = meter._clock()
        for begin in meter._readers:
            try:
                self._readings.append(begin())
            except Unavailable as error:
                self._failed.append(str(error))

    def end(self) -> Energy:
        """What was used. Later calls say the same."""
        if self._energy is None:
            self._energy = self._end(self._meter._clock() - self._began)
        return self._energy

    def _end(self, seconds: float) -> Energy:
        meter, joules, flags = self._meter, 0.0, set[str]()
        for reading in self._readings:
            try:
                part, doubts = reading.end()
            except Unavailable as error:
                self._failed.append(str(error))
            else:
                joules += part
                flags |= set(doubts)
        if meter.sources and not self._failed:
            idle = None if meter.idle_watts is None else meter.idle_watts * seconds
            return Energy(
                joules,
                source="+".join(meter.sources),
                reason="; ".join(meter.missing) or None,
                seconds=seconds,
                idle_joules=idle,
                idle_watts=meter.idle_watts,
                flags=tuple(sorted(flags)),
            )
        # What some of the meters say would be too few.
        reason = "; ".join(self._failed) or meter.describe()
        if meter.watts is None:
            return Energy(None, None, reason, seconds)
        estimate = f"estimate: {meter.watts:g} W stated"
        return Energy(meter.watts * seconds, estimate, reason, seconds)

    def __enter__(self) -> EnergyWindow:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Measure:
    """Wall seconds, CPU seconds and joules of the work in a `with` block, for a `Cost`.

    Without a meter joules stay unknown.
    """

    def __init__(self, meter: EnergyMeter | None) -> None:
        self._meter = meter

    def __enter__(self) -> Measure:
        self._window = self._meter.begin() if self._meter is not None else None
        self._cpu = process_cpu_seconds()
        self._watch = Stopwatch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = self._watch.seconds
        before, after = self._cpu, process_cpu_seconds()
        self.cpu_seconds: float | None = None
        if before is not None and after is not None and after >= before:
            self.cpu_seconds = after - before
        self.energy = self._window.end() if self._window is not None else None

    def into(self, cost: Cost) -> Cost:
        """`cost` with what was measured."""
        energy = self.energy
        return replace(
            cost,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            joules=None if energy is None else energy.joules,
            joules_from=None if energy is None else energy.label,
        )


# --- zeus ---------------------------------------------------------------------------------------


class _Zeus:
    """The monitor of the package `zeus`, and what it sees here.

    Of CPUs it is asked only where its daemon reads them. Its own reading of RAPL files learns of a
    wrap from a process that looks once a second: until then a window that ends has negative
    joules, and one that begins will have a whole range too many.

    Raises:
        Unavailable: the package is not there, or sees nothing.
    """

    def __init__(self, *, with_cpus: bool) -> None:
        try:
            from zeus.monitor import ZeusMonitor
        except ModuleNotFoundError as error:
            hint = "pip install 'kvgraft[energy]' to count GPUs"
            raise Unavailable(f"no package {error.name} ({hint})") from error
        except Exception as error:  # of the drivers' packages, which it imports
            raise Unavailable(_line(error)) from error
        try:
            self.monitor = ZeusMonitor(cpu_indices=_daemon_cpus() if with_cpus else [])
            self.sources = self._sources()
        except Exception as error:  # each driver refuses in its own way
            raise Unavailable(_line(error)) from error
        if not self.sources:
            raise Unavailable("it sees no GPU and no system on a chip")

    def _sources(self) -> tuple[str, ...]:
        names = []
        if self.monitor.gpu_indices:
            names.append(_GPUS.get(type(self.monitor.gpus).__name__, "gpu"))
        if self.monitor.cpu_indices:
            names.append("zeusd")
        if self.monitor.soc_is_present:
            self.chip_fields = _CHIPS[type(self.monitor.soc).__name__]
            names.append(type(self.monitor.soc).__name__.lower())
        return tuple(names)


def _daemon_cpus() -> list[int]:
    """Indices of the CPUs that zeus's daemon reads."""
    from zeus.device import get_cpus

    try:
        cpus = get_cpus().cpus
    except Exception:  # none, or no permission and no daemon
        return []
    return [n for n, cpu in enumerate(cpus) if type(cpu).__name__ == "ZeusdRAPLCPU"]


class _ZeusWindow:
    """Joules of everything that zeus sees, since this was made.

    The device is not waited for: engines have handed their logits to the CPU when a window ends.
    """

    def __init__(self, zeus: _Zeus) -> None:
        self._zeus = zeus
        self._key = f"kvgraft-{next(_KEYS)}"
        try:
            zeus.monitor.begin_window(self._key, sync_execution=False)
        except Exception as error:
            raise Unavailable(_line(error)) from error

    def end(self) -> tuple[float, tuple[str, ...]]:
        """As `RaplWindow.end`; no doubts.

        Raises:
            Unavailable: a counter could not be read, makes no sense or has not moved yet.
        """
        monitor = self._zeus.monitor
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about windows that are too short: see below
                found = monitor.end_window(self._key, sync_execution=False)
            gpus = list(found.gpu_energy.values())
            cpus = list((found.cpu_energy or {}).values())
            whole = (len(gpus), len(cpus)) == (len(monitor.gpu_indices), len(monitor.cpu_indices))
            parts = [*gpus, *cpus, *(found.dram_energy or {}).values()]
            if monitor.soc_is_present:
                chip = [getattr(found.soc_energy, name) for name in self._zeus.chip_fields]
                parts += [value / 1000 for value in chip if value is not None]
        except Exception as error:
            raise Unavailable(_line(error)) from error
        if not whole:
            raise Unavailable("not every counter that zeus reads has answered")
        if not all(0 <= part < math.inf for part in parts):  # NaN neither
            raise Unavailable("a counter that zeus reads makes no sense: did it begin anew?")
        if not sum(parts) or not all(gpus):
            raise Unavailable("the window was shorter than the counters take to move")
        return sum(parts), ()


def _line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
