"""RAPL counters: wraps, doubts, what is counted, and why there is no reading (cases, row 25)."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvgraft import rapl
from kvgraft.limits import MAX_ZONE_WATTS, MIN_POLL_SECONDS
from kvgraft.rapl import (
    MAY_HAVE_WRAPPED,
    OVER_POWER,
    RaplWindow,
    Unavailable,
    Zone,
    find_zones,
)
from powercap import RANGE, Powercap

WRAP_SECONDS = RANGE / 1e6 / MAX_ZONE_WATTS  # 4.29 s


@dataclass
class Clock:
    """Seconds that pass when the test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path / "powercap")


@pytest.fixture
def no_polling(monkeypatch) -> None:
    """Readings at the beginning and the end alone, as if the thread never came to run."""
    monkeypatch.setattr(rapl, "_poll", lambda counters, stop, interval: None)


def used(
    powercap: Powercap, before: object, after: object, seconds: float = 1.0
) -> tuple[float, tuple[str, ...]]:
    clock = Clock()
    powercap.write(before)
    window = RaplWindow(find_zones(powercap.root), clock=clock)
    powercap.write(after)
    clock.now += seconds
    return window.end()


# --- wraps ------------------------------------------------------------------------------------


def test_a_counter_that_began_anew(powercap: Powercap, no_polling: None) -> None:
    joules, flags = used(powercap, 4_000_000_000, 10_000)
    assert joules == pytest.approx(294.98, abs=0.01)
    assert flags == ()


@pytest.mark.parametrize(
    ("before", "after", "microjoules"),
    [(0, 1, 1), (5, 5_000_000, 4_999_995), (RANGE, 1, 1), (RANGE - 1, 1, 2), (7, 6, RANGE - 1)],
)
def test_joules_are_what_lies_between(powercap, no_polling, before, after, microjoules) -> None:
    joules, _ = used(powercap, before, after, seconds=WRAP_SECONDS * 0.999)
    assert joules == pytest.approx(microjoules / 1e6, abs=1e-9)


def test_a_gap_that_can_hide_a_wrap_is_flagged(powercap: Powercap, no_polling: None) -> None:
    # 1000 W fill the range in 4.29 s: until then at most one wrap lies between two readings.
    for seconds, flags in ((4.2, ()), (4.3, (MAY_HAVE_WRAPPED,)), (900.0, (MAY_HAVE_WRAPPED,))):
        assert used(powercap, 1_000_000, 2_000_000, seconds) == (1.0, flags)


def test_the_stated_power_decides_what_a_gap_can_hide(powercap: Powercap, no_polling: None) -> None:
    for watts, flags in ((100.0, ()), (500.0, (MAY_HAVE_WRAPPED,))):
        clock = Clock()
        powercap.write(0)
        window = RaplWindow(find_zones(powercap.root), watts, clock)
        powercap.write(1_000_000)
        clock.now += 10.0
        assert window.end() == (1.0, flags)


def test_a_counter_that_was_reset_is_flagged(powercap: Powercap, no_polling: None) -> None:
    # It looks like a wrap, but then the machine would have drawn 4,000 W.
    joules, flags = used(powercap, 300_000_000, 10_000, seconds=1.0)
    assert joules == pytest.approx((RANGE - 300_000_000 + 10_000) / 1e6)
    assert flags == (OVER_POWER,)


@dataclass(frozen=True)
class Told(Zone):
    """A zone whose readings are given; `done` is set when the last of them was taken."""

    readings: Iterator[int | Unavailable] = field(default_factory=lambda: iter(()))
    done: threading.Event = field(default_factory=threading.Event)

    def read(self) -> int:
        reading = next(self.readings, None)
        if reading is None:
            self.done.set()
            return 500_000
        if isinstance(reading, Unavailable):
            raise reading
        return reading


def told(tmp_path: Path, *readings: int | Unavailable) -> Told:
    return Told(tmp_path, 1_000_000, iter(readings))


def test_wraps_of_a_long_window_are_all_counted(tmp_path: Path) -> None:
    zone = told(tmp_path, 900_000, 400_000, 100_000, 700_000, 200_000)
    clock = Clock()
    window = RaplWindow([zone], max_watts=1_000_000, clock=clock)  # polled as often as may be
    assert zone.done.wait(60)
    joules, flags = window.end()
    assert joules == pytest.approx(0.5 + 0.7 + 0.6 + 0.5 + 0.3)  # and none after 500,000
    assert flags == ()


def test_a_reading_that_failed_in_between_is_made_up_for(tmp_path: Path) -> None:
    zone = told(tmp_path, 0, 100_000, Unavailable("busy"), Unavailable("busy"), 300_000)
    window = RaplWindow([zone], max_watts=1_000_000, clock=Clock())
    assert zone.done.wait(60)
    assert window.end() == (0.5, ())


# --- the thread -------------------------------------------------------------------------------


def rapl_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rapl"]


