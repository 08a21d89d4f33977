"""Where a method was verified, and so where it may answer: inside, never beyond.

Of the values that its evidence held: the range of each, the words that stood together, and how two
values of one problem related in all of them (one always smaller, a node always among the nodes).
A value outside, an unseen combination or a broken relation is a problem of another kind until
evidence says otherwise. The relations are those of Daikon (Ernst et al., 2001) that fit here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from kvgraft.errors import StoreError
from kvgraft.library.methods.skeleton import CLOSED

_NUMBERS = ("integer", "decimal")
_ORDERED = (*_NUMBERS, "date", "clock")
# Groups of types whose values can be compared with one another.
_COMPARABLE = {name: name for name in ("date", "clock", "label")} | dict.fromkeys(_NUMBERS, "n")

Relation = tuple[str, int, int]
Range = Mapping[str, Any]  # of each feature of a value: the least and the greatest, or a set


@dataclass(frozen=True)
class Domain:
    """`types`, and of each parameter the range of its features; `together`: the words and signs of
    each verified problem; `relations` hold in all of them."""

    types: tuple[str, ...]
    ranges: tuple[Range, ...]
    together: frozenset[tuple[str, ...]]
    relations: frozenset[Relation]

    def refusal(self, arguments: Sequence[Any]) -> str | None:
        """Why these arguments are outside, or None where they are inside."""
        for number, (kind, value, seen) in enumerate(
            zip(self.types, arguments, self.ranges, strict=True)
        ):
            for feature, found in _features(kind, value):
                if not _inside(found, seen[feature]):
                    return f"{feature} of value {number + 1} is outside of what was verified"
        if _words(self.types, arguments) not in self.together:
            return "its words were not verified together"
        broken = self.relations - _relations(self.types, arguments)
        if broken:
            relation, one, other = min(broken)
            return f"value {one + 1} is not {_SAID[relation]} value {other + 1}, as in all before"
        return None

    def as_json(self) -> dict[str, Any]:
        return {
            "types": list(self.types),
            "ranges": [
                {name: sorted(span) if _is_set(span) else list(span) for name, span in seen.items()}
                for seen in self.ranges
            ],
            "together": sorted(map(list, self.together)),
            "relations": sorted(map(list, self.relations)),
        }


def observe(types: Sequence[str], rows: Iterable[Sequence[Any]]) -> Domain:
    """The domain of the problems whose arguments are `rows`, one at least."""
    return join([_of_one(tuple(types), row) for row in rows])


def join(domains: Sequence[Domain]) -> Domain:
    """The domain of the evidence of all of them, which have the same types."""
    return reduce(_both, domains)


def from_json(data: Mapping[str, Any]) -> Domain:
    """Inverse of `as_json`.

    Raises:
        StoreError: this is no domain.
    """
    try:
        domain = Domain(
            tuple(data["types"]),
            tuple(
                {
                    name: frozenset(span) if name in _SETS else tuple(span)
                    for name, span in seen.items()
                }
                for seen in data["ranges"]
            ),
            frozenset(map(tuple, data["together"])),
            frozenset((name, one, other) for name, one, other in data["relations"]),
        )
        if len(domain.types) != len(domain.ranges):
            raise ValueError("types and ranges differ in number")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"a domain is damaged: {error}") from error
    return domain


def _of_one(types: tuple[str, ...], arguments: Sequence[Any]) -> Domain:
    ranges = tuple(
        {
            name: found if _is_set(found) else (found, found)
            for name, found in _features(kind, value)
        }
        for kind, value in zip(types, arguments, strict=True)
    )
    together = frozenset([_words(types, arguments)])
    return Domain(types, ranges, together, frozenset(_relations(types, arguments)))


def _both(one: Domain, other: Domain) -> Domain:
    ranges = tuple(
        {name: _span(mine[name], theirs[name]) for name in mine}
        for mine, theirs in zip(one.ranges, other.ranges, strict=True)
    )
    together, relations = one.together | other.together, one.relations & other.relations
    return Domain(one.types, ranges, together, relations)


# --- features of one value ------------------------------------------------------------------------

# Features whose values are sets: one that was seen between two others says nothing of these.
_SETS = frozenset({"sign", "letter", "length", "nodes", "characters", "repeats"})


def _features(kind: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is looked at in a value: an ordered thing, or a frozen set."""
    if kind in _ORDERED:
        yield "size", _place(kind, value)
    if kind in _NUMBERS:
        yield "sign", frozenset({(value > 0) - (value < 0)})
    elif kind == "label":
        yield "letter", frozenset({value})
    elif kind == "text":
        yield "length", frozenset({len(value)})
        yield "characters", frozenset(map(_class_of, value))
    elif kind == "integers":
        yield "length", frozenset({len(value)})
        yield "least", min(value)
        yield "greatest", max(value)
        yield "repeats", frozenset({len(set(value)) < len(value)})
    elif kind == "edges":
        yield "length", frozenset({len(value)})
        yield "nodes", frozenset({len(_nodes(value))})
        yield "pieces", _pieces(value)
        whole = {frozenset(edge) for edge in value}
        repeats = len(whole) < len(value) or any(len(edge) < 2 for edge in whole)
        yield "repeats", frozenset({repeats})


