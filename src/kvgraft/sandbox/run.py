"""Runs a program in a sandbox, or calls its functions there. docs/SANDBOX.md says what holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgraft.errors import InputError
from kvgraft.sandbox import wire
from kvgraft.sandbox.tree import REQUIRED, Limits, Tree

__all__ = ["REQUIRED", "Limits", "NoValue", "Ran", "Session", "call_functions", "run_program"]


@dataclass(frozen=True)
class NoValue:
    """In place of a call's value: why there is none. No program can return one of these."""

    reason: str


@dataclass(frozen=True)
class Ran:
    """What became of a run.

    `ended`: "ended" by itself, "late" (over the wall limit), "killed" (over another limit, or died
    by a signal), or "refused" (not started). `stdout` and `stderr` are capped heads, decoded with
    replacement; `stdout_bytes`: how many there were. `values`: what the calls returned, or
    `NoValue`. `failure`: None only where it ended by itself with status 0 and every call returned.
    `cpu_seconds` are those of all its processes, None: not measured. `isolation`: what held, of
    "cpu", "files", "ipc", "memory", "mount", "network", "pid", "processes", "syscalls", "tree",
    "user", "uts".
    """

    ended: str
    exit_status: int | None
    stdout: str
    stderr: str
    stdout_bytes: int
    values: tuple[Any, ...]
    failure: str | None
    seconds: float
    cpu_seconds: float | None
    isolation: tuple[str, ...]

    @property
    def forced(self) -> bool:
        """We or the system ended it, or it was not started: that says nothing of its result."""
        return _forced(self.ended, self.exit_status)


Call = tuple[str, Sequence[Any]] | tuple[str, Sequence[Any], Mapping[str, Any]]

_DEFAULT = Limits()
_REASON_CHARS = 300
_ENDING_SECONDS = 0.5  # between the last word of a program and the guard's word on it


def run_program(
    source: str,
    *,
    stdin: str = "",
    limits: Limits = _DEFAULT,
    require: Collection[str] = REQUIRED,
) -> Ran:
    """Runs `source` as a Python program of its own, with the standard library alone.

    Raises:
        SandboxUnavailable: something of `require` cannot be had on this system. Nothing was run.
    """
    tree = Tree(source, stdin, limits, require, channel=False)
    try:
        tree.pump(lambda: False)
        return _ran(tree, ())
    finally:
        tree.close()


def call_functions(
    source: str,
    calls: Sequence[Call],
    *,
    limits: Limits = _DEFAULT,
    require: Collection[str] = REQUIRED,
) -> Ran:
    """Runs `source`, which defines functions, then calls them: name, arguments, and named
    arguments if any. Arguments and values are plain data (`wire`).

    Raises:
        SandboxUnavailable: something of `require` cannot be had on this system. Nothing was run.
        InputError: an argument is no plain data.
    """
    with Session(source, limits=limits, require=require) as session:
        for call in calls:
            session.call(*call)
        return session.end()


