"""What a model wrote, as a program: one function, and what it needs.

Nothing is run here. The text is parsed, only imports, constants and functions of it are kept, and
what could make the same arguments give another value another time is refused; so is a program that
holds the problems it was shown. The sandbox is what makes running it harmless, not this.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvgraft.limits import MAX_METHOD_SOURCE_CHARS, MAX_PROGRAM_NODES

FUNCTION = "solve"
MODULES = frozenset(
    {"bisect", "calendar", "collections", "datetime", "decimal", "fractions", "functools"}
    | {"heapq", "itertools", "math", "operator", "re", "statistics", "string", "typing"}
)
_REFUSED_NAMES = frozenset(
    {"breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "hash"}
    | {"help", "id", "input", "locals", "memoryview", "object", "open", "quit", "setattr", "vars"}
)
_CLOCKS = frozenset({"now", "today", "utcnow"})
_BLOCK = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(```|\Z)", re.DOTALL | re.IGNORECASE)
# Of a derivation's signature: what is in any program says nothing.
_SHARED_NODES = (ast.expr_context, ast.arguments, ast.arg, ast.Module, ast.FunctionDef, ast.Return)
_PLAIN_NODES = (ast.Name, ast.Constant, ast.Assign, ast.AnnAssign, ast.Expr, ast.alias, ast.keyword)
_CASTS = frozenset({"int()", "float()", "str()", "round()", "abs()", "len()", "list()", "tuple()"})
_LOOPS = frozenset({"For", "While", "comprehension", f"{FUNCTION}()"})
MEMORISED_INSTANCES = 2  # one may come about by chance


@dataclass(frozen=True)
class Program:
    """`source` in one canonical spelling. `derivation`: the operations, calls and loops that it is
    made of; what is in any program is left out."""

    source: str
    derivation: frozenset[str]

    def differs(self, other: Program) -> bool:
        """Whether the two come to their values in different ways: each does something that the
        other does not, or just one of them loops. The same formula twice is one derivation, also
        where a guard or a cast was added to it."""
        mine, theirs = self.derivation, other.derivation
        loops = [bool(_LOOPS & one) for one in (mine, theirs)]
        return bool(mine - theirs and theirs - mine) or loops[0] != loops[1]


class Unusable(Exception):
    """Why a text is no program that may be tried."""


def program_of(text: str, parameters: int, *, finished: bool = True) -> Program:
    """The program in what a model wrote.

    Raises:
        Unusable: there is no whole function of that many parameters, or it is refused.
    """
    tree = _parsed(text, finished)
    kept = [node for node in tree.body if _belongs(node)]
    names = [node.name for node in kept if isinstance(node, ast.FunctionDef)]
    if FUNCTION not in names:
        raise Unusable(f"it defines no function {FUNCTION}")
    if len(set(names)) < len(names):
        raise Unusable("it defines a function twice")
    module = ast.Module(kept, [])
    nodes = list(ast.walk(module))
    if len(nodes) > MAX_PROGRAM_NODES:
        raise Unusable("it is too long")
    for node in nodes:
        _check(node)
        _drop_docstring(node)
    _check_signature(kept, parameters)
    try:
        return read_program(ast.unparse(ast.fix_missing_locations(module)) + "\n")
    except (RecursionError, ValueError):  # nested too deep; a number of too many digits
        raise Unusable("it cannot be written down again") from None


def read_program(source: str) -> Program:
    """The program whose `source` was kept.

    Raises:
        SyntaxError: it is none.
    """
    module = ast.parse(source)
    own = {f"{node.name}()" for node in module.body if isinstance(node, ast.FunctionDef)}
    return Program(source, _derivation(module) - (own - {f"{FUNCTION}()"}))


def memorises(program: Program, instances: Iterable[tuple[Sequence[Any], str]]) -> bool:
    """Whether the program holds problems with their answers: the arguments (of which one at least
    is no small number) and the answer of `MEMORISED_INSTANCES` of them stand in it as literals."""
    held = {
        repr(node.value)
        for node in ast.walk(ast.parse(program.source))
        if isinstance(node, ast.Constant)
    }
    # A literal list is several constants; a minus is an operation.
    count = 0
    for arguments, answer in instances:
        values = [value for argument in arguments for value in _leaves(argument)]
        telling = any(len(str(value)) > 1 for value in values)
        spelled = all(_is_held(value, held) for value in values)
        if telling and spelled and _is_held(answer, held):
            count += 1
    return count >= MEMORISED_INSTANCES


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_held(value: Any, held: set[str]) -> bool:
    text = str(value)
    return bool({text, repr(text), text.lstrip("-")} & held)


# --- reading --------------------------------------------------------------------------------------


def _parsed(text: str, finished: bool) -> ast.Module:
    if len(text) > MAX_METHOD_SOURCE_CHARS:
        raise Unusable("it is too long")
    blocks = [match for match in _BLOCK.finditer(text) if f"def {FUNCTION}" in match[1]]
    if blocks:
        source, whole = blocks[0][1], blocks[0][2] == "```"
    elif (start := text.find(f"def {FUNCTION}")) >= 0:
        imports = re.findall(r"^(?:import|from) .*$", text[:start], re.MULTILINE)
        source, whole = "\n".join([*imports, text[start:]]), False
    else:
        raise Unusable(f"it defines no function {FUNCTION}")
    if not whole and not finished:
        raise Unusable("it was cut off")
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unusable(f"it is no Python: {type(error).__name__}") from None


def _belongs(node: ast.stmt) -> bool:
    """Whether a statement is a part of the program; examples and prints beside it are not."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
        return True
    if isinstance(node, ast.Assign):
        try:
            ast.literal_eval(node.value)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            return False
        return True
    return False


