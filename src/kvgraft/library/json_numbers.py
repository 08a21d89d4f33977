"""JSON with whole numbers of any length, such as a check may have.

Python refuses to write or read whole numbers of more than 4,300 digits as text, unless a whole
process is told otherwise. The detour by `Decimal` is not refused.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_LONG = 10**4_000


def dumps(value: Any, **options: Any) -> str:
    """As `json.dumps`, which does most of the work.

    Raises:
        TypeError, ValueError, RecursionError: as `json.dumps`.
    """
    try:
        return json.dumps(value, **options)
    except ValueError:
        mark, long = secrets.token_hex(16), list[int]()
        marked = _marked(value, mark, long)
    text = json.dumps(marked, **options)
    return re.sub(f'"{mark}([0-9]+)"', lambda found: f"{Decimal(long[int(found[1])]):f}", text)


def loads(text: str | bytes) -> Any:
    """As `json.loads`.

    Raises:
        ValueError, RecursionError: as `json.loads`.
    """
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=lambda digits: int(Decimal(digits)))


def _marked(value: Any, mark: str, long: list[int]) -> Any:
    """`value` with a text in the place of each long number, which goes to `long`."""
    if isinstance(value, int) and abs(value) >= _LONG:
        long.append(value)
        return f"{mark}{len(long) - 1}"
    if isinstance(value, Mapping):
        return {key: _marked(item, mark, long) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, mark, long) for item in value]
    return value
