"""Long steps, followed on standard error: a bar on a terminal, else now and then a line."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kvgraft.cli.output import console, duration, one_line, printable, size

FIRST_LINE_SECONDS = 2.0  # what is faster needs no word
NEXT_LINE_SECONDS = 10.0
SLOWEST_LINE_SECONDS = 60.0

# Stages of engines and proofs: what to call them, and whether they count bytes.
_STAGES = {
    "verify": ("checking the file", True),
    "download": ("downloading", True),
    "join": ("joining the parts", True),
    "wait": ("waiting for another process", False),
    "tokenizer": ("converting the tokenizer", False),
    "load": ("reading the tensors", False),
    "cast": ("converting the tensors", False),
    "save": ("writing the model", False),
    "digest": ("digesting what was written", True),
    "weights digest": ("digesting the weights", True),
    "capture": ("capturing", False),
    "cold": ("computing everything", False),
    "graft": ("grafting", False),
    "read": ("reading", True),
}


class Watch:
    """Follows one long job; `doing` says which. Nothing goes to standard output."""

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self._stage = ""
        self._done, self._total = 0, 0
        self._bytes = False
        self._bar: Progress | None = None
        self._lines: _Lines | None = None

    def __enter__(self) -> Watch:
        err = console(sys.stderr)
        if err.is_terminal and not err.is_dumb_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}", markup=False),
                TimeElapsedColumn(),
                console=err,
                transient=True,
                redirect_stdout=False,  # standard output may be a file
            )
            self._task = self._bar.add_task(self._said(), total=None, count="")
            self._bar.start()
        else:
            self._lines = _Lines(self._line)
            self._lines.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._lines is not None:
            self._lines.stop()

    def restart(self, doing: str) -> None:
        """Go over to another job."""
        self.doing = doing
        self._show("", 0, 0, False)

    def progress(self, stage: str, done: int, total: int) -> None:
        """The progress of a named stage, in bytes or in pieces as the stage has it."""
        words, in_bytes = _STAGES.get(stage, (stage, False))
        self._show(words, done, total, in_bytes)

    def reading(self, done: int, total: int) -> None:
        """Bytes that were read."""
        self.progress("read", done, total)

    def steps(self, words: str, done: int, total: int) -> None:
        """Steps of something that `words` name."""
        self._show(words, done, total, False)

    def say(self, line: str) -> None:
        """Print a line at once."""
        with self.aside():
            console(sys.stderr).print(printable(line), soft_wrap=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while the caller writes."""
        if self._bar is not None:
            self._bar.stop()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.start()

    def _show(self, words: str, done: int, total: int, in_bytes: bool) -> None:
        self._stage, self._done, self._total, self._bytes = words, done, total, in_bytes
        if self._bar is not None:
            known = total > 1
            self._bar.update(
                self._task,
                description=one_line(self._said(), 70),
                completed=done if known else 0,
                total=total if known else None,
                count=self._count(),
            )

    def _said(self) -> str:
        return printable(f"{self.doing}: {self._stage}" if self._stage else self.doing)

    def _count(self) -> str:
        if self._total <= 1:
            return ""
        if self._bytes:
            return f"{size(self._done)} of {size(self._total)}"
        return f"{self._done:,} of {self._total:,}"

    def _line(self, seconds: float) -> None:
        parts = [self._said(), self._count(), f"after {duration(seconds)}"]
        sys.stderr.write(", ".join(part for part in parts if part) + "\n")
        sys.stderr.flush()


class _Lines(threading.Thread):
    """Calls `write(seconds)` after two seconds, then ever more rarely."""

    def __init__(self, write: Callable[[float], None]) -> None:
        super().__init__(name="kvgraft-progress", daemon=True)
        self._write = write
        self._ended = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        pause = NEXT_LINE_SECONDS
        if self._ended.wait(FIRST_LINE_SECONDS):
            return
        while True:
            try:
                self._write(time.monotonic() - began)
            except (OSError, ValueError):
                return  # nobody reads standard error
            if self._ended.wait(pause):
                return
            pause = min(pause * 1.5, SLOWEST_LINE_SECONDS)

    def stop(self) -> None:
        self._ended.set()
        self.join()
