"""The outside of a sandbox: starts the guard, reads what comes out, and says what became of it.

Everything that is read comes through a cap, nothing is waited for beyond the limit of time, and no
reader can hold the program up: what is over a cap is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from kvgraft import limits as caps
from kvgraft.errors import SandboxUnavailable, UsageError

# What has to hold, unless the caller says otherwise; else nothing is run. See `Ran.isolation`.
REQUIRED = frozenset({"files", "network", "tree"})
# Every run's user on the host, where root can give it one: none that a distribution hands out.
FIRST_FRESH_ID = 0x70000000
READ_BYTES = 65_536
REPORT_BYTES = 65_536
TICK_SECONDS = 0.1  # how often the guard is looked at, should its pipe be held by a stranger


@dataclass(frozen=True)
class Limits:
    """What one run may take. Processes are counted with their threads; each of them has at most
    `memory_bytes` of address space, and all together have that much memory, `cpu_seconds` of CPU
    and, in files, `file_bytes`. `output_bytes`: what is kept of standard output and of standard
    error, and the longest value that comes back from a call.

    Raises:
        UsageError: a limit that is not a positive number.
    """

    seconds: float = caps.SANDBOX_SECONDS
    cpu_seconds: float = caps.SANDBOX_CPU_SECONDS
    memory_bytes: int = caps.SANDBOX_MEMORY_BYTES
    file_bytes: int = caps.SANDBOX_FILE_BYTES
    processes: int = caps.SANDBOX_PROCESSES
    output_bytes: int = caps.SANDBOX_OUTPUT_BYTES

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise UsageError(f"the limit `{name}` of a sandbox is {value!r}", where=name)


class Head:
    """The first bytes of a stream, and how many there were."""

    def __init__(self, keep_bytes: int) -> None:
        self.kept = bytearray()
        self.size_bytes = 0
        self.ended = False
        self._keep_bytes = keep_bytes

    def take(self, block: bytes) -> None:
        self.ended = not block
        self.size_bytes += len(block)
        self.kept += block[: self._keep_bytes - len(self.kept)]

    @property
    def full(self) -> bool:
        return len(self.kept) >= self._keep_bytes

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


class Tree:
    """A program's process tree, from its start to its end; `close` ends all of it. With `channel`,
    the program is a module that answers calls (`child`).

    Raises:
        SandboxUnavailable: something of `require` cannot be had here. Nothing was run.
    """

    def __init__(
        self, source: str, stdin: str, limits: Limits, require: Collection[str], *, channel: bool
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable("the sandbox needs Linux", missing=tuple(sorted(require)))
        self.limits = limits
        self.started = time.monotonic()
        self.deadline = self.started + limits.seconds
        self.refused = ""  # why nothing was started
        self._flood_bytes = caps.SANDBOX_FLOOD_FACTOR * limits.output_bytes
        self._over = ""  # "late": the guard was, and had to be ended; or "output"
        self._inputs = [text.encode("utf-8", "surrogatepass") for text in (source, stdin)]
        self._require = frozenset(require)
        self._channel = channel
        self._fresh()
        if len(self._inputs[0]) > caps.MAX_SANDBOX_SOURCE_BYTES:
            self.refused = f"a program of over {caps.MAX_SANDBOX_SOURCE_BYTES:,} bytes"
            return
        try:
            self._begin_somehow()
        except OSError as error:
            self.close()
            self.refused = f"{type(error).__name__}: {error}"
        except BaseException:
            self.close()
            raise

    # --- start --------------------------------------------------------------------------------

    def _fresh(self) -> None:
        self.out, self.err, self.replies = (Head(self.limits.output_bytes) for _ in range(3))
        self._report, self._began = Head(REPORT_BYTES), Head(1)
        self._guard: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._ours = contextlib.ExitStack()  # our ends of all pipes
        self._requests: FileIO | None = None
        self._control: FileIO | None = None
        self._pending = b""

    def _begin_somehow(self) -> None:
        self._begin(namespaces=True)
        without = ""
        if not self.facts.keys() & {"held", "missing"} and not self._over:
            # What failed, failed before the program ran: a namespace, a mount.
            without = self.facts.get("failed", "the guard died")
            self.close()
            self._fresh()
            self._begin(namespaces=False)
        if names := self.facts.get("missing", ""):
            self.close()
            raise SandboxUnavailable(
                f"this system cannot isolate a program in: {names}",
                missing=tuple(names.split(",")),
                where=without,
                hint="allow unprivileged user namespaces, or name what may be missing",
            )
        if "held" not in self.facts and not self._over:
            self.refused = self.facts.get("failed", "the guard died")

    def _begin(self, *, namespaces: bool) -> None:
        """Starts the guard, and returns when the program is about to run, or will not."""
        from kvgraft.sandbox import guard  # what it imports is there on Linux only

        with contextlib.ExitStack() as theirs:
            source, stdin = (theirs.enter_context(_read_only(data)) for data in self._inputs)
            report = self._reads(self._report, theirs)
            self._control, control = self._writes(theirs)
            program_fds = [source.fileno(), self._reads(self._began, theirs)]
            if self._channel:
                self._requests, requests = self._writes(theirs)
                program_fds += [requests, self._reads(self.replies, theirs)]
            words = {
                "package": Path(__file__).parent,
                "parent": os.getpid(),
                "deadline": self.deadline,
                "cpu_seconds": self.limits.cpu_seconds,
                "memory_bytes": int(self.limits.memory_bytes),
                "file_bytes": int(self.limits.file_bytes),
                "processes": int(self.limits.processes),
                "namespaces": int(namespaces),
                "require": ",".join(sorted(self._require)),
                "report": report,
                "control": control,
                "program_fds": ",".join(map(str, program_fds)),
            }
            command = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                guard.LAUNCH,
                str(words["package"]),
                "guard",
            ]
            kept = ("LD_LIBRARY_PATH",)  # some interpreters find their own library by it
            self._guard = subprocess.Popen(
                command + [f"{name}={value}" for name, value in words.items()],
                stdin=stdin,
                stdout=self._reads(self.out, theirs),
                stderr=self._reads(self.err, theirs),
                pass_fds=(report, control, *program_fds),
                env={name: os.environ[name] for name in kept if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
        self.pump(lambda: bool(self.facts.keys() & {"held", "missing", "failed"}))

    def _reads(self, head: Head, theirs: contextlib.ExitStack) -> int:
        """Their end of a pipe of which we read the other into `head`."""
        ours, their = os.pipe()
        theirs.callback(os.close, their)
        file = FileIO(ours, "r")
        self._ours.callback(file.close)
        os.set_blocking(ours, False)
        self._selector.register(file, selectors.EVENT_READ, head)
        return their

    def _writes(self, theirs: contextlib.ExitStack) -> tuple[FileIO, int]:
        their, ours = os.pipe()
        theirs.callback(os.close, their)
        os.set_blocking(ours, False)
        file = FileIO(ours, "w")
        self._ours.callback(file.close)
        return file, their

    # --- while it runs ------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """All of it has ended."""
        return self._guard is None or self._guard.returncode is not None

    @property
    def facts(self) -> dict[str, str]:
        """What the guard has told so far (`guard` names the keys)."""
        lines = self._report.text().split("\n")[:-1]
        return {key: value for key, _, value in (line.partition(" ") for line in lines)}

    def pump(self, until: Callable[[], bool]) -> None:
        """Reads and writes until `until()`, or until all has ended, in time or by our hand."""
        while not until() and not self.gone:
            assert self._guard is not None
            left = self.deadline + caps.SANDBOX_GRACE_SECONDS - time.monotonic()
            if left <= 0:
                self._over = "late"
            elif max(self.out.size_bytes, self.err.size_bytes) > self._flood_bytes:
                self._over = "output"
            if self._over:
                self._end()
                self._exchange(0)
                return
            mapped = "map" in self.facts
            self._exchange(min(left, TICK_SECONDS))
            if not mapped and "map" in self.facts:
                assert self._control is not None
                self._control.write(_map_user(self._guard.pid).encode())
            if self._report.ended:
                self._end()  # it has said all, and is on its way out
                self._exchange(0)
            elif self._guard.poll() is not None:
                self._exchange(0)

    def _exchange(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._write()
            elif (block := key.fileobj.read(READ_BYTES)) is not None:  # type: ignore[union-attr]
                key.data.take(block)
                if not block:
                    self._selector.unregister(key.fileobj)

    def send(self, text: str) -> None:
        """Queues a request; `pump` writes it, as far as it is read."""
        assert self._requests is not None
        if not self._pending:
            self._selector.register(self._requests, selectors.EVENT_WRITE, None)
        self._pending += text.encode("ascii") + b"\n"

    def _write(self) -> None:
        assert self._requests is not None
        try:
            written = self._requests.write(self._pending[:READ_BYTES])
        except BrokenPipeError:
            written = len(self._pending)  # nobody will read it
        self._pending = self._pending[written or 0 :]
        if not self._pending:
            self._selector.unregister(self._requests)

    def end_requests(self) -> None:
        """Tells the program that nothing more is asked."""
        if self._requests is not None and not self._pending:
            self._requests.close()

    # --- the end ------------------------------------------------------------------------------

    def _end(self) -> None:
        """Waits for the guard, which at our hanging up ends everything; or ends it."""
        if self._guard is None or self._guard.poll() is not None:
            return
        assert self._control is not None
        self._control.close()
        try:
            self._guard.wait(0 if self._over == "late" else caps.SANDBOX_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()  # and with it, by their parent-death signals, all of the tree
            self._guard.wait()

    def close(self) -> None:
        """Ends everything that still runs. May be called twice."""
        self._end()
        self._ours.close()
        self._selector.close()

    def outcome(self) -> tuple[str, int | None, str | None]:
        """How it ended, its exit status, and what is to be said against it: see `run.Ran`."""
        facts, limits = self.facts, self.limits
        cpu = f"over the limit of {limits.cpu_seconds:g} CPU seconds"
        over = {
            "late": f"over the limit of {limits.seconds:g} s",
            "cpu": cpu,
            "memory": f"over the limit of {limits.memory_bytes / 2**20:g} MiB of memory",
            "output": f"over the limit of {self._flood_bytes:,} bytes of output",
            "processes": f"over the limit of {limits.processes} processes and threads",
        }
        if self.refused or "failed" in facts:
            return "refused", None, self.refused or facts["failed"]
        if limit := self._over or facts.get("over"):
            return "late" if limit == "late" else "killed", None, over[limit]
        if "status" not in facts:
            return "killed", None, "the sandbox was ended from outside"
        status = int(facts["status"])
        if not self._began.kept:
            # A library or a module that it needs is not seen inside, or it has too little memory.
            return "refused", None, f"the interpreter did not start: {self.err.text()[-200:]}"
        if status >= 0:
            return "ended", status, f"exit status {status}" if status else None
        if status == -9 and (self.cpu_seconds or 0) > 0.9 * limits.cpu_seconds:
            return "killed", status, cpu
        return "killed", status, f"it died by signal {-status}"

    @property
    def cpu_seconds(self) -> float | None:
        text = self.facts.get("cpu")
        return None if text is None else float(text)


def _read_only(data: bytes) -> FileIO:
    """A file without a name that holds `data`: nobody waits for a program to read its input."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return FileIO(f"/proc/self/fd/{file.fileno()}", "r")


def _map_user(pid: int) -> str:
    """Gives the process its user in its new namespace: see `guard._own_namespaces`."""
    from kvgraft.sandbox.guard import INSIDE_ID

    folder, user, group = Path(f"/proc/{pid}"), os.geteuid(), os.getegid()
    fresh = FIRST_FRESH_ID + pid

    def write(users: str, groups: str) -> None:
        (folder / "uid_map").write_text(users)
        (folder / "gid_map").write_text(groups)

    try:
        if user == 0:
            # Ours as well: what is for root alone may be on the way to the interpreter.
            write(f"{INSIDE_ID} {fresh} 1\n0 0 1", f"{INSIDE_ID} {fresh} 1\n0 {group} 1")
            return "fresh"
        (folder / "setgroups").write_text("deny")
        write(f"{INSIDE_ID} {user} 1", f"{INSIDE_ID} {group} 1")
        return "own"
    except OSError as error:
        return f"no: {error.strerror}"[:16]
