"""What goes to standard output: one JSON document, or tables for people."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvgraft.library.json_numbers import dumps

# Where nobody looks, a row stays one line: files and pipes are for grep.
_PIPE_COLUMNS = 400
_WHOLE_COLUMNS = 12  # cells up to this are never broken
# A model's text may hold anything, escape sequences included.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_STYLES = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "active": "green",
    "known": "green",
    "solved": "green",
    "replays": "green",
    "replayed": "green",
    "revoked": "red",
    "unsolved": "yellow",
    "no_room": "yellow",
    "passed": "bold green",
    "FAILED": "bold red",
}


def write_document(data: Mapping[str, Any]) -> None:
    """Print the one JSON document of a command."""
    sys.stdout.write(dumps(_plain(data), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """`value` with what JSON has no word for spelled out."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


class _Console(Console):
    """Leaves a closed pipe to `edge`, which ends every command in the same way."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(file: TextIO | None = None) -> Console:
    """A console on `file`, or standard output; coloured only on a terminal."""
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    made = _Console(file=file or sys.stdout, **plain)
    if made.is_terminal or os.environ.get("COLUMNS"):
        return made
    return _Console(file=file or sys.stdout, width=_PIPE_COLUMNS, **plain)


def write_line(text: str = "") -> None:
    """Print a line for people, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, styled(value))
    _print(table)


def write_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[str] = (),
) -> None:
    """Print a table; the columns named in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    lines = [list(row) for row in rows]
    numbers = set(right)
    for place, name in enumerate(columns):
        longest = max((len(line[place]) for line in lines), default=0)
        table.add_column(
            name,
            justify="right" if name in numbers else "left",
            overflow="fold",
            # The first one names the row, to be copied or looked for; the last one gives way.
            no_wrap=place == 0 or (longest <= _WHOLE_COLUMNS and place < len(columns) - 1),
        )
    for line in lines:
        table.add_row(*(styled(cell) for cell in line))
    _print(table)


def _print(table: Table) -> None:
    target = console()
    if target.is_terminal:
        target.print(table)
        return
    with target.capture() as captured:
        target.print(table)
    for line in captured.get().splitlines():
        write_line(line.rstrip())  # cells are padded to the width of their column


def write_text(*parts: str | Text) -> None:
    """Print a line put together from texts, coloured or not, at once."""
    console().print(Text.assemble(*parts), soft_wrap=True)
    sys.stdout.flush()


def styled(value: str, columns: int = 0) -> Text:
    """`value` made safe, coloured where it is a word for a state, at least `columns` wide."""
    return Text(printable(value).ljust(columns), style=_STYLES.get(value, ""))


def printable(text: str) -> str:
    """`text` with control characters spelled out; line ends and tabs stay."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str, limit: int = 60) -> str:
    """`text` on one line of at most `limit` characters."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def size(count: float) -> str:
    """Bytes in decimal units: `98.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.95 or (unit == "B" and count < 1000):
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds as people read them: `0.012 s`, `3.1 s`, `4 min 05 s`."""
    if seconds < 60:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def work(cost: Mapping[str, Any]) -> str:
    """What a cost says of CPU time, FLOPs and energy: `CPU 1.2 s, 3.4e+09 FLOPs, 5.6 J (rapl)`."""
    cpu, flops, joules = (cost[name] for name in ("cpu_seconds", "model_flops", "joules"))
    return ", ".join(
        [
            "CPU time not measured" if cpu is None else f"CPU {duration(cpu)}",
            "model FLOPs not known" if flops is None else f"{flops:.3g} model FLOPs",
            "joules not measured"
            if joules is None
            else f"{joules:.3g} J ({cost['joules_from'] or 'no source'})",
        ]
    )


def counted(count: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
