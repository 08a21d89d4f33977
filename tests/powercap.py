"""The energy meters of a machine that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

RANGE = 4_294_967_295  # microjoules at which a 32-bit counter begins anew


def hide_zeus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package was not installed, whether or not it is."""
    for name in ("zeus", "zeus.monitor", "zeus.device"):
        monkeypatch.setitem(sys.modules, name, None)


class Powercap:
    """A folder as Linux shows RAPL counters in. `write` moves one of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "intel-rapl").mkdir()  # the control type itself is no zone
        self.add("intel-rapl:0", "package-0", 0)

    def add(self, zone: str, name: str, microjoules: int) -> Path:
        folder = self.root / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
        self.write(microjoules, zone)
        return folder

    def write(self, microjoules: object, zone: str = "intel-rapl:0") -> None:
        (self.root / zone / "energy_uj").write_text(f"{microjoules}\n")
