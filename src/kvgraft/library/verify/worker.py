"""A child process that answers requests one at a time, under limits of time and memory.

The child is kept between requests and replaced after each failure, so a request that hangs, eats
memory or brings the interpreter down costs that request and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgraft import limits
from kvgraft.library.json_numbers import dumps

# Their `__init__` is not run in the child (`worker_main` says why).
BARE_PACKAGES = ("kvgraft", "kvgraft.library")
MAX_REPLY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Reply:
    """What came back: a value, or why there is none. `seconds` of wall time for the request."""

    value: Any
    failure: str | None
    seconds: float


class _NotStarted(Exception):
    """Why a child did not come up."""


class Worker:
    """Runs the handler that `loader` ("module:function") returns in a child process.

    The child starts with the first request, and holds to `memory_bytes` of address space from its
    first import on; a request is given `seconds` of wall time, then the child is killed. Requests
    of several threads take turns. After a fork, each side has a child of its own.
    """

    def __init__(self, loader: str, *, seconds: float, memory_bytes: int) -> None:
        self._loader = loader
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process id that the child was started by
        self._stop_at_exit: weakref.finalize[Any, Any] | None = None
        self._count = 0

    def ask(self, value: Any) -> Reply:
        """The handler's answer to `value` (JSON, as the answer is).

        A time-out, a crash, an exception in the handler and a child that does not start come back
        as `failure`. Raises nothing.
        """
        started = time.monotonic()
        with self._lock:
            try:
                process = self._running()
            except (OSError, _NotStarted) as error:
                return Reply(None, f"no worker: {error}", time.monotonic() - started)
            self._count += 1
            started = time.monotonic()
            reply, late = self._exchange(
                process, {"id": self._count, "value": value}, self._seconds
            )
            seconds = time.monotonic() - started
            if reply is not None and reply.get("id") == self._count and "value" in reply:
                if late:
                    self._stop()
                return Reply(reply["value"], None, seconds)
            status = self._stop()
        if reply is not None:
            return Reply(None, str(reply.get("failure", "an unreadable reply")), seconds)
        if late:
            return Reply(None, f"over the limit of {self._seconds:g} s", seconds)
        return Reply(None, f"the worker died {_ending(status)}", seconds)

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Ends the child. A later request starts another."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            # We are a fork: the child is our parent's, and so is its end of the pipes.
            self._process = None
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._process is None:
            self._start()
        assert self._process is not None
        return self._process

    def _start(self) -> None:
        job = {
            "path": sys.path,
            "packages": {name: list(sys.modules[name].__path__) for name in BARE_PACKAGES},
            "loader": self._loader,
            "seconds": self._seconds,
            "memory_bytes": self._memory_bytes,
        }
        # By path and isolated (-I): neither this folder, which has a `math` of its own, nor the
        # current one is where the child looks for modules before it is told.
        script = Path(__file__).with_name("worker_main.py")
        process = subprocess.Popen(
            [sys.executable, "-I", str(script), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt from the keyboard is the parent's to handle
        )
        self._process, self._owner = process, os.getpid()
        self._stop_at_exit = weakref.finalize(self, _end, process, self._owner)
        reply, late = self._exchange(process, None, limits.WORKER_START_SECONDS)
        if reply is None or "ready" not in reply:
            status = self._stop()
            if reply is not None:
                raise _NotStarted(str(reply.get("failure", "an unreadable reply")))
            raise _NotStarted("it took too long to start" if late else f"it died {_ending(status)}")

    def _exchange(
        self, process: subprocess.Popen[bytes], request: Any, seconds: float
    ) -> tuple[dict[str, Any] | None, bool]:
        """The reply (None: none came), and whether the limit was passed and the child killed."""
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            if request is not None:
                process.stdin.write(dumps(request).encode("ascii") + b"\n")
                process.stdin.flush()
            line = process.stdout.readline(MAX_REPLY_BYTES)
        except OSError:
            line = b""
        except BaseException:
            # Interrupted: the reply to this request must not be read as the next one's.
            self._stop()
            raise
        finally:
            timer.cancel()
            timer.join()  # so that `late` is settled
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        return reply if isinstance(reply, dict) else None, late.is_set()

    def _stop(self) -> int | None:
        """Ends the child and forgets it; its exit status, as `Popen.returncode`."""
        process, self._process = self._process, None
        if process is None or self._stop_at_exit is None:
            return None
        self._stop_at_exit()
        return process.returncode


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return
    # Closed first: a worker that was idle ends by itself, and a killed one is reaped.
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.kill()
    process.wait()


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"by signal {-status}"
    return f"with exit status {status}"
