"""Whether a program computes what it prints, or only says it. Looks at its text alone.

Nothing here can tell for certain (`print(69 + 1)` computes, by its looks). It finds the ways in
which models write down an answer that they have already.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

# Calls that only say what is known already, by name or as a method; and what computes nothing
# itself besides calls and operations.
_SAYING = {"print", "str", "int", "float", "repr", "round", "format", "Fraction", "Decimal"}
_SAYING_METHODS = {"format", "join", "strip", "write", "flush"}
_COMPUTING = (
    *(ast.AugAssign, ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp),
    *(ast.GeneratorExp,),
)
_MAX_STEPS = 32  # of names and calls that lead from what is printed to what is known

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Scope:
    """Statements in their order, and the names that are bound from outside: parameters."""

    body: Sequence[ast.stmt]
    parameters: frozenset[str] = frozenset()


def only_says_a_constant(tree: ast.Module) -> bool:
    """Whether a program names its output instead of computing it: its last statement prints what is
    known without computing, or nowhere in it is there an operation on values, a loop, or a call of
    anything but its own functions and those that print and convert."""
    seen = _Program(tree)
    ends = seen.ends_known(_Scope(tree.body), _MAX_STEPS)
    return ends or not any(map(seen.computes, ast.walk(tree)))


class _Program:
    def __init__(self, tree: ast.Module) -> None:
        self._module = _Scope(tree.body)
        self._functions: dict[str, list[Function]] = {}  # methods too, by their own names
        self._classes = set()
        for node in ast.walk(tree):
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self._classes.add(node.name)

    def ends_known(self, scope: _Scope, steps: int) -> bool:
        """Whether the last statement prints known values alone, itself or by a call."""
        last = next((one for one in reversed(scope.body) if not _is_idle(one)), None)
        if isinstance(last, ast.If):
            ends = [last.body, last.orelse] if last.orelse else [last.body]
            return _is_main(last) and all(
                self.ends_known(_Scope(one, scope.parameters), steps) for one in ends
            )
        if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call) or not steps:
            return False
        call = last.value
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name == "print":
            return bool(call.args) and all(self._known(one, scope, steps) for one in call.args)
        function = self._function(name)
        return function is not None and self.ends_known(_inside(function), steps - 1)

    def _function(self, name: str) -> Function | None:
        """The only one of that name."""
        named = self._functions.get(name, [])
        return named[0] if len(named) == 1 else None

    def _known(self, node: ast.expr | None, scope: _Scope, steps: int) -> bool:
        """Whether the value of an expression stands in the program as it is."""
        if node is None or not steps:
            return False
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return self._known(node.operand, scope, steps)
        if isinstance(node, ast.JoinedStr):
            return all(self._known(one, scope, steps) for one in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._known(node.value, scope, steps)
        if isinstance(node, ast.BinOp) and _makes_text(node):
            sides = (node.left, node.right)
            return all(self._known(one, scope, steps) for one in sides)
        if isinstance(node, ast.Name):
            return self._known(self._value(node.id, scope), scope, steps - 1)
        return isinstance(node, ast.Call) and self._returns_known(node, scope, steps - 1)

    def _value(self, name: str, scope: _Scope) -> ast.expr | None:
        if name in scope.parameters:
            return None
        return _last_value(name, scope.body) or _last_value(name, self._module.body)

    def _returns_known(self, call: ast.Call, scope: _Scope, steps: int) -> bool:
        name = _called(call)
        mine = name in self._functions
        if isinstance(call.func, ast.Name) and name in _SAYING and not mine:
            return all(self._known(one, scope, steps) for one in call.args)
        if isinstance(call.func, ast.Attribute) and name in _SAYING_METHODS and not mine:
            return all(self._known(one, scope, steps) for one in (call.func.value, *call.args))
        value = self._value(name, scope)
        if isinstance(value, ast.Lambda):
            names = frozenset(one.arg for one in ast.walk(value.args) if isinstance(one, ast.arg))
            return self._known(value.body, _Scope((), names), steps)
        function = self._function(name)
        if function is None:
            return False
        returned = [one.value for one in ast.walk(function) if isinstance(one, ast.Return)]
        # Which of several it is, the function works out.
        same = len({ast.dump(one) for one in returned if one is not None}) == 1
        return same and all(self._known(one, _inside(function), steps) for one in returned)

    def computes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            return not _makes_text(node)
        if isinstance(node, ast.Call):
            name = _called(node)
            if name in self._functions or name in self._classes:
                return False
            saying = _SAYING if isinstance(node.func, ast.Name) else _SAYING_METHODS
            return name not in saying and not self._is_lambda(node)
        return isinstance(node, _COMPUTING)

    def _is_lambda(self, call: ast.Call) -> bool:
        """A call of one of the program's own; what it does is looked at where it stands."""
        if isinstance(call.func, ast.Lambda):
            return True
        return isinstance(_last_value(_called(call), self._module.body), ast.Lambda)


def _inside(function: Function) -> _Scope:
    names = frozenset(one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg))
    return _Scope(function.body, names)


def _makes_text(node: ast.BinOp) -> bool:
    """Putting a text together is no computing."""
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _is_idle(statement: ast.stmt) -> bool:
    """`pass`, or the end of a program by `exit()`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _called(statement.value) in ("exit", "quit")
    return isinstance(statement, ast.Pass)


def _called(call: ast.Call) -> str:
    """The name of what is called, as a function or as a method; "" where it has none."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _last_value(name: str, body: Sequence[ast.stmt]) -> ast.expr | None:
    """What a name stands for at the end of `body`: the value of the last statement that binds it,
    None where that is no plain assignment."""
    for statement in reversed(body):
        if not any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
            for node in ast.walk(statement)
        ):
            continue
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            return None
        plain = any(isinstance(one, ast.Name) and one.id == name for one in targets)
        return statement.value if plain else None
    return None


def _is_main(statement: ast.If) -> bool:
    """Whether it is the `if __name__ == "__main__":` at the end of a program."""
    return any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )
