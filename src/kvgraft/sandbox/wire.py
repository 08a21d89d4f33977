"""How values cross between the sandbox and the process outside: JSON, and never pickle.

A value is written as itself where JSON has it exactly (None, bool, short int, str, list) and else
as an object with one key, its kind. Only exact types cross: a subclass could answer `==` as it
likes, and what arrives has to be plain data. Standard library only: both sides import this.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 64
PLAIN_INT_BITS = 63  # longer ones in hexadecimal: decimal digits take time with their square
MAX_EQUAL_HASHES = 64  # chance gives a handful

_DICTS = (dict, OrderedDict, defaultdict, Counter)  # all are equal to a dict of the same items
_GROUPS = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Unencodable(TypeError):
    """A value of a type that does not cross, or nested too deep."""


class Undecodable(ValueError):
    """Text that no `dumps` has written."""


def dumps(value: Any) -> str:
    """One line of ASCII.

    Raises:
        Unencodable: a type that does not cross, or nested over `MAX_DEPTH`.
    """
    return json.dumps(_tree(value, MAX_DEPTH), separators=(",", ":"))


def loads(text: str) -> Any:
    """The value of `dumps`: of None, bool, int, float, complex, str, bytes, list, tuple, set,
    frozenset and dict, and of no subclass of one.

    Raises:
        Undecodable: everything else, whoever wrote it.
    """
    try:
        return _value(json.loads(text), MAX_DEPTH)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Undecodable(f"{type(error).__name__}: {error}"[:200]) from None


def _tree(value: Any, depth: int) -> Any:
    if depth < 0:
        raise Unencodable(f"a value nested over {MAX_DEPTH} deep")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() <= PLAIN_INT_BITS else {"int": f"{value:x}"}
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is list:
        return [_tree(item, depth - 1) for item in value]
    for name, group in _GROUPS.items():
        if kind is group:
            return {name: [_tree(item, depth - 1) for item in value]}
    if kind in _DICTS:
        pairs = dict.items(value)
        return {"dict": [[_tree(key, depth - 1), _tree(item, depth - 1)] for key, item in pairs]}
    raise Unencodable(f"a value of type {kind.__name__}")


def _value(tree: Any, depth: int) -> Any:
    if depth < 0:
        raise ValueError(f"nested over {MAX_DEPTH} deep")
    if isinstance(tree, list):
        return [_value(item, depth - 1) for item in tree]
    if isinstance(tree, float):
        raise ValueError("a bare float")
    if not isinstance(tree, dict):
        return tree
    ((name, held),) = tree.items()
    if name == "int":
        return int(_text(held), 16)
    if name == "float":
        return float.fromhex(_text(held))
    if name == "bytes":
        return bytes.fromhex(_text(held))
    if name == "complex":
        real, imaginary = _list(held)
        return complex(float.fromhex(_text(real)), float.fromhex(_text(imaginary)))
    if name == "dict":
        pairs = [[_value(part, depth - 1) for part in _list(pair)] for pair in _list(held)]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("no pair of key and value")
        _spread(key for key, _ in pairs)
        return _whole(dict(pairs), pairs)
    items = [_value(item, depth - 1) for item in _list(held)]
    if name == "tuple":
        return tuple(items)
    _spread(items)
    return _whole(_GROUPS[name](items), items)


def _spread(keys: Iterable[Any]) -> None:
    """Refuses keys chosen so that their hashes are equal: a set of them takes time with the
    square of their number, and it is our time."""
    if max(Counter(map(hash, keys)).values(), default=0) > MAX_EQUAL_HASHES:
        raise ValueError("keys of equal hashes")


def _whole(group: Any, items: list[Any]) -> Any:
    if len(group) != len(items):
        raise ValueError("an element stands twice")
    return group


def _text(held: Any) -> str:
    if not isinstance(held, str):
        raise ValueError("not text")
    return held


def _list(held: Any) -> list[Any]:
    if not isinstance(held, list):
        raise ValueError("not a list")
    return held
