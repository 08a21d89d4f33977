"""The verifier `command`: a program of the user's decides, by its exit status."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from kvgraft import limits
from kvgraft.errors import UsageError
from kvgraft.library.json_numbers import dumps
from kvgraft.library.verify.base import (
    Case,
    Verdict,
    beginning,
    summary,
    version_of,
    without_answer,
)
from kvgraft.library.verify.extract import extract

JOIN_SECONDS = 1.0  # the pipes' other ends are closed by then, unless something survived


class CommandVerifier:
    """Runs `argv` for each trace, without a shell; exit status 0 passes, every other fails.

    The program reads one JSON object from standard input: `problem`, `trace`, `answer` (the
    extracted answer, or null), `expected` (or null) and `checks`. It runs in a session of its own
    for at most `seconds` of wall time; when it ends or is late, it and all its descendants are
    killed, those that left its process group too where the system can tell (Linux). The start of
    what it prints is kept as evidence; what it prints decides nothing.

    Raises:
        UsageError: no program is named, or there is none of that name that can be run.
    """

    name = "command"
    needs: frozenset[str] = frozenset()

    def __init__(self, argv: Sequence[str], *, seconds: float = limits.COMMAND_SECONDS) -> None:
        if not argv or not argv[0]:
            raise UsageError(
                "the verifier 'command' needs a program", hint="command:PROGRAM ARGUMENTS"
            )
        program = shutil.which(argv[0])
        if program is None:
            raise UsageError("no such program, or it cannot be run", where=argv[0])
        # The full path: what runs does not change with a later change of folder.
        self._argv = [str(Path(program).absolute()), *argv[1:]]
        self.spec = f"command:{shlex.join(self._argv)}"
        self.version = version_of("1", *self._argv)
        self._seconds = seconds

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`.

        A program that was late or died by a signal came to no verdict: a fail of grade "none".
        """
        evidence: dict[str, Any] = {"method": "command", "argv": summary(shlex.join(self._argv))}
        if len(trace) > limits.MAX_TRACE_CHARS:
            return without_answer(self, trace, evidence)
        found = extract(trace)
        answer = None if found is None else found.answer
        evidence |= {
            "gold": case.expected and summary(case.expected),
            "given": answer and summary(answer),
        }
        started = time.monotonic()
        try:
            report, outputs = self._run(_request(case, trace, answer))
        except OSError as error:
            report, outputs = {"failure": f"{type(error).__name__}: {error}"}, {}
        evidence |= {"seconds": round(time.monotonic() - started, 6), **outputs}
        status = report.get("status")
        if isinstance(status, int) and status >= 0:
            evidence |= {"exit_status": status}
            return Verdict(status == 0, "proved", answer, self.name, self.version, evidence)
        if isinstance(status, int):
            failure = f"the program died by signal {-status}"
        elif "late" in report:
            failure = f"over the limit of {self._seconds:g} s"
        else:
            failure = str(report.get("failure", "its guard died"))
        evidence |= {"failure": summary(failure)}
        return Verdict(False, "none", answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _run(self, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The guard's report, and the starts of what the program printed."""
        with tempfile.TemporaryFile() as stdin:
            # A file and not a pipe: a program that does not read its input holds nobody up.
            stdin.write(dumps(request).encode("ascii"))
            stdin.seek(0)
            read_fd, write_fd = os.pipe()
            try:
                job = {
                    "argv": self._argv,
                    "seconds": self._seconds,
                    "parent": os.getpid(),
                    "report_fd": write_fd,
                }
                script = Path(__file__).with_name("command_guard.py")
                guard = subprocess.Popen(
                    [sys.executable, "-I", str(script), json.dumps(job)],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                    pass_fds=(write_fd,),
                )
            except BaseException:
                os.close(read_fd)
                raise
            finally:
                os.close(write_fd)
        outputs = [_Drain(pipe) for pipe in (guard.stdout, guard.stderr) if pipe is not None]
        with os.fdopen(read_fd, "rb") as report_pipe:
            try:
                _wait(guard, self._seconds + limits.GUARD_SECONDS)
            except BaseException:
                guard.terminate()  # an interrupt: the guard cleans up on this signal
                _wait(guard, limits.GUARD_SECONDS)
                raise
            report = _object(report_pipe.read(65_536))
        starts = [output.start() for output in outputs]
        return report, dict(zip(("stdout", "stderr"), starts, strict=True))


def _request(case: Case, trace: str, answer: str | None) -> dict[str, Any]:
    return {
        "problem": case.problem,
        "trace": trace,
        "answer": answer,
        "expected": case.expected,
        "checks": dict(case.checks),
    }


class _Drain:
    """Reads a pipe to its end on a thread, so that nobody waits to write; keeps the start."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = b""
        self._size_bytes = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # The thread closes the pipe: where a survivor holds it open, nobody waits for the thread.
        with contextlib.suppress(OSError), self._pipe:
            while block := self._pipe.read(65_536):
                self._kept += block[: limits.MAX_EVIDENCE_TEXT_CHARS - len(self._kept)]
                self._size_bytes += len(block)

    def start(self) -> dict[str, Any]:
        self._thread.join(JOIN_SECONDS)
        text = self._kept.decode("utf-8", "replace")
        start = beginning(text, limits.MAX_EVIDENCE_TEXT_CHARS)
        return {"start": start, "bytes": self._size_bytes}


def _wait(guard: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        guard.wait(seconds)
    except subprocess.TimeoutExpired:
        guard.kill()  # it never takes this long: it was stopped, or the machine is out of breath
        guard.wait()


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
