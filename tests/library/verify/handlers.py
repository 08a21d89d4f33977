"""Handlers that the tests run in a worker process: good, slow, greedy, crashing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any


def load() -> Any:
    return _handle


def load_nothing() -> Any:
    raise RuntimeError("no such thing")


def load_slowly() -> Any:
    time.sleep(600)


def _handle(request: dict[str, Any]) -> Any:
    what = request["do"]
    if what == "echo":
        print("noise on standard output")
        return request["value"]
    if what == "pid":
        return os.getpid()
    if what == "spin":
        while True:
            pass
    if what == "big power":  # one long call inside C, deaf to Python's signal handlers
        return len(str(9 ** (9**9)))
    if what == "allocate":
        return len(bytearray(request["bytes"]))
    if what == "grow":
        held = []
        while True:
            held.append(bytearray(16 * 1024 * 1024))
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "exit":
        os._exit(7)
    if what == "raise":
        raise ValueError("x" * 10_000)
    if what == "garble":
        os.write(3, b"not json\n")
    if what == "modules":
        return sorted(sys.modules)
    if what == "no child":
        return subprocess.run(["true"], check=False).returncode
    raise KeyError(what)