def _place(kind: str, value: Any) -> Any:
    """The value as something that is ordered as it is: dates are in ISO form already."""
    if kind != "clock":
        return value
    hours, minutes = value.split(":")
    return int(hours) * 60 + int(minutes)


def _is_set(span: Any) -> bool:
    return isinstance(span, frozenset)


def _span(one: Any, other: Any) -> Any:
    if _is_set(one):
        return one | other
    return min(one[0], other[0]), max(one[1], other[1])


def _inside(found: Any, seen: Any) -> bool:
    return bool(found <= seen) if _is_set(seen) else bool(seen[0] <= found <= seen[1])


def _class_of(character: str) -> str:
    if not character.isascii():
        return character  # each for itself: 'ß' and 'İ' do what no other letter does
    if character.isalpha():
        return "upper" if character.isupper() else "lower"
    return "digit" if character.isdigit() else character


def _nodes(edges: Iterable[Sequence[str]]) -> set[str]:
    return {node for edge in edges for node in edge}


def _pieces(edges: Sequence[Sequence[str]]) -> int:
    """How many parts of a graph are not connected with one another."""
    parts: list[set[str]] = []
    for edge in edges:
        joined = set(edge).union(*(part for part in parts if part & set(edge)))
        parts = [part for part in parts if not part & joined] + [joined]
    return len(parts)


def _words(types: Sequence[str], arguments: Sequence[Any]) -> tuple[str, ...]:
    return tuple(value for kind, value in zip(types, arguments, strict=True) if kind in CLOSED)


# --- relations of two values ----------------------------------------------------------------------

_SAID = {
    "below": "below",
    "up to": "at most",
    "not": "other than",
    "in": "in",
    "digits": "above each digit of",
}


def _relations(types: Sequence[str], arguments: Sequence[Any]) -> set[Relation]:
    """All relations that hold between two of the arguments."""
    found: set[Relation] = set()
    for one, mine in enumerate(types):
        for other, theirs in enumerate(types):
            if one != other:
                pair = arguments[one], arguments[other]
                found |= {(name, one, other) for name in _between(mine, theirs, *pair)}
    return found


def _between(mine: str, theirs: str, one: Any, other: Any) -> Iterator[str]:
    if mine == "label" and theirs == "edges" and one in _nodes(other):
        yield "in"
    if mine == theirs == "integer" and all(int(digit) < one for digit in str(abs(other))):
        yield "digits"  # 192 is no number in base 8
    if mine in _COMPARABLE and _COMPARABLE[mine] == _COMPARABLE.get(theirs):
        if one != other:
            yield "not"
        if mine in _ORDERED:
            places = _place(mine, one), _place(theirs, other)
            if places[0] < places[1]:
                yield "below"
            if places[0] <= places[1]:
                yield "up to"
