"""The child side of `worker`: answers one JSON line for each JSON line. Run as a file.

Imports the standard library only, and sets its limits before it imports anything else.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import types
from typing import Any

SELF_KILL_SECONDS = 1.0  # beyond the limit that the parent holds: only for when it is gone


def main() -> None:
    job = json.loads(sys.argv[1])
    sys.path[:] = job["path"]
    _limit_memory(job["memory_bytes"])
    # Replies go where standard output went; what a library prints must not mix with them.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for name, folders in job["packages"].items():
        # Packages without their `__init__`, which may import much that a worker has no use for:
        # under a limit on address space, numpy's thread pools alone could end it.
        package = types.ModuleType(name)
        package.__path__ = folders
        sys.modules[name] = package
    module, _, function = job["loader"].partition(":")
    try:
        handler = getattr(importlib.import_module(module), function)()
    except BaseException as error:
        _send(replies, {"failure": _describe(error)})
        raise
    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        # Not a Python handler: the default action ends the process even inside a C function.
        signal.setitimer(signal.ITIMER_REAL, job["seconds"] + SELF_KILL_SECONDS)
        _send(replies, _answer(handler, json.loads(line)))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(handler: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"id": request["id"], "value": handler(request["value"])}
    except BaseException as error:
        # The parent starts a new worker after a failure: nothing is known of this one's state.
        return {"id": request["id"], "failure": _describe(error)}


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # the message of a sympy error may be as large as what it failed on
        return type(error).__name__


def _send(replies: Any, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _limit_memory(memory_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system; the wall limit remains
        return
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        with contextlib.suppress(ValueError, OSError):  # macOS knows the names and refuses
            _, hard = resource.getrlimit(kind)
            value = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
