"""What an attempt derives: the answer in its text, or what its program prints.

A program that only prints a constant computes nothing: its output counts as if it stood in a text.
Programs run in the sandbox, each distinct source once.
"""

from __future__ import annotations

import ast
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.extract import extract
from kvgraft.library.verify.program_text import program_in
from kvgraft.sandbox.run import Limits, Ran, run_program

TEXT, PROGRAM = "text", "program"
_KEPT_RUNS = 256
# In what a program prints, nodes that only say what is known already.
_CONSTANT = (
    *(ast.Module, ast.Expr, ast.Assign, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Tuple),
    *(ast.UnaryOp, ast.USub, ast.UAdd, ast.JoinedStr, ast.FormattedValue, ast.Call, ast.keyword),
)


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
        self._limits = run_limits or Limits()
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
        source = normalised_source(program.source)
        if source is None:
            return _text(trace) if extract(trace) else _none(PROGRAM, "it does not parse")
        if only_prints_a_constant(program.source):
            ran = self.run(program.source)
            answer = _printed(ran)
            return Derivation(TEXT, answer, answer and canonical_answer(answer), "a constant")
        ran = self.run(program.source)
        if ran.failure is not None:
            return _none(PROGRAM, ran.failure, source)
        answer = _printed(ran)
        if answer is None:
            return _none(PROGRAM, "it prints no answer", source)
        return Derivation(PROGRAM, answer, canonical_answer(answer), "", source)

    def all(self, traces: Sequence[str]) -> list[Derivation]:
        """`of` each."""
        return [self.of(trace) for trace in traces]

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
    if ran.failure is not None:
        return None
    lines = [line for line in ran.stdout.splitlines() if line.strip()]
    found = extract(lines[-1]) if lines else None
    return None if found is None else found.answer


def normalised_source(source: str) -> str | None:
    """The program without comments, layout and docstrings; None where it does not parse."""
    tree = _parsed(source)
    return None if tree is None else ast.dump(tree)


def only_prints_a_constant(source: str) -> bool:
    """Whether the program names its output instead of computing it: nothing but assignments and
    prints of constants. One that does not parse computes nothing either."""
    tree = _parsed(source)
    if tree is None:
        return True
    for node in ast.walk(tree):
        if not isinstance(node, _CONSTANT):
            return False
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in ("print", "int", "float", "str")
        ):
            return False
    return True


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
