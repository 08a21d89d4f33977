"""A problem's text as tokens: words, spaces, signs, and values that a program could take.

Every character belongs to exactly one token, and what is a value is decided by its form alone. A
value token spells its value in the one way that the kind has for it: parsed and spelled again it is
the same text. Whatever looks like a value and is none (30 February, 007, 1.2.3) is "odd": it can
never be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from kvgraft.limits import MAX_METHOD_DIGITS

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_MONTH = "|".join(_MONTHS)
_INTEGER = r"(?:(?<![\w)\].-])-)?(?<![\w.])[0-9]+(?!\.?[0-9])"
_EDGE = r"[A-Z]-[A-Z](?![\w-])"

WORD, SPACE, SIGN, ODD = "word", "space", "sign", "odd"


@dataclass(frozen=True)
class Token:
    """A piece of a text and what it is."""

    kind: str
    text: str


@dataclass(frozen=True)
class Kind:
    """A kind of value. `type` names what a program gets, the same for all spellings of it; `hint`
    is that type in Python's words.

    `parse` reads a text of the form; it raises ValueError where there is no such value. `spell` is
    its inverse. `argument` is the value as plain data, which crosses into a sandbox.
    """

    pattern: str
    type: str
    hint: str
    parse: Callable[[str], Any]
    spell: Callable[[Any], str]
    argument: Callable[[Any], Any] = lambda value: value


def tokens(text: str) -> tuple[Token, ...]:
    """The tokens of a text; joined, they are the text."""
    found = []
    for match in _TOKEN.finditer(text):
        kind = _NAMES[match.lastgroup or ""]
        if kind in KINDS and not _is_value(KINDS[kind], match[0]):
            kind = ODD
        found.append(Token(kind, match[0]))
    return tuple(found)


def _is_value(kind: Kind, text: str) -> bool:
    try:
        return kind.spell(kind.parse(text)) == text
    except ValueError:
        return False


# --- the kinds ------------------------------------------------------------------------------------


def _parse_int(text: str) -> int:
    if len(text) > MAX_METHOD_DIGITS:
        raise ValueError("too many digits")
    return int(text)


def _parse_grouped(text: str) -> int:
    return _parse_int(text.replace(",", ""))


def _parse_decimal(text: str) -> Decimal:
    if len(text) > MAX_METHOD_DIGITS:
        raise ValueError("too many digits")
    return Decimal(text)


def _parse_long_date(text: str) -> date:
    month, day, year = text.replace(",", "").split(" ")
    return date(int(year), _MONTHS.index(month) + 1, int(day))


def _spell_long_date(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.day}, {day.year:04d}"


def _parse_day_first(text: str) -> date:
    day, month, year = text.split(" ")
    return date(int(year), _MONTHS.index(month) + 1, int(day))


def _spell_day_first(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year:04d}"


def _parse_clock(text: str) -> str:
    hours, minutes = map(int, text.split(":"))
    if hours > 23 or minutes > 59:
        raise ValueError("no time of day")
    return text


def _items(text: str) -> list[str]:
    return re.split(r", and | and |, ", text)


def _numbers(end: str) -> Kind:
    """A list of integers; `end` stands before the last of them."""
    pattern = rf"{_INTEGER}(?:, {_INTEGER})+" + (rf"{end}{_INTEGER}" if end != ", " else "")
    return Kind(
        pattern,
        "integers",
        "list[int]",
        lambda text: [_parse_int(item) for item in _items(text)],
        lambda values: _listed(list(map(str, values)), end),
    )


def _edges(end: str) -> Kind:
    """A list of edges between nodes that are named by a letter."""
    pattern = rf"(?<![\w-]){_EDGE}(?:, {_EDGE})+" + (rf"{end}{_EDGE}" if end != ", " else "")
    return Kind(
        pattern,
        "edges",
        "list[tuple[str, str]]",
        lambda text: [tuple(item.split("-")) for item in _items(text)],
        lambda pairs: _listed(["-".join(pair) for pair in pairs], end),
    )


def _listed(items: list[str], end: str) -> str:
    return ", ".join(items[:-1]) + end + items[-1]


def _quoted(opening: str, closing: str) -> Kind:
    return Kind(
        rf"{opening}[^{opening}{closing}\n]*{closing}",
        "text",
        "str",
        lambda text: text[1:-1],
        lambda text: opening + text + closing,
    )


def _same(value: str) -> str:
    return value


def _iso(day: date) -> str:
    return day.isoformat()


# In the order in which they are tried, the longer ones first.
KINDS: Mapping[str, Kind] = {
    "quoted": _quoted('"', '"'),
    "curly quoted": _quoted("\u201c", "\u201d"),
    "iso date": Kind(
        r"(?<![\w-])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![\w-])",
        *("date", "str"),
        date.fromisoformat,
        _iso,
        _iso,
    ),
    "long date": Kind(
        rf"\b(?:{_MONTH}) [0-9]{{1,2}}, [0-9]{{4}}\b",
        *("date", "str"),
        _parse_long_date,
        _spell_long_date,
        _iso,
    ),
    "day first date": Kind(
        rf"\b[0-9]{{1,2}} (?:{_MONTH}) [0-9]{{4}}\b",
        *("date", "str"),
        _parse_day_first,
        _spell_day_first,
        _iso,
    ),
    "clock": Kind(
        r"(?<![\w:.])[0-9]{1,2}:[0-9]{2}(?!\w|[:.][0-9])", "clock", "str", _parse_clock, _same
    ),
    "edges, and": _edges(", and "),
    "edges and": _edges(" and "),
    "edges": _edges(", "),
    "integers, and": _numbers(", and "),
    "integers and": _numbers(" and "),
    "integers": _numbers(", "),
    "grouped integer": Kind(
        r"(?:(?<![\w)\].-])-)?(?<![\w.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![.,]?[0-9])",
        *("integer", "int"),
        _parse_grouped,
        lambda value: f"{value:,}",
    ),
    "decimal": Kind(
        r"(?:(?<![\w)\].-])-)?(?<![\w.,])[0-9]+\.[0-9]+(?![.,]?[0-9])",
        *("decimal", "float"),
        _parse_decimal,
        lambda value: f"{value:f}",
        float,
    ),
    "integer": Kind(_INTEGER, "integer", "int", _parse_int, str),
    "label": Kind(r"(?<![\w'’-])[A-Z](?![\w'’-])", "label", "str", _same, _same),
}
_PLAIN = {
    ODD: r"[0-9]+",
    WORD: r"[^\W\d_]+(?:['’][^\W\d_]+)*",
    SPACE: r"\s+",
    SIGN: r"[\s\S]",
}
_PATTERNS = {**{name: kind.pattern for name, kind in KINDS.items()}, **_PLAIN}
_NAMES = {f"k{number}": name for number, name in enumerate(_PATTERNS)}
_TOKEN = re.compile(
    "|".join(f"(?P<k{number}>{pattern})" for number, pattern in enumerate(_PATTERNS.values()))
)
