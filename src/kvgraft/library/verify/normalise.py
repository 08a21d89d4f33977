r"""One way to write an answer: characters, wrappers, units and plain-text operators made LaTeX.

Nothing here judges. What comes out says the same as what went in, or the same less its unit, which
is kept apart. `math_compare` compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvgraft.library.verify.units import without_unit


@dataclass(frozen=True)
class Normal:
    """An answer in LaTeX without delimiters, and its unit (None: no unit, or an unknown one)."""

    text: str
    unit: str | None


def normalise(text: str) -> Normal:
    """`text` in its normal form. Raises nothing."""
    text = _commands(text.translate(_CHARACTERS))
    unit: str | None = None
    while True:
        before = text
        text = _unwrapped(text)
        text, found = without_unit(text)
        unit = found or unit
        if text == before:
            return Normal(_operators(text), unit)


# --- characters -------------------------------------------------------------------------------

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\r\n\t", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
        **dict.fromkeys("\u2018\u2019\u201c\u201d", '"'),
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        **{char: f"^{{{digit}}}" for digit, char in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **{char: f"_{{{digit}}}" for digit, char in enumerate("₀₁₂₃₄₅₆₇₈₉")},
        "\u00d7": r"\times ",
        "\u00f7": r"\div ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2260": r"\ne ",
        "\u2208": r"\in ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2205": r"\emptyset ",
        "\u00b1": r"\pm ",
        "\u00b0": r"^\circ ",
        "\u221a": r"\sqrt ",
        "\u00bc": r"\frac{1}{4}",
        "\u00bd": r"\frac{1}{2}",
        "\u00be": r"\frac{3}{4}",
        "\u2153": r"\frac{1}{3}",
        "\u2154": r"\frac{2}{3}",
        "\uff05": "%",
    }
)

_SAME_COMMANDS = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?<!\\)\\[,;:> ]|\\q?quad(?![A-Za-z])|~"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:displaystyle|boxed|fbox)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:left|right)\s*\."), ""),
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (
        re.compile(r"\\(?:mbox|text(?:rm|bf|it|sf|tt|normal)|math(?:rm|bf|it|sf|tt))(?=\s*\{)"),
        r"\\text",
    ),
    (re.compile(r"\\(?:le|ge)q(?:slant)?(?![A-Za-z])"), lambda match: match[0][:3]),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\sqrt\s+(?=[\[{(0-9])"), r"\\sqrt"),
    (re.compile(r"\\sqrt([0-9]+|[a-z])(?![0-9])"), r"\\sqrt{\1}"),
)


def _commands(text: str) -> str:
    for pattern, same in _SAME_COMMANDS:
        text = pattern.sub(same, text)
    return text


# --- wrappers ---------------------------------------------------------------------------------

_PAIRS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ('"', '"'))
_LABEL = re.compile(r"\(([A-Za-z])\)|([A-Za-z])[.)]")
_TEXT = re.compile(r"\\text\s*(?=\{)")


def _unwrapped(text: str) -> str:
    """`text` without what only surrounds it, and without punctuation behind it."""
    while True:
        before = text
        text = text.strip(" `")
        while text[-1:] and text[-1] in ".,;:" and text[-2:-1] != "\\":
            text = text[:-1].rstrip()
        for opening, closing in _PAIRS:
            inner = text[len(opening) : -len(closing)]
            if text == opening + inner + closing and opening not in inner:
                text = inner
        start = match.end() if (match := _TEXT.match(text)) else 0
        if text[start : start + 1] == "{" and _closing_brace(text, start) == len(text) - 1:
            inner = text[start + 1 : -1]
            if start or "," not in inner:
                text = inner if start or inner.strip() else r"\emptyset"
            else:
                text = rf"\{{{inner}\}}"  # a set, as plain text writes it
        if match := _LABEL.fullmatch(text):
            text = match[1] or match[2]
        if text == before:
            return text


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, opening):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return -1


# --- operators that plain text writes in its own way ------------------------------------------

_NO_LETTER_BEFORE = r"(?<![A-Za-z\\])"
_SAME_OPERATORS = (
    (re.compile(r"\\?\$"), ""),
    (re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])\s*"), ""),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(rf"{_NO_LETTER_BEFORE}(?:infinity|infty|inf|oo)(?![A-Za-z])", re.I), r"\\infty "),
    (re.compile(rf"{_NO_LETTER_BEFORE}pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(rf"{_NO_LETTER_BEFORE}sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(rf"{_NO_LETTER_BEFORE}(sin|cos|tan|log|ln|exp)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])"), r"\\cup "),
    (re.compile(r"\s+"), " "),
)
_PROPORTION = re.compile(r"[^:,{}()\[\]]+(?::[^:,{}()\[\]]+){2,}")
_GROUPED_DIGITS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")


def _operators(text: str) -> str:
    for pattern, same in _SAME_OPERATORS:
        text = pattern.sub(same, text)
    # A proportion of three or more: to divide one after the other would make 3:4:5 and 3:5:4 one.
    if _PROPORTION.fullmatch(text):
        text = f"({text.replace(':', ',')})"
    # In brackets a comma without a space may just as well separate: (1,234) is a point.
    if not re.search(r"[(\[]|\\\{", text):
        text = _GROUPED_DIGITS.sub(lambda match: match[0].replace(",", ""), text)
    return text.strip()
