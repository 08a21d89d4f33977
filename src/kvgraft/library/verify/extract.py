r"""Finding the answer in what a model wrote, or saying that there is none.

The rules, in this order; the first that finds something decides:

    boxed   the last balanced `\boxed{...}` or `\fbox{...}`, or `\boxed 2`
    hash    the last line `#### 72`
    stated  the last "answer is ...", "Answer: ..." or "Final answer: ..."
    whole   the whole text, when it is one line and nothing but an expression
    last    the last number or formula of the last line that has one

A text that ends inside a box or inside a brace was cut: what it holds is no answer. Every rule
runs in time proportional to the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvgraft import limits
from kvgraft.library.verify.base import Extraction
from kvgraft.library.verify.span import NUMBER, Cut, first_span, last_span

# How far from an anchor, or from the end of the text, an answer is looked for.
REACH_CHARS = 2 * limits.MAX_MATH_CHARS


def extract(trace: str) -> Extraction | None:
    """The answer in `trace`, or None; a trace over `limits.MAX_TRACE_CHARS` has none.

    Raises nothing; `trace[start:end] == answer`, and the answer has no white space at its ends.
    """
    if len(trace) > limits.MAX_TRACE_CHARS:
        return None
    try:
        for rule, find in _RULES:
            span = find(trace)
            if span is not None:
                return Extraction(trace[span[0] : span[1]], *span, rule)
    except Cut:
        pass
    return None


# --- boxed ------------------------------------------------------------------------------------

# A few backslashes, because models also write `\\boxed` where text is quoted twice.
_BOX_TOKEN = re.compile(r"\\{1,4}(?:boxed|fbox)(?![A-Za-z])|\\.|[{}]", re.DOTALL)
_BOX_OPENS = re.compile(r"\s{0,8}\{")
_UNBRACED = re.compile(rf"\s{{0,8}}([-\u2212]?(?:{NUMBER})(?:/(?:{NUMBER}))?)")
# What stands in a box when a text speaks of boxes: nothing, dots, a blank.
_PLACEHOLDER = re.compile(r"(?:[\s._?~\u2026{}$]|\\(?:[lcd]?dots|quad|,|;|!|:))*")
_WHOLE_BOX = re.compile(r"\s*\\{1,4}(?:boxed|fbox)\s{0,8}\{")


def _boxed(trace: str) -> tuple[int, int] | None:
    closed: tuple[int, int] | None = None
    open_boxes = 0
    # One entry for each open brace: where the content of a box begins, or -1 for another brace.
    stack: list[int] = []
    past = 0
    for token in _BOX_TOKEN.finditer(trace):
        start, end = token.span()
        if start < past:
            continue  # the brace that opened the box before it
        if trace[end - 1] == "}" and end - start == 1:
            begin = stack.pop() if stack else -1
            if begin >= 0:
                open_boxes -= 1
                closed = _filled(trace, begin, start) or closed
        elif trace[start] == "{":
            stack.append(-1)
        elif end - start > 2:
            if brace := _BOX_OPENS.match(trace, end):
                past = brace.end()
                stack.append(past)
                open_boxes += 1
            elif number := _UNBRACED.match(trace, end):
                closed = number.span(1)
    if closed is None and open_boxes:
        raise Cut
    return closed


def _filled(trace: str, start: int, end: int) -> tuple[int, int] | None:
    """The span without white space, or None for a box that only holds a place."""
    if _PLACEHOLDER.fullmatch(trace, start, end):
        return None
    return _strip(trace, start, end)


def _strip(trace: str, start: int, end: int) -> tuple[int, int]:
    while start < end and trace[start].isspace():
        start += 1
    while end > start and trace[end - 1].isspace():
        end -= 1
    return start, end


# --- hash and stated --------------------------------------------------------------------------

_HASH = re.compile(r"^[ \t]{0,8}####[ \t]*(?=[^\s#])", re.MULTILINE)
# After the value on such a line: at most two words (a unit). `#### 3. Compute` is a heading.
_HASH_REST = re.compile(r"(?:\.?|\s+[^\W\d_]+){1,3}[\s*.]*", re.UNICODE)
_ANCHOR = re.compile(
    r"""(?ix) \b (?P<final>final [ ]{1,3})? answers? \b [*_\s]{0,4}
        (?: [^.\n:=]{0,60}? \b (?: is | are ) \b [\s:*_]{0,8}
          | [:=] [\s:*_=]{0,8}
          | (?<=\n) [\s*_]{0,8} )
        (?: (?: the | simply | just | exactly | thus | therefore | then | indeed | equal[ ]to
              | given[ ]by | option | choice | number | value ) \b ,? [ ]{1,3} ){0,3}
        [*_"'\u201c`]{0,3}"""
)
_FEW_WORDS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}(?=[\"'\u201d`*_.!]{0,4}\s*(?:\n|$))")
_TRUTH_WORD = re.compile(r"(?i)(?:yes|no|true|false|none)\b(?=[\s.,;!*_\"'\u201d]|$)")


def _hash(trace: str) -> tuple[int, int] | None:
    return _last_of(trace, _HASH, _hash_value)


def _hash_value(trace: str, anchor: re.Match[str]) -> tuple[int, int] | None:
    line_end = _line_end(trace, anchor.end())
    span = first_span(trace, anchor.end(), line_end)
    if span is None or not _HASH_REST.fullmatch(trace, span[1], line_end):
        return None
    return span
