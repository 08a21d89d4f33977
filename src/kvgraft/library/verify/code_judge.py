"""Evaluates assertions over another program's functions. Run in a sandbox of its own.

The assertions are those of the problem's author. What they are given are values that an untrusted
program returned: plain data, but as long or as costly as it pleases. So they are evaluated neither
in our own process nor in the program's. `code` reads this file and runs it in a `Session`; a call
goes out by `__ask__`, which `sandbox.child` puts here. Standard library only.
"""

from __future__ import annotations

import ast
import builtins
import math
from typing import Any


class NoValue(BaseException):
    """A function of the program came to no value. No `except Exception` of a test hides it."""


def evaluate(source: str) -> list[Any]:
    """Whether the assertions hold, and if not, why: [bool, str]."""
    tree = ast.parse(source)
    asked: list[str] = []

    def function(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            asked.append(name)
            reply = __ask__(name, list(arguments), named)  # type: ignore[name-defined] # noqa: F821
            if "none" in reply:
                raise NoValue(f"{name}: {reply['none']}")
            return reply["value"]

        return call

    # Names that nothing here defines are the program's functions.
    space: dict[str, Any] = {"math": math}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            space.setdefault(node.id, function(node.id))
    try:
        if isinstance(tree.body[0], ast.Expr) and len(tree.body) == 1:
            expression = ast.Expression(tree.body[0].value)
            holds = bool(eval(compile(expression, "<test>", "eval"), space))
        else:
            exec(compile(tree, "<test>", "exec"), space)
            holds = True
    except NoValue as error:
        return [False, str(error)]
    except AssertionError:
        holds = False
    except BaseException as error:
        return [False, f"the assertion raised {type(error).__name__}: {error}"[:200]]
    if not holds:
        return [False, "the assertion does not hold"]
    return [bool(asked), "the assertion asks nothing of the program"]
