"""Steps of a long measurement, each on disk as soon as it is done, and none begun without room.

A step is *done*, *skipped* (no time or no disk left for it: the reason has the figures) or
*failed*. Of several processes that share a record, one runs at a time.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1024**2


@dataclass(frozen=True)
class Room:
    """What a step may use: the moment to end by (seconds of the system's clock, or None), the
    folder it writes to, and the bytes to leave free there."""

    deadline: float | None
    folder: Path
    reserve_bytes: int

    def left(self) -> float:
        """Seconds; endless without a budget."""
        return float("inf") if self.deadline is None else self.deadline - time.time()

    def refusal(self, estimate_seconds: float, writes_bytes: int) -> str:
        """Why a step that takes and writes so much must not begin; empty if it may."""
        if self.left() < estimate_seconds:
            return (
                f"budget: {max(0.0, self.left()):.0f} s left,"
                f" the step is estimated at {estimate_seconds:.0f} s"
            )
        if not writes_bytes:
            return ""
        free = shutil.disk_usage(self.folder).free
        if free < writes_bytes + self.reserve_bytes:
            return (
                f"disk: {free // MIB} MiB free, the step writes {writes_bytes // MIB} MiB"
                f" and is to leave {self.reserve_bytes // MIB} MiB"
            )
        return ""


class Record:
    """The steps so far, in a file."""

    def __init__(self, path: Path, options: dict[str, Any], *, resume: bool) -> None:
        """
        Raises:
            ValueError: to be resumed, and of other options.
        """
        self._path = path
        self.options = options
        self.steps: dict[str, dict[str, Any]] = {}
        if resume and path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["options"] != options:
                raise ValueError(f"{path} is of other options: {known['options']}, now {options}")
            self.steps = known["steps"]
        self._save()

    def _save(self) -> None:
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(
            json.dumps({"options": self.options, "steps": self.steps}, indent=1) + "\n",
            encoding="utf-8",
        )
        beside.replace(self._path)

    def reload(self) -> None:
        """What another process has added."""
        self.steps = json.loads(self._path.read_text(encoding="utf-8"))["steps"]

    def done(self, name: str) -> bool:
        return self.steps.get(name, {}).get("status") == "done"

    def result(self, name: str) -> dict[str, Any]:
        """What a step found; empty if it is not done."""
        return dict(self.steps[name]["result"]) if self.done(name) else {}

    def reason(self, name: str) -> str:
        """Why it is not done."""
        return str(self.steps.get(name, {}).get("reason", "it was not asked for"))

    def note(self, name: str, status: str, **fields: Any) -> None:
        """Write how a step ended."""
        self.steps[name] = {"status": status, **fields}
        self._save()
        shown = fields.get("reason") or f"{fields.get('seconds', 0.0):.1f} s"
        print(f"{name}: {status}, {shown}", file=sys.stderr, flush=True)

    def forget(self, name: str) -> None:
        self.steps.pop(name, None)
        self._save()

    def run(
        self,
        name: str,
        work: Callable[[], dict[str, Any]],
        room: Room,
        *,
        estimate_seconds: float,
        writes_bytes: int = 0,
    ) -> None:
        """Do a step, unless it is done or there is no room for it."""
        if self.done(name):
            return
        if reason := room.refusal(estimate_seconds, writes_bytes):
            self.note(name, "skipped", reason=reason)
            return
        began = time.perf_counter()
        try:
            result = work()
        except Exception as error:  # the steps after it are still worth their time
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.note(name, "failed", reason=f"{type(error).__name__}: {line}")
            return
        self.note(name, "done", seconds=time.perf_counter() - began, result=result)
