"""Values cross as plain data: what goes in comes out, of the same types, and nothing else does."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, OrderedDict, defaultdict, deque
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.sandbox import wire

KEYS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda keys: st.tuples(keys, keys) | st.frozensets(keys, max_size=3),
    max_leaves=4,
)
VALUES = st.recursive(
    KEYS,
    lambda values: (
        st.lists(values, max_size=4)
        | st.tuples(values, values)
        | st.sets(KEYS, max_size=4)
        | st.dictionaries(KEYS, values, max_size=4)
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """`value` with its types, so that 1, 1.0 and True differ, and -0.0 and 0.0."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(str(typed(item)) for item in value)
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    return type(value), hex(value) if isinstance(value, int) else repr(value)


@given(VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    text = wire.dumps(value)
    assert text.isascii()
    assert "\n" not in text
    assert typed(wire.loads(text)) == typed(value)


@pytest.mark.parametrize(
    "value",
    [10**5000, -(2**63), 2**64, "\ud800", math.inf, -math.inf, -0.0, 5e-324, b"\0\xff"],
    ids=lambda value: type(value).__name__,
)
def test_odd_values(value: Any) -> None:
    assert typed(wire.loads(wire.dumps(value))) == typed(value)


def test_not_a_number() -> None:
    assert math.isnan(wire.loads(wire.dumps(math.nan)))


@pytest.mark.parametrize(
    "value", [OrderedDict(b=1, a=2), defaultdict(int, b=1, a=2), Counter(b=1, a=2)]
)
def test_what_equals_a_dict_crosses_as_one(value: Any) -> None:
    loaded = wire.loads(wire.dumps(value))
    assert (type(loaded), loaded) == (dict, {"b": 1, "a": 2})


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Text(str):
    pass


class Number(IntEnum):
    ONE = 1


class Table(dict[str, int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Liar(3),
        Text("a"),
        Number.ONE,
        Table(a=1),
        Fraction(1, 2),
        deque([1]),
        range(3),
        bytearray(b"a"),
        object(),
        int,
        print,
        (x for x in [1]),
        {"a": [1, {Liar(2)}]},
    ],
    ids=repr,
)
def test_other_types_do_not_cross(value: Any) -> None:
    with pytest.raises(wire.Unencodable):
        wire.dumps(value)


def test_depth_is_bounded() -> None:
    deep: Any = 1
    for _ in range(wire.MAX_DEPTH):
        deep = [deep]
    assert wire.loads(wire.dumps(deep)) == deep
    with pytest.raises(wire.Unencodable):
        wire.dumps([deep])
    with pytest.raises(wire.Undecodable):
        wire.loads("[" * (wire.MAX_DEPTH + 2) + "]" * (wire.MAX_DEPTH + 2))
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(wire.Unencodable):
        wire.dumps(loop)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "1.5",
        "NaN",
        "Infinity",
        "{}",
        '{"int":1}',
        '{"int":"zz"}',
        '{"float":1.5}',
        '{"float":"x"}',
        '{"int":"1","float":"0x1p0"}',
        '{"bytes":"0"}',
        '{"bytes":[0]}',
        '{"complex":["0x1p0"]}',
        '{"complex":"ab"}',
        '{"set":[[1]]}',
        '{"set":[1,1]}',
        '{"set":[1,true]}',
        '{"dict":[[1]]}',
        '{"dict":[[1,2],[1,3]]}',
        '{"dict":[[{"dict":[]},1]]}',
        '{"dict":{"a":1}}',
        '{"tuple":"ab"}',
        '{"object":1}',
        "[" * 100_000,
        "1" * 10_000,
    ],
    ids=lambda text: text[:30],
)
def test_what_nobody_wrote_is_refused(text: str) -> None:
    with pytest.raises(wire.Undecodable):
        wire.loads(text)


def test_keys_with_one_hash_take_no_time() -> None:
    # Multiples of the modulus of Python's integer hash: all hash to 0.
    keys = [{"int": f"{n * (2**61 - 1):x}"} for n in range(1, 30_000)]
    started = time.process_time()
    for kind, items in (("set", keys), ("frozenset", keys), ("dict", [[key, 1] for key in keys])):
        with pytest.raises(wire.Undecodable, match="equal hashes"):
            wire.loads(json.dumps({kind: items}))
    assert time.process_time() - started < 10  # one set of them takes longer