def _check(node: ast.AST) -> None:
    if isinstance(node, ast.Import):
        wanted = {alias.name.partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        wanted = {(node.module or "").partition(".")[0] if node.level == 0 else "."}
    else:
        wanted = set()
    if not wanted <= MODULES:
        raise Unusable(f"it imports {', '.join(sorted(wanted - MODULES))}")
    if isinstance(node, ast.Name) and (node.id in _REFUSED_NAMES or node.id.startswith("__")):
        raise Unusable(f"it uses {node.id}")
    if isinstance(node, ast.Attribute) and (node.attr.startswith("_") or node.attr in _CLOCKS):
        raise Unusable(f"it uses .{node.attr}")
    if isinstance(node, (ast.Global, ast.Nonlocal, ast.ClassDef, ast.AsyncFunctionDef)):
        raise Unusable(f"it holds a {type(node).__name__}")


def _check_signature(kept: Sequence[ast.stmt], parameters: int) -> None:
    for node in kept:
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION:
            given = node.args
            if (
                given.vararg
                or given.kwarg
                or given.kwonlyargs
                or given.defaults
                or len(given.posonlyargs) + len(given.args) != parameters
            ):
                raise Unusable(f"its {FUNCTION} does not take {parameters} arguments")
            if node.decorator_list:
                raise Unusable("it decorates its function")  # a cache is a state


def _drop_docstring(node: ast.AST) -> None:
    if isinstance(node, ast.FunctionDef):
        body = node.body
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = body[1:] or [ast.Pass()]


def _derivation(module: ast.Module) -> frozenset[str]:
    return frozenset(name for node in ast.walk(module) for name in _operations(node)) - _CASTS


def _operations(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (*_SHARED_NODES, *_PLAIN_NODES)):
        return
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name):
            yield f"{called.id}()"
        elif isinstance(called, ast.Attribute):
            yield f".{called.attr}()"
        return
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute, ast.BinOp, ast.UnaryOp)):
        return  # their operators and calls are nodes of their own
    yield "Div" if isinstance(node, ast.FloorDiv) else type(node).__name__