def test_counters_are_read_twice_before_any_of_them_can_wrap(
    powercap: Powercap, monkeypatch
) -> None:
    seen = []
    monkeypatch.setattr(rapl, "_poll", lambda counters, stop, interval: seen.append(interval))
    faster = powercap.add("intel-rapl:0:0", "dram", 0)
    (faster / "max_energy_range_uj").write_text(str(RANGE // 4))
    for watts in (MAX_ZONE_WATTS, 10.0):
        RaplWindow(find_zones(powercap.root), watts)
        assert 0 < seen[-1] < RANGE / 4 / 1e6 / watts / 2
    RaplWindow(find_zones(powercap.root), 1e6)
    assert seen[-1] == MIN_POLL_SECONDS


def test_the_thread_ends_with_the_window(powercap: Powercap) -> None:
    assert rapl_threads() == []
    window = RaplWindow(find_zones(powercap.root))
    (thread,) = rapl_threads()
    assert thread.daemon
    powercap.write(1)
    window.end()
    assert not thread.is_alive()


def test_the_thread_ends_with_a_window_that_nobody_ended(powercap: Powercap) -> None:
    window = RaplWindow(find_zones(powercap.root))
    (thread,) = rapl_threads()
    del window
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


# --- what is counted --------------------------------------------------------------------------


def test_packages_and_memory_are_counted_and_nothing_twice(powercap: Powercap) -> None:
    for zone, name in {
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "uncore",
        "intel-rapl:0:2": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }.items():
        powercap.add(zone, name, 0)
    zones = find_zones(powercap.root)
    assert [zone.folder.name for zone in zones] == [
        *("intel-rapl:0", "intel-rapl:0:2", "intel-rapl:1"),
    ]
    window = RaplWindow(zones)
    for folder in powercap.root.glob("intel-rapl*:*"):
        powercap.write(1_000_000 if folder in {zone.folder for zone in zones} else 7, folder.name)
    assert window.end()[0] == 3.0


def test_memory_that_does_not_count_takes_nothing_away(powercap: Powercap) -> None:
    powercap.add("intel-rapl:0:0", "dram", 0)
    assert used(powercap, 0, 3_000_000)[0] == 3.0


# --- no reading -------------------------------------------------------------------------------


def test_a_window_that_no_counter_saw_is_unknown_and_not_0(powercap: Powercap) -> None:
    with pytest.raises(Unavailable, match="shorter than the counters take to move"):
        used(powercap, 5, 5)


def no_range(powercap: Powercap) -> None:
    (powercap.root / "intel-rapl:0" / "max_energy_range_uj").unlink()


def written(name: str, text: str) -> Callable[[Powercap], None]:
    def change(powercap: Powercap) -> None:
        (powercap.root / "intel-rapl:0" / name).write_text(text)

    return change


def second_package_unreadable(powercap: Powercap) -> None:
    (powercap.add("intel-rapl:1", "package-1", 0) / "energy_uj").unlink()


def only_platform(powercap: Powercap) -> None:
    (powercap.root / "intel-rapl:0" / "name").write_text("psys")


def only_memory(powercap: Powercap) -> None:
    (powercap.root / "intel-rapl:0" / "name").write_text("dram")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_range, "max_energy_range_uj: No such file"),
        (written("max_energy_range_uj", "0"), "a range of 0"),
        (written("max_energy_range_uj", "much"), "max_energy_range_uj holds no number"),
        (written("max_energy_range_uj", ""), "max_energy_range_uj holds no number"),
        (written("energy_uj", "-5"), "energy_uj holds no number"),
        (written("energy_uj", "9" * 5000), "energy_uj holds no number"),
        (written("energy_uj", "\u0663"), "energy_uj holds no number"),
        (written("energy_uj", str(RANGE + 1)), "past its range"),
        (second_package_unreadable, "energy_uj: No such file"),
        (only_platform, "no CPU package"),
        (only_memory, "no CPU package"),
        (lambda powercap: shutil.rmtree(powercap.root), "No such file"),
        (lambda powercap: shutil.rmtree(powercap.root / "intel-rapl:0"), "no CPU package"),
    ],
)
def test_what_cannot_be_read_is_unavailable_with_the_reason(powercap, change, reason: str) -> None:
    change(powercap)
    with pytest.raises(Unavailable, match=reason):
        find_zones(powercap.root)


@pytest.mark.parametrize("text", ["?", str(2 * RANGE)])
def test_a_counter_that_stops_to_make_sense_is_unknown(powercap: Powercap, text: str) -> None:
    window = RaplWindow(find_zones(powercap.root))
    powercap.write(text)
    with pytest.raises(Unavailable):
        window.end()
    assert rapl_threads() == []


def test_permission_denied_is_said() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        root = Powercap(folder / "powercap").root
        counter = root / "intel-rapl:0" / "energy_uj"
        counter.chmod(0)  # since 2020 Linux lets nobody but root read it
        if os.geteuid() == 0:
            os.seteuid(65534)
        with pytest.raises(Unavailable, match=f"permission denied: {counter}"):
            find_zones(root)
    finally:
        os.seteuid(os.getuid())
        shutil.rmtree(folder)
