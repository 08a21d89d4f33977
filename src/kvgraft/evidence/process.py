"""Running a part of the evidence in a process of its own, and hearing from it.

The child writes a JSON object a line to standard output: `{"stage", "done", "total"}`, `{"say"}`,
or `{"error": {...}}` before it ends with the error's exit status. Anything else is chatter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from kvgraft.errors import EngineError, revive

Progress = Callable[[str, int, int], None]
Say = Callable[[str], None]


def tell(message: dict[str, Any]) -> None:
    """The child's side: one line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tell_progress(stage: str, done: int, total: int) -> None:
    """The child's side of `Progress`."""
    tell({"stage": stage, "done": done, "total": total})


def run_module(
    module: str,
    arguments: Sequence[str],
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> None:
    """Run `python -m module` to its end.

    Raises:
        KvgraftError: the error that the child told, of its own class.
        EngineError: the child died without telling one.
    """
    command = [sys.executable, "-m", module, *arguments]
    # A file: a child that writes much to a pipe nobody reads would wait for ever.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    _hear(line, progress, say)
            except BaseException:
                process.kill()
                raise
        said.seek(0)
        words = said.read().strip()
    if process.returncode:
        raise EngineError(
            f"{module} ended with status {process.returncode}",
            where=" ".join(arguments),
            hint=words.splitlines()[-1] if words else "it said nothing",
        )


def _hear(line: str, progress: Progress, say: Say) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        return
    if not isinstance(message, dict):
        return
    if "error" in message:
        raise revive(message["error"])
    if "say" in message:
        say(message["say"])
    elif message.keys() == {"stage", "done", "total"}:
        progress(message["stage"], message["done"], message["total"])
