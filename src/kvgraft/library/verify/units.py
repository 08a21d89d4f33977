r"""Taking the unit off an answer: `864 \mbox{ inches}^2` is 864, in square inches.

Keys and models write units or leave them out as they like, so a unit decides nothing by being
there or not. Two units that are both known and differ do: 5 cm is not 5 m.
"""

from __future__ import annotations

import re

_NAMES = {
    "millimetre": "mm millimeter millimeters millimetre millimetres",
    "centimetre": "cm centimeter centimeters centimetre centimetres",
    "metre": "m meter meters metre metres",
    "kilometre": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "milligram": "mg milligram milligrams",
    "gram": "g gram grams",
    "kilogram": "kg kilogram kilograms",
    "ounce": "oz ounce ounces",
    "pound": "lb lbs",
    "second": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "millilitre": "ml milliliter milliliters millilitre millilitres",
    "litre": "l liter liters litre litres",
    "gallon": "gal gallon gallons",
    "mile/hour": "mph",
    "degree": "deg degree degrees",
    "radian": "rad radian radians",
    "percent": "percent pct",
    "dollar": "usd dollar dollars",
    "cent": "cent cents",
    "euro": "eur euro euros",
    "rupee": "inr rupee rupees",
    "sterling": "gbp",
    "yen": "jpy yen",
}
# Of the abbreviations above, those that say something else in capitals.
_OTHER_IN_CAPITALS = frozenset(["M", "S", "G", "H", "Mm", "MM", "Mg", "MG"])
_UNIT_OF = {word: unit for unit, words in _NAMES.items() for word in words.split()}
_CURRENCY = {"$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee"}
_MULTIPLIERS = ("thousand", "million", "billion", "trillion")

# Words that change the value before them: what they belong to is no bare number.
_SCALES = frozenset("KMBT")  # thousand, million, billion, trillion
_MEANINGFUL = re.compile(
    r"(?x) am|pm|a\.m|p\.m"
    r"|and|or|mod|sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|inf|infinity|union|base|times|plus"
    r"|minus|over|undefined|if|where|for|to|from|otherwise|at|least|most|than|about|not|no|never|less"
    r"|more|greater|fewer|half|halves|third|thirds|quarter|quarters|hundredths|hundred|dozen|thousand"
    r"|million|billion|trillion|choose|factorial|squared|cubed"
)

_ORDINAL = re.compile(
    r"(?<=[0-9])\s*(?:\^\s*)?\{*\s*(?:\\text\s*\{)?\s*(?:st|nd|rd|th)\s*\}*$", re.IGNORECASE
)
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|per\s?cent|pct)\s*\}|(?<![A-Za-z])(?:per\s?cent|pct))$",
    re.IGNORECASE,
)
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})$")
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_PRICE_BEFORE = re.compile(r"^([-+]?)\s*\\?([$€£¥₹])\s*([-+]?)(?=[0-9.])")
_PRICE_BEHIND = re.compile(r"(?<=[0-9])\s*\\?([$€£¥₹])$")
_BASE = re.compile(r"(?<=[0-9A-Za-z])_\s*\{?\s*(?:\\text\s*\{)?\s*([0-9]{1,2})\s*\}*$")
_POWER = re.compile(r"\s*\^\s*(?:\{\s*([2-9])\s*\}|([2-9]))$")
_TEXT_END = re.compile(r"\\text\s*\{([^{}]*)\}$")
_WORD_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ./"


def without_unit(text: str) -> tuple[str, str | None]:
    """`text` without one unit at its end (or a currency before it), and the unit's own name, None
    for a unit that is not known. Without a unit, `text` itself. Raises nothing."""
    if match := _ORDINAL.search(text):
        return text[: match.start()], None
    if (match := _PERCENT.search(text)) and match.start():
        return text[: match.start()], "percent"
    if (match := _DEGREES.search(text)) and not _ANGLE_FUNCTION.search(text):
        return text[: match.start()], "degree"
    if match := _PRICE_BEFORE.match(text):
        return match[1] + match[3] + text[match.end() :], _CURRENCY[match[2]]
    if match := _PRICE_BEHIND.search(text):
        return text[: match.start()], _CURRENCY[match[1]]
    if (match := _BASE.search(text)) and text[: match.start()].isalnum() and text[0].isdigit():
        return text[: match.start()], f"base {int(match[1])}"
    return _without_words(text)


def _without_words(text: str) -> tuple[str, str | None]:
    head, power = text, ""
    if match := _POWER.search(text):
        head, power = text[: match.start()], match[1] or match[2]
    if match := _TEXT_END.search(head):
        before, words, marked = head[: match.start()], match[1], True
    else:
        before = head.rstrip(_WORD_CHARS)
        words, marked = head[len(before) :], False
    before = before.rstrip()
    if not before or not (
        before[-1].isdigit() or before[-1] in "})" or (marked and words[:1] == " ")
    ):
        return text, None
    spelled = [word.rstrip(".") for word in re.split(r"[\s/]+", words) if word]
    names = [_spelled(word) for word in spelled]
    kept = names.pop(0) if names[:1] and names[0] in _MULTIPLIERS else ""
    meaningful = any(
        word in _SCALES or _MEANINGFUL.fullmatch(word.lower()) for word in spelled[-len(names) :]
    )
    if not names or meaningful:
        return text, None
    if not marked and not all(_reads_as_unit(name, words) for name in names):
        return text, None
    if any(character.isdigit() for character in words):
        return text, None
    return f"{before} {kept}".rstrip(), _name(names, power)


def _spelled(word: str) -> str:
    """A word in lower case, but for abbreviations that say something else in upper case: M is mega
    or million and no metre, MW is no mW."""
    lower = word.lower()
    other = word in _OTHER_IN_CAPITALS or (1 < len(word) <= 3 and lower not in _UNIT_OF)
    return word[0] + lower[1:] if other and word[0] != lower[0] else lower


def _reads_as_unit(name: str, words: str) -> bool:
    """Whether a bare word is a unit and not a product of variables: `5 cm` and `5 apples`, but not
    `5 ab` or `5m`."""
    if name in _UNIT_OF:
        return len(name) > 1 or words[:1] == " "
    return words[:1] == " " and len(name) > 2 and bool(re.search("[aeiou]", name))


def _name(names: list[str], power: str) -> str | None:
    if names[0] in ("square", "sq", "cubic") and len(names) > 1:
        power = "3" if names[0] == "cubic" else "2"
        names = names[1:]
    names = [name for name in names if name != "per"]
    # A short word that is no unit known here is one all the same, told apart by its first letter:
    # mW and MW. Longer ones are things, and decide nothing.
    known = [_UNIT_OF.get(name) or (name if 1 < len(name) <= 3 else None) for name in names]
    short = len(names) > 1 or names[0] in _UNIT_OF or names[0][0] in "mM"
    unit = "/".join(filter(None, known)) if all(known) and short else None
    return f"{unit}^{power}" if unit and power else unit
