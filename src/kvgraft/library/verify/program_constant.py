"""Whether a program computes what it prints, or only says it. Looks at its text alone.

Nothing here can tell for certain (`print(69 + 1)` computes, by its looks). It finds the ways in
which models write down an answer that they have already.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

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


def only_says_a_constant(tree: ast.Module) -> bool:
    """Whether a program names its output instead of computing it: its last statement prints what is
    known without computing, or nowhere in it is there an operation on values, a loop, or a call of
    anything but its own functions and those that print and convert."""
    seen = _Program(tree)
    return seen.ends_known(tree.body, _MAX_STEPS) or not any(map(seen.computes, ast.walk(tree)))


class _Program:
    def __init__(self, tree: ast.Module) -> None:
        self._module = tree.body
        self._functions: dict[str, Function] = {}  # methods too, by their own names
        self._classes = set()
        for node in ast.walk(tree):
            if isinstance(node, Function):
                self._functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                self._classes.add(node.name)

    def ends_known(self, body: Sequence[ast.stmt], steps: int) -> bool:
        """Whether the last statement prints known values alone, itself or by a call."""
        last = body[-1] if body else None
        if isinstance(last, ast.If):
            ends = [last.body, last.orelse] if last.orelse else [last.body]
            return _is_main(last) and all(self.ends_known(one, steps) for one in ends)
        if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call) or not steps:
            return False
        call = last.value
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name == "print":
            return bool(call.args) and all(self._known(one, body, steps) for one in call.args)
        function = self._functions.get(name)
        return function is not None and self.ends_known(function.body, steps - 1)

    def _known(self, node: ast.expr | None, body: Sequence[ast.stmt], steps: int) -> bool:
        """Whether the value of an expression in `body` stands in the program as it is."""
        if node is None or not steps:
            return False
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return self._known(node.operand, body, steps)
        if isinstance(node, ast.JoinedStr):
            return all(self._known(one, body, steps) for one in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._known(node.value, body, steps)
        if isinstance(node, ast.Name):
            value = _last_value(node.id, body) or _last_value(node.id, self._module)
            return self._known(value, body, steps - 1)
        return isinstance(node, ast.Call) and self._returns_known(node, body, steps - 1)

    def _returns_known(self, call: ast.Call, body: Sequence[ast.stmt], steps: int) -> bool:
        name = _called(call)
        if isinstance(call.func, ast.Name) and name in _SAYING and name not in self._functions:
            return all(self._known(one, body, steps) for one in call.args)
        value = _last_value(name, body) or _last_value(name, self._module)
        if isinstance(value, ast.Lambda):
            return self._known(value.body, body, steps)
        function = self._functions.get(name)
        if function is None:
            return False
        returned = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
        return bool(returned) and all(
            self._known(one.value, function.body, steps) for one in returned
        )

    def computes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):  # putting a text together is no computing
            sides = (node.left, node.right)
            return not any(
                isinstance(side, ast.JoinedStr)
                or (isinstance(side, ast.Constant) and isinstance(side.value, str))
                for side in sides
            )
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
        return isinstance(_last_value(_called(call), self._module), ast.Lambda)


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
