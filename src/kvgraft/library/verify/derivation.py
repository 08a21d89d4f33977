"""What an attempt derives: the answer in its text, or what its program prints.

A program that only prints a constant computes nothing: its output counts as if it stood in a text.
Programs run in the sandbox, each distinct source once.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvgraft import limits as caps
from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.extract import extract
from kvgraft.library.verify.program_constant import only_says_a_constant
from kvgraft.library.verify.program_text import program_in
from kvgraft.sandbox.run import Limits, Ran, run_program

TEXT, PROGRAM = "text", "program"
_KEPT_RUNS = 256


@dataclass(frozen=True)
class Derivation:
    """What an attempt came to. `kind`: "program" where a program computed it, else "text".

    `answer` is as it was written or printed, `canonical` its form for comparing; both None where
    there is none, and `reason` says why. `source`: the normalised program, for telling whether two
    are the same one.
    """

    kind: str
    answer: str | None
    canonical: str | None
    reason: str = ""
    source: str | None = None


class Derivations:
    """Derives attempts; remembers the runs of the last programs."""

    def __init__(self, run_limits: Limits | None = None) -> None:
        self._limits = run_limits or Limits(output_bytes=caps.PROGRAM_OUTPUT_BYTES)
        self._runs: OrderedDict[str, Ran] = OrderedDict()
        self.run: Callable[[str], Ran] = self._run

    def of(self, trace: str) -> Derivation:
        """What `trace` derives.

        Raises:
            SandboxUnavailable: programs cannot be run safely on this system.
        """
        program = program_in(trace)
        if program is None:
            return _text(trace)
        if len(program.source) > caps.MAX_PROGRAM_GUESS_CHARS:
            return _none(PROGRAM, f"it is over {caps.MAX_PROGRAM_GUESS_CHARS:,} characters")
        tree = _parsed(program.source)
        if tree is None:
            return _text(trace) if extract(trace) else _none(PROGRAM, "it does not parse")
        source = normalised(tree) or program.source
        constant = only_says_a_constant(tree)
        ran = self.run(program.source)
        reason = self._useless(ran)
        if reason:
            return _none(TEXT if constant else PROGRAM, reason, source)
        answer = _printed(ran)
        if answer is None:
            return _none(PROGRAM, "it prints no answer", source)
        if constant:
            return Derivation(TEXT, answer, canonical_answer(answer), "a constant", source)
        return Derivation(PROGRAM, answer, canonical_answer(answer), "", source)

    def all(self, traces: Sequence[str]) -> list[Derivation]:
        """`of` each."""
        return [self.of(trace) for trace in traces]

    def _useless(self, ran: Ran) -> str:
        """Why what a run printed says nothing, "" if it may."""
        if ran.failure is not None:
            return ran.failure
        if ran.stdout_bytes > self._limits.output_bytes:  # its last line is not here
            return f"it prints {ran.stdout_bytes:,} bytes"
        return ""

    def _run(self, source: str) -> Ran:
        ran = self._runs.get(source)
        if ran is None:
            ran = self._runs[source] = run_program(source, limits=self._limits)
            if len(self._runs) > _KEPT_RUNS:
                self._runs.popitem(last=False)
        return ran


def _text(trace: str) -> Derivation:
    found = extract(trace)
    if found is None:
        return _none(TEXT, "no answer in the text")
    return Derivation(TEXT, found.answer, canonical_answer(found.answer))


def _none(kind: str, reason: str, source: str | None = None) -> Derivation:
    return Derivation(kind, None, None, reason, source)


def _printed(ran: Ran) -> str | None:
    """The answer in what a program printed: its last line, as `extract` reads it."""
    lines = [line for line in ran.stdout.splitlines() if line.strip()]
    found = extract(lines[-1]) if lines else None
    return None if found is None else found.answer


def normalised(tree: ast.Module) -> str | None:
    """A program without comments, layout, docstrings, `pass` and the names that it gives: for
    telling whether two are one. None for one nested too deeply."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, f"_{len(names)}")
        elif isinstance(node, ast.arg):
            names.setdefault(node.arg, f"_{len(names)}")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.setdefault(node.name, f"_{len(names)}")
        elif isinstance(node, ast.alias) and (bound := _bound(node)):
            names.setdefault(bound, f"_{len(names)}")
    try:
        return ast.dump(_Renamed(names).visit(copy.deepcopy(tree)))
    except RecursionError:
        return None


def _bound(alias: ast.alias) -> str | None:
    """The name that an import gives, unless it is a package's whose module is imported."""
    return alias.asname or (None if "." in alias.name else alias.name)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_alias(self, node: ast.alias) -> ast.alias:
        bound = _bound(node)
        return ast.alias(node.name, None if bound is None else self._names[bound])

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in self._names:
                setattr(node, field, self._names[name])
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [one for one in body if not _says_nothing(one)]
        return super().generic_visit(node)


def _says_nothing(node: ast.AST) -> bool:
    """A statement that is `pass`, or a text alone: a docstring, or a comment written as one."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
