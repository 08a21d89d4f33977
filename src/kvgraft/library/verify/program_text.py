"""Finding the program in what a model wrote, or saying that there is none."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from kvgraft import limits

# Each run is followed by something else: it is not tried in parts, which would take time with the
# square of a line's length.
_FENCE = re.compile(
    r"[ \t]*(?P<fence>`{3,}(?!`)|~{3,}(?!~))[ \t]*(?![ \t])(?P<tag>[\w+#.-]*)(?![\w+#.-])[^`\n]*"
)
_PYTHON = {"py", "py3", "python", "python3"}
# What compiles without any of these is a word or a number, and no program.
_DOES_SOMETHING = re.compile(r"[=(]|^[ \t]*(?:import|from)\b", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """`source` is `trace[start:end]`, its common indentation taken off."""

    source: str
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """What stands between two fences, or behind one that was not `closed`; `tag` in lower case."""

    tag: str
    start: int
    end: int
    closed: bool


def program_in(trace: str) -> Program | None:
    """The last fenced block that is said to be Python; else the last fenced block that is Python,
    else the last one; else, without a block, the whole trace, if it is Python.

    A block that was not closed counts where it is Python: what was cut seldom is. None too for a
    trace over `limits.MAX_TRACE_CHARS`. Raises nothing.
    """
    if len(trace) > limits.MAX_TRACE_CHARS:
        return None
    blocks = [Block("", 0, len(trace), False)]
    if "```" in trace or "~~~" in trace:
        blocks = list(fenced_blocks(trace)) or blocks
    said = [block for block in blocks if block.tag in _PYTHON]
    for found in (said, blocks):
        for block in reversed(found):
            source = textwrap.dedent(trace[block.start : block.end])
            trusted = found is said and block.closed
            if source.strip() and (trusted or _is_python(source)):
                return Program(source, block.start, block.end)
    for block in reversed(blocks):
        source = textwrap.dedent(trace[block.start : block.end])
        if block.closed and source.strip():
            return Program(source, block.start, block.end)
    return None


def fenced_blocks(trace: str) -> Iterator[Block]:
    """The blocks of a text, in their order, in time proportional to its length."""
    fence, tag, start, place = "", "", 0, 0
    for line in trace.splitlines(keepends=True):
        opens = _FENCE.fullmatch(line.rstrip())
        if not fence and opens:
            fence, tag, start = opens["fence"], opens["tag"].lower(), place + len(line)
        elif fence and set(line.strip()) == {fence[0]} and len(line.strip()) >= len(fence):
            yield Block(tag, start, place, True)
            fence = ""
        place += len(line)
    if fence:
        yield Block(tag, min(start, place), place, False)


def _is_python(source: str) -> bool:
    if len(source) > limits.MAX_PROGRAM_GUESS_CHARS or not _DOES_SOMETHING.search(source):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a program may be warned of, its user is not
            compile(source, "<trace>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True
