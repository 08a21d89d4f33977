"""What a device has used: time with its queue drained, joules and memory.

What cannot be read is None, with the reason beside it, never 0.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

# The driver's energy counter moves every 20 to 100 ms: a window of seconds makes that small.
WINDOW_SECONDS = 2.0
IDLE_SECONDS = 1.0


class Meter:
    """Readings of one device. `no_energy` and `no_memory` say why there are none, or nothing."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.no_memory = "" if device.startswith("cuda") else f"no device memory on {device}"
        self._nvml: Any = None
        self._handle: Any = None
        self.no_energy = self._open()

    def _open(self) -> str:
        if not self.device.startswith("cuda"):
            return f"NVML counts NVIDIA devices only, this run is on {self.device}"
        try:
            import pynvml
        except ImportError:
            return "the package nvidia-ml-py is not installed"
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
            if uuid is None:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except Exception as error:  # each driver refuses in its own way
            return f"NVML gives no energy here: {type(error).__name__}: {error}"
        return ""

    def sync(self) -> None:
        """Wait for what was queued."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Wall time of one run, the device's queue empty before and after."""
        self.sync()
        began = time.perf_counter()
        work()
        self.sync()
        return time.perf_counter() - began

    def median_seconds(self, work: Callable[[], object], runs: int) -> float:
        """Of so many runs."""
        return median(self.seconds(work) for _ in range(runs))

    def joules(self, work: Callable[[], object], window: float = WINDOW_SECONDS) -> dict[str, Any]:
        """Joules of one run of `work`: the whole device's, idle draw included, over as many runs
        as fill the window, divided by their number. The host's own are not in it."""
        if self.no_energy:
            return {"joules": None, "reason": self.no_energy}
        self.sync()
        before, began, runs = self._millijoules(), time.perf_counter(), 0
        while not runs or time.perf_counter() - began < window:
            work()
            self.sync()
            runs += 1
        used = (self._millijoules() - before) / 1e3
        return {"joules": used / runs, "runs": runs, "seconds": time.perf_counter() - began}

    def idle_watts(self) -> float | None:
        """What the device draws doing nothing, its memory full of weights."""
        if self.no_energy:
            return None
        self.sync()
        before, began = self._millijoules(), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        return (self._millijoules() - before) / 1e3 / (time.perf_counter() - began)

    def _millijoules(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def memory(self) -> dict[str, int | None]:
        """Bytes: in live tensors (`uncollected`: with those that only reference cycles hold), held
        by torch's allocator, and in use on the whole device."""
        if self.no_memory:
            return dict.fromkeys(("uncollected", "allocated", "reserved", "used"))
        self.sync()
        uncollected = torch.cuda.memory_allocated(self.device)
        gc.collect()
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "uncollected": uncollected,
            "allocated": torch.cuda.memory_allocated(self.device),
            "reserved": torch.cuda.memory_reserved(self.device),
            "used": total - free,
        }

    def transfer_gb_per_second(self, size_bytes: int) -> dict[str, float | str | None]:
        """Rates between host and device, from pageable and from pinned memory."""
        names = ("upload_pageable", "upload_pinned", "download_pageable")
        if not self.device.startswith("cuda"):
            return {**dict.fromkeys(names), "reason": f"nothing is transferred on {self.device}"}
        host = torch.ones(size_bytes, dtype=torch.uint8)
        pinned = host.pin_memory()
        there = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        works = (
            lambda: there.copy_(host),
            lambda: there.copy_(pinned, non_blocking=True),
            lambda: host.copy_(there),
        )
        rates = [size_bytes / self.median_seconds(work, 3) / 1e9 for work in works]
        return dict(zip(names, rates, strict=True))
