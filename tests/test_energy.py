"""Joules, or why there are none: the meters of a machine, told by fakes, and those of this one."""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvgraft import energy
from kvgraft.energy import EnergyMeter, Measure
from kvgraft.errors import UsageError
from kvgraft.limits import MAX_IDLE_SECONDS, MAX_STATED_WATTS
from kvgraft.meter import Cost, is_estimate
from kvgraft.rapl import MAY_HAVE_WRAPPED
from powercap import Powercap, hide_zeus


@dataclass
class Clock:
    """Seconds that pass when the test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path / "powercap")


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    return tmp_path / "absent"


@pytest.fixture(autouse=True)
def no_zeus(monkeypatch) -> None:
    hide_zeus(monkeypatch)


# --- a stand-in for the package zeus ----------------------------------------------------------
# Names, signatures and units are those of zeus 0.16.0.


@dataclass
class Machine:
    """What the stand-in sees, and the joules (chips: millijoules) it counts per window."""

    gpus: list[float] = field(default_factory=list)
    vendor: str = "NVIDIAGPUs"
    daemon_cpus: list[float] = field(default_factory=list)
    dram: list[float] = field(default_factory=list)
    chip: Any = None
    refuses: str = ""  # "open", "begin" or "end"
    silent_gpus: int = 0
    windows: list[str] = field(default_factory=list)
    most_windows: int = 0
    asked_cpus: Any = "nothing"


@dataclass
class Measurement:
    time: float
    gpu_energy: dict[int, float]
    cpu_energy: dict[int, float] | None = None
    dram_energy: dict[int, float] | None = None
    soc_energy: Any = None


class NVMLError(Exception):
    pass


def zeus_modules(machine: Machine) -> dict[str, ModuleType]:
    class ZeusMonitor:
        def __init__(
            self,
            gpu_indices: list[int] | None = None,
            cpu_indices: list[int] | None = None,
            approx_instant_energy: bool = False,
            log_file: str | None = None,
            sync_execution_with: str = "torch",
        ) -> None:
            if machine.refuses == "open":
                raise NVMLError("the driver is gone\nand says more")
            machine.asked_cpus = cpu_indices
            self.gpus = type(machine.vendor, (), {})()
            self.gpu_indices = list(range(len(machine.gpus)))
            self.cpu_indices = cpu_indices if cpu_indices is not None else [0]
            self.soc_is_present = machine.chip is not None
            self.soc = type(type(machine.chip).__name__, (), {})()

        def begin_window(
            self, key: str, sync_execution: bool = True, restart: bool = False
        ) -> None:
            # Waiting would make CUDA contexts on every device of the machine.
            assert not sync_execution
            if machine.refuses == "begin":
                raise NVMLError("begin")
            assert key not in machine.windows
            machine.windows.append(key)
            machine.most_windows = max(machine.most_windows, len(machine.windows))

        def end_window(
            self, key: str, sync_execution: bool = True, cancel: bool = False
        ) -> Measurement:
            assert not sync_execution
            machine.windows.remove(key)
            if machine.refuses == "end":
                raise NVMLError()
            if not all(machine.gpus):
                warnings.warn("the window was too short", stacklevel=1)
            seen = self.gpu_indices[: len(self.gpu_indices) - machine.silent_gpus]
            return Measurement(
                time=1.0,
                gpu_energy={index: machine.gpus[index] for index in seen},
                cpu_energy={i: machine.daemon_cpus[i] for i in self.cpu_indices} or None,
                dram_energy=dict(enumerate(machine.dram)) or None,
                soc_energy=machine.chip,
            )

    def get_cpus() -> SimpleNamespace:
        if not machine.daemon_cpus:
            raise NVMLError("RAPL unavailable")
        by_daemon = [type("ZeusdRAPLCPU", (), {})() for _ in machine.daemon_cpus]
        return SimpleNamespace(cpus=by_daemon)

    zeus, monitor, device = (ModuleType(name) for name in ("zeus", "zeus.monitor", "zeus.device"))
    monitor.ZeusMonitor = ZeusMonitor  # type: ignore[attr-defined]
    device.get_cpus = get_cpus  # type: ignore[attr-defined]
    return {"zeus": zeus, "zeus.monitor": monitor, "zeus.device": device}


@pytest.fixture
def machine(monkeypatch, no_zeus) -> Machine:
    made = Machine()
    for name, module in zeus_modules(made).items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@dataclass
class AppleSilicon:
    """In millijoules; the cores are parts of the total."""

    cpu_total_mj: int | None = 4_000
    efficiency_cores_mj: tuple[int, ...] = (1_000, 3_000)
    dram_mj: int | None = 500
    gpu_mj: int | None = 1_500
    gpu_sram_mj: int | None = None
    ane_mj: int | None = 0


@dataclass
class Jetson:
    cpu_energy_mj: float | None = 1_000.0
    gpu_energy_mj: float | None = 2_000.0
    total_energy_mj: float | None = 4_000.0


def work(meter: EnergyMeter, change: Callable[[], object] = lambda: None) -> energy.Energy:
    with meter.begin() as window:
        change()
    return window.end()


# --- this machine -----------------------------------------------------------------------------


def test_this_machine_says_what_it_has(monkeypatch) -> None:
    monkeypatch.undo()  # with the package, if it is installed
    meter = EnergyMeter()
    with meter.begin() as window:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
    found = window.end()
    assert found.seconds >= 0.2
    if meter.sources:
        assert found.joules is None or found.joules > 0
    else:
        assert (found.joules, found.source) == (None, None)
        assert found.reason == meter.describe()
        assert found.reason.startswith("no meter: rapl unavailable: ")
        assert "zeus unavailable: " in found.reason


# --- nothing to read --------------------------------------------------------------------------


def test_without_a_meter_joules_are_unknown_with_the_reason(nowhere: Path, clock: Clock) -> None:
    meter = EnergyMeter(root=nowhere, clock=clock)
    threads = threading.active_count()
    with meter.begin() as window:
        clock.now += 3.0
        assert threading.active_count() == threads
    assert window.end() == energy.Energy(
        None,
        None,
        f"no meter: rapl unavailable: {nowhere}: No such file or directory; zeus unavailable: "
        "no package zeus.monitor (pip install 'kvgraft[energy]' to count GPUs)",
        seconds=3.0,
    )
    assert (meter.sources, len(meter.missing)) == ((), 2)


def test_stated_watts_give_an_estimate_that_is_labelled(nowhere: Path, clock: Clock) -> None:
    meter = EnergyMeter(root=nowhere, watts=65, clock=clock)
    found = work(meter, lambda: setattr(clock, "now", clock.now + 2.0))
    assert (found.joules, found.source) == (130.0, "estimate: 65 W stated")
    assert is_estimate(found.label)
    assert (found.reason or "").startswith("no meter: ")
    assert (found.idle_joules, found.idle_watts, found.flags) == (None, None, ())
    assert work(EnergyMeter(root=nowhere, watts=7.5)).source == "estimate: 7.5 W stated"


@pytest.mark.parametrize("watts", [0, -1.0, math.nan, math.inf, MAX_STATED_WATTS * 2])
def test_watts_that_are_no_power_are_refused(nowhere: Path, watts: float) -> None:
    for options in ({"watts": watts}, {"max_watts": watts}):
        with pytest.raises(UsageError, match="is no power"):
            EnergyMeter(root=nowhere, **options)


def test_idle_draw_without_a_meter_stays_unknown(nowhere: Path) -> None:
    meter = EnergyMeter(root=nowhere, watts=65)
    assert is_estimate(meter.measure_idle(0.001).source)
    assert meter.idle_watts is None


# --- RAPL -------------------------------------------------------------------------------------


def test_rapl_needs_no_package(powercap: Powercap, clock: Clock) -> None:
    meter = EnergyMeter(root=powercap.root, watts=65, clock=clock)
    assert meter.sources == ("rapl",)
    found = work(meter, lambda: powercap.write(2_500_000))
    # Measured, so the stated watts do not count.
    assert (found.joules, found.source, found.label) == (2.5, "rapl", "rapl")
    assert (found.reason or "").startswith("zeus unavailable: no package zeus")
    assert meter.describe() == f"rapl; {found.reason}"


def test_doubts_are_in_the_label(powercap: Powercap, clock: Clock, monkeypatch) -> None:
    monkeypatch.setattr("kvgraft.rapl._poll", lambda counters, stop, interval: None)
    meter = EnergyMeter(root=powercap.root, clock=clock)
    with meter.begin() as window:
        powercap.write(1_000_000)
        clock.now += 60.0
    found = window.end()
    assert found.flags == (MAY_HAVE_WRAPPED,)
    assert found.label == "rapl (may have wrapped more than once)"
    with Measure(meter) as measured:
        powercap.write(2_000_000)
        clock.now += 60.0
    assert measured.into(Cost()).joules_from == found.label


def test_a_counter_that_fails_meanwhile_leaves_no_joules(powercap: Powercap, clock: Clock) -> None:
    for watts, joules in ((None, None), (65.0, 0.0)):
        meter = EnergyMeter(root=powercap.root, watts=watts, clock=clock)
        found = work(meter, lambda: powercap.write("?"))
        assert found.joules == joules
        assert is_estimate(found.source) == (watts is not None)
        assert "holds no number" in (found.reason or "")
        powercap.write(0)


def test_a_counter_that_cannot_be_read_at_the_beginning(powercap: Powercap) -> None:
    meter = EnergyMeter(root=powercap.root)
    powercap.write("?")
    assert work(meter, lambda: powercap.write(5)).joules is None


def test_windows_may_overlap(powercap: Powercap) -> None:
    meter = EnergyMeter(root=powercap.root)
    outer = meter.begin()
    powercap.write(1_000_000)
    inner = meter.begin()
    powercap.write(3_000_000)
    assert outer.end().joules == 3.0
    powercap.write(6_000_000)
    assert inner.end().joules == 5.0
    assert outer.end().joules == 3.0  # it ended then


def test_the_idle_share_is_told_apart_and_stays_in(
    powercap: Powercap, clock: Clock, monkeypatch
) -> None:
    meter = EnergyMeter(root=powercap.root, clock=clock)

    def idle(seconds: float) -> None:
        clock.now += seconds
        powercap.write(int(10_000_000 * seconds))

    monkeypatch.setattr(energy.time, "sleep", idle)
    assert work(meter, lambda: idle(0.5)).idle_joules is None  # it was not measured yet
    powercap.write(0)
    assert meter.measure_idle(2.0).joules == 20.0
    assert meter.idle_watts == 10.0
    powercap.write(0)
    with meter.begin() as window:
        clock.now += 3.0
        powercap.write(100_000_000)
    found = window.end()
    assert (found.joules, found.idle_joules, found.idle_watts) == (100.0, 30.0, 10.0)


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf, MAX_IDLE_SECONDS * 2])
def test_an_idle_time_that_is_none_is_refused(powercap: Powercap, seconds: float) -> None:
    with pytest.raises(UsageError):
        EnergyMeter(root=powercap.root).measure_idle(seconds)


# --- zeus -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vendor", "name"), [("NVIDIAGPUs", "nvml"), ("AMDGPUs", "amdsmi"), ("OtherGPUs", "gpu")]
)
def test_all_gpus_are_counted(machine: Machine, nowhere: Path, vendor: str, name: str) -> None:
    machine.gpus, machine.vendor = [3.0, 4.5], vendor
    meter = EnergyMeter(root=nowhere, watts=65)
    found = work(meter)
    assert (found.joules, found.source) == (7.5, name)
    assert (found.reason or "").startswith("rapl unavailable: ")  # so no CPU is in it
    assert machine.windows == []


def test_gpus_and_cpus_together(machine: Machine, powercap: Powercap) -> None:
    machine.gpus, machine.daemon_cpus = [3.0], [100.0]
    meter = EnergyMeter(root=powercap.root)
    found = work(meter, lambda: powercap.write(2_000_000))
    assert (found.joules, found.source, found.reason) == (5.0, "rapl+nvml", None)
    assert machine.asked_cpus == []  # those were counted already
    assert meter.describe() == "rapl+nvml"


def test_cpus_that_only_a_daemon_may_read(machine: Machine, nowhere: Path) -> None:
    machine.daemon_cpus, machine.dram = [6.0, 7.0], [0.5]
    found = work(EnergyMeter(root=nowhere))
    assert (found.joules, found.source) == (13.5, "zeusd")
    assert machine.asked_cpus == [0, 1]


def test_rapl_files_are_never_left_to_zeus(machine: Machine, nowhere: Path) -> None:
    machine.gpus = [1.0]
    EnergyMeter(root=nowhere)
    assert machine.asked_cpus == []


@pytest.mark.parametrize(
    ("chip", "joules"),
    [(AppleSilicon(), 6.0), (Jetson(), 4.0), (Jetson(total_energy_mj=None), None)],
)
def test_a_system_on_a_chip_is_counted_once(machine, nowhere: Path, chip, joules) -> None:
    machine.chip = chip
    found = work(EnergyMeter(root=nowhere))
    assert found.joules == joules
    assert found.source == (type(chip).__name__.lower() if joules else None)


def test_a_chip_that_nobody_here_knows_is_not_guessed_at(machine: Machine, nowhere: Path) -> None:
    machine.chip, machine.gpus = Measurement(0.0, {}), [1.0]
    assert work(EnergyMeter(root=nowhere)).joules is None


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ([2.0, 0.0], "shorter than the counters take to move"),
        ([5.0, -1.0], "makes no sense"),
        ([1.0, math.nan], "makes no sense"),
        ([1.0, math.inf], "makes no sense"),
    ],
)
def test_what_a_gpu_cannot_have_used_is_unknown(machine, nowhere, recwarn, gpus, reason) -> None:
    machine.gpus = gpus
    found = work(EnergyMeter(root=nowhere))
    assert (found.joules, found.source) == (None, None)
    assert reason in (found.reason or "")
    assert list(recwarn) == []  # it is said once, in the reason


def test_a_gpu_that_does_not_answer_leaves_no_joules(machine: Machine, nowhere: Path) -> None:
    machine.gpus, machine.silent_gpus = [1.0, 2.0], 1
    found = work(EnergyMeter(root=nowhere))
    assert (found.joules, found.reason) == (
        None,
        "not every counter that zeus reads has answered",
    )


@pytest.mark.parametrize(
    ("refuses", "reason"),
    [
        ("open", "NVMLError: the driver is gone"),
        ("begin", "NVMLError: begin"),
        ("end", "NVMLError"),
    ],
)
def test_a_driver_that_refuses_is_a_reason(machine, powercap, refuses: str, reason: str) -> None:
    machine.gpus, machine.refuses = [1.0], refuses
    meter = EnergyMeter(root=powercap.root)
    found = work(meter, lambda: powercap.write(1_000_000))
    assert (found.reason or "").endswith(reason)
    # Refused from the start, it is not among the meters; later, the others' joules are too few.
    assert (found.joules, found.source) == ((1.0, "rapl") if refuses == "open" else (None, None))
    assert meter.sources == (("rapl",) if refuses == "open" else ("rapl", "nvml"))


def test_a_machine_without_devices_has_no_zeus_meter(machine: Machine, nowhere: Path) -> None:
    found = work(EnergyMeter(root=nowhere))
    assert found.joules is None
    assert "zeus unavailable: it sees no GPU and no system on a chip" in (found.reason or "")


def test_another_package_of_that_name_is_not_taken_for_it(nowhere: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", ModuleType("zeus"))
    monkeypatch.delitem(sys.modules, "zeus.monitor")
    reason = work(EnergyMeter(root=nowhere)).reason or ""
    assert "zeus unavailable: no package zeus.monitor" in reason


def test_overlapping_windows_of_devices(machine: Machine, nowhere: Path) -> None:
    machine.gpus = [2.0]
    meter = EnergyMeter(root=nowhere)
    with meter.begin() as outer, meter.begin() as inner:
        assert len(machine.windows) == 2
    assert (outer.end().joules, inner.end().joules, machine.windows) == (2.0, 2.0, [])


# --- into a cost ------------------------------------------------------------------------------


def test_what_was_measured_goes_into_the_cost(powercap: Powercap) -> None:
    with Measure(EnergyMeter(root=powercap.root)) as measured:
        powercap.write(4_000_000)
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
    cost = measured.into(Cost(attempts=2, decode_tokens=9, model_flops=5))
    assert (cost.attempts, cost.decode_tokens, cost.model_flops) == (2, 9, 5)
    assert (cost.joules, cost.joules_from) == (4.0, "rapl")
    assert cost.seconds > 0
    assert cost.cpu_seconds is not None
    assert cost.cpu_seconds >= 0.02


def test_without_a_meter_the_cost_has_no_joules() -> None:
    with Measure(None) as measured:
        pass
    cost = measured.into(Cost.nothing())
    assert (cost.joules, cost.joules_from) == (None, None)
    assert cost.seconds > 0


def test_cpu_seconds_that_ran_backwards_are_unknown(monkeypatch) -> None:
    for readings in ([2.0, 1.0], [None, 1.0], [1.0, None]):
        told = iter(readings)
        monkeypatch.setattr(energy, "process_cpu_seconds", lambda told=told: next(told))
        with Measure(None) as measured:
            pass
        assert measured.into(Cost()).cpu_seconds is None


def test_work_that_fails_ends_its_window(powercap: Powercap) -> None:
    def fail() -> None:
        assert [thread.name for thread in threading.enumerate()].count("rapl") == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Measure(EnergyMeter(root=powercap.root)):
        fail()
    assert "rapl" not in [thread.name for thread in threading.enumerate()]
