"""Runs one program and lets nothing of it survive. Run as a file, standard library only.

A guard stands between us and the program because only a process that adopts orphans (a subreaper,
on Linux) can find a grandchild whose parent has gone and that has left the process group. It
writes what happened, as JSON, to the descriptor it is given, and ends last.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.005
KILL_SECONDS = 3.0  # for killed processes to be gone

libc = ctypes.CDLL(None) if sys.platform == "linux" else None
stopped = False


def main() -> None:
    job = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, _stop)
    _adopt_orphans()
    if os.getppid() != job["parent"]:
        return  # it went before we were tied to it
    report = _run(job["argv"], time.monotonic() + job["seconds"])
    os.write(job["report_fd"], json.dumps(report).encode("ascii"))


def _run(argv: list[str], deadline: float) -> dict[str, Any]:
    session = None
    try:
        child = subprocess.Popen(argv, start_new_session=True, preexec_fn=_end_with_parent)
        session = child.pid
        while (status := child.poll()) is None:
            if stopped or time.monotonic() >= deadline:
                return {"late": True}
            time.sleep(POLL_SECONDS)
        return {"status": status}
    except OSError as error:
        return {"failure": f"{type(error).__name__}: {error}"[:200]}
    finally:
        _kill_all(session)


def _stop(signum: int, frame: object) -> None:
    global stopped
    stopped = True


def _adopt_orphans() -> None:
    """Makes orphaned descendants our children, and our parent's end our signal to stop."""
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end_with_parent() -> None:
    """Run in the program's process: should the guard be killed, the program goes with it."""
    if libc is not None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kill_all(session: int | None) -> None:
    if session is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        # A killed child's own children become ours: again, until there are none.
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(POLL_SECONDS)


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state ppid": the name may hold anything, parentheses too.
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    main()