class Session:
    """A module in the sandbox whose functions are called one at a time. Use as a context, within
    one thread: the sandbox ends with the thread that made it.

    The limits are those of the whole session. A value is what the program says it is: whoever
    judges it compares it outside, with what the program has never seen.

    Raises:
        SandboxUnavailable: something of `require` cannot be had on this system. Nothing was run.
    """

    def __init__(
        self, source: str, *, limits: Limits = _DEFAULT, require: Collection[str] = REQUIRED
    ) -> None:
        self._tree = Tree(source, "", limits, require, channel=True)
        self._values: list[Any] = []
        self._dead = self._tree.refused  # why no call can be answered any more
        try:
            if not self._dead:
                self._dead = self._receive("", {"ready", "none"}).get("none", "")
        except BaseException:
            self._tree.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.close()

    @property
    def isolation(self) -> tuple[str, ...]:
        """See `Ran.isolation`."""
        return _held(self._tree)

    @property
    def forced(self) -> bool:
        """See `Ran.forced`; False while it runs."""
        return bool(self._dead) and self._tree.gone and _forced(*self._tree.outcome()[:2])

    def call(
        self,
        name: str,
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
        *,
        ask: Callable[[str, list[Any], dict[str, Any]], Any] | None = None,
    ) -> Any:
        """What the function returns, or `NoValue`. Raises nothing else than below.

        `ask` answers when the module, a judge of ours, asks for another program's function.

        Raises:
            InputError: an argument is no plain data.
        """
        value = self._call(name, list(arguments), dict(named or {}), ask)
        self._values.append(value)
        return value

    def end(self) -> Ran:
        """Ends the session, and says what became of it."""
        if not self._dead:
            self._tree.end_requests()
            self._tree.pump(lambda: False)
        self._tree.close()
        return _ran(self._tree, tuple(self._values), self._dead)

    def _call(self, name: str, arguments: Any, named: Any, ask: Any) -> Any:
        token = os.urandom(8).hex()
        try:
            request = wire.dumps([token, name, arguments, named])
        except wire.Unencodable as error:
            raise InputError(f"an argument is {error}", where=name) from None
        if self._dead:
            return NoValue(self._dead)
        self._tree.send(request)
        keys = {"value", "none"} if ask is None else {"value", "none", "ask"}
        while "ask" in (reply := self._receive(token, keys)):
            value = ask(*reply["ask"])
            missing = isinstance(value, NoValue)
            self._tree.send(wire.dumps({"none": value.reason} if missing else {"value": value}))
        return NoValue(reply["none"]) if "none" in reply else reply["value"]

    def _receive(self, token: str, keys: set[str]) -> dict[str, Any]:
        """The next reply; the session's end is one with "none" as well."""
        tree, replies = self._tree, self._tree.replies
        tree.pump(lambda: b"\n" in replies.kept or replies.ended or replies.full)
        line, newline, rest = bytes(replies.kept).partition(b"\n")
        if not newline and replies.full:
            return self._die(f"gave a value of over {tree.limits.output_bytes:,} bytes")
        if not newline:
            # The pipe is closed: the program ends, or has only closed its end of it.
            deadline = time.monotonic() + _ENDING_SECONDS
            tree.pump(lambda: time.monotonic() > deadline)
            failure = _failure(tree) if tree.gone else "it closed the channel"
            return self._die(failure or "it ended before it answered")
        replies.kept[:] = rest
        try:
            reply = wire.loads(line.decode("ascii"))
            if reply.pop("token") == token and len(reply) == 1 and reply.keys() <= keys:
                return {key: _checked(key, value) for key, value in reply.items()}
        except (ValueError, AttributeError, KeyError, TypeError):
            pass
        return self._die("it wrote to the channel what is no reply")

    def _die(self, reason: str) -> dict[str, Any]:
        self._dead = reason
        return {"none": reason}


def _checked(key: str, value: Any) -> Any:
    if key == "none":
        return str(value)[:_REASON_CHARS]
    if key == "ask" and [type(part) for part in value] != [str, list, dict]:
        raise TypeError("no call")
    return value


def _failure(tree: Tree) -> str | None:
    _, status, failure = tree.outcome()
    last_words = tree.err.text()[-2 * _REASON_CHARS :].strip().rpartition("\n")[2][:_REASON_CHARS]
    return f"{failure}: {last_words}" if failure and status and last_words else failure


def _ran(tree: Tree, values: tuple[Any, ...], dead: str = "") -> Ran:
    ended, status, _ = tree.outcome()
    failure = dead or _failure(tree)
    for number, value in enumerate(values, 1):
        if failure is None and isinstance(value, NoValue):
            failure = f"call {number}: {value.reason}"
    return Ran(
        ended,
        status,
        tree.out.text(),
        tree.err.text(),
        tree.out.size_bytes,
        values,
        failure,
        time.monotonic() - tree.started,
        tree.cpu_seconds,
        _held(tree),
    )


def _held(tree: Tree) -> tuple[str, ...]:
    return tuple(filter(None, tree.facts.get("held", "").split(",")))


def _forced(ended: str, status: int | None) -> bool:
    return ended in ("late", "refused") or (ended == "killed" and status in (None, -9))
