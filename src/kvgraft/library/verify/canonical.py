"""One text for every way to write the same answer, so that answers can be counted.

Counting needs an equality that is transitive and cheap, so it is narrower than what `math`
forgives: numbers are one where they are exactly equal, in the same unit; words are one whatever
their case; everything else is one where its normal form is. Unequal answers never become one. A
whole number that has still to be worked out, `144/12`, is not the answer 12: so says `math` too.
"""

from __future__ import annotations

import re
from fractions import Fraction

from kvgraft import limits
from kvgraft.library.verify.normalise import normalise
from kvgraft.library.verify.number import is_evaluated, parse_number

# One or two letters may be variables, which their case tells apart.
_WORDS = re.compile(r"(?:[^\W\d_]{3,}|(?i:no))(?:[ -][^\W\d_]+)*")
# A space that parts nothing: behind a sign, before one, or between a number and a letter.
_NEEDLESS_SPACE = re.compile(r"(?<![^\W_]) | (?![^\W_])|(?<=[0-9]) (?=[^\W\d_])")
_LONG = 10**100  # a number from here on is written in base 16, which takes linear time


def canonical_answer(text: str) -> str | None:
    """The canonical form of an answer: `016` and `16.0` give one, as do `1/2` and
    `0.5`. None for a text without content, or over `limits.MAX_ANSWER_CHARS`. Raises nothing.
    """
    if len(text) > limits.MAX_ANSWER_CHARS:
        return None
    normal = normalise(text)
    if not normal.text:
        return None
    # With a colon it may be a time of day: 12:30 and 2:05 are one ratio, and not one answer.
    number = None if ":" in normal.text else parse_number(normal.text)
    if number is not None and (number.value.denominator > 1 or is_evaluated(normal.text)):
        form = _written(number.value)
    elif _WORDS.fullmatch(normal.text):
        form = normal.text.casefold()
    else:
        form = _NEEDLESS_SPACE.sub("", normal.text)
    return form if normal.unit is None else f"{form} {normal.unit}"


def _written(value: Fraction) -> str:
    above, below = value.numerator, value.denominator
    if max(abs(above), below) >= _LONG:
        return f"{above:#x}/{below:#x}"
    return str(above) if below == 1 else f"{above}/{below}"
