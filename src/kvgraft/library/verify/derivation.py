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
from kvgraft.library.verify.program_text import program_in
from kvgraft.sandbox.run import Limits, Ran, run_program

TEXT, PROGRAM = "text", "program"
_KEPT_RUNS = 256
# Calls that only say what is known already, by name or as a method; and what computes nothing
# itself besides calls and operations.
_SAYING = {"print", "str", "int", "float", "repr", "round", "format", "Fraction", "Decimal"}
_SAYING_METHODS = {"format", "join", "strip", "write", "flush"}
_COMPUTING = (
    *(ast.AugAssign, ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp,),
)
_LITERAL = (ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.JoinedStr, ast.FormattedValue)


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
            return _none(TEXT if constant else PROGRAM, reason, None if constant else source)
        answer = _printed(ran)
        if answer is None:
            return _none(PROGRAM, "it prints no answer", None if constant else source)
        if constant:
            return Derivation(TEXT, answer, canonical_answer(answer), "a constant")
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
    """A program without comments, layout, docstrings and the names that it gives: for telling
    whether two are one. None for one nested too deeply."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, f"_{len(names)}")
        elif isinstance(node, ast.arg):
            names.setdefault(node.arg, f"_{len(names)}")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.setdefault(node.name, f"_{len(names)}")
    try:
        return ast.dump(_Renamed(names).visit(copy.deepcopy(tree)))
    except RecursionError:
        return None


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name in self._names:
                setattr(node, field, self._names[name])
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
        return super().generic_visit(node)


def _is_text(node: ast.AST) -> bool:
    """A statement that is a text alone: a docstring, or a comment written as one."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def only_says_a_constant(tree: ast.Module) -> bool:
    """Whether a program names its output instead of computing it: its last statement prints
    constants, or nowhere in it is there an operation on values, a loop, or a call of anything but
    its own functions and those that print and convert."""
    if tree.body and _prints_constants(tree.body[-1]):
        return True
    own = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    return not any(_computes(node, own) for node in ast.walk(tree))


def _prints_constants(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id == "print"
        and bool(statement.value.args)
        and all(
            isinstance(node, _LITERAL)
            for argument in statement.value.args
            for node in ast.walk(argument)
        )
    )


def _computes(node: ast.AST, own: set[str]) -> bool:
    if isinstance(node, ast.BinOp):  # putting a text together is no computing
        sides = (node.left, node.right)
        return not any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in sides
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id not in _SAYING and node.func.id not in own
        return not (isinstance(node.func, ast.Attribute) and node.func.attr in _SAYING_METHODS)
    return isinstance(node, _COMPUTING)


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
