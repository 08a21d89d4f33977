r"""Finding the answer in what a model wrote, or saying that there is none.

The rules, in this order; the first that finds something decides:

    boxed   the last balanced `\boxed{...}` or `\fbox{...}`, or `\boxed 2`
    hash    the last line `#### 72`
    stated  the last "answer is ...", "Answer: ..." or "Final answer: ..."
    whole   the whole text, when it is one line and nothing but an expression
    last    the last number or formula of the last line that has one

A text that ends inside a box, a bracket or a formula was cut: what it holds is no answer. Every
rule takes time proportional to the text, whatever the text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from kvgraft import limits
from kvgraft.library.verify.base import Extraction
from kvgraft.library.verify.span import (
    NUMBER,
    Cut,
    Span,
    first_span,
    last_span,
    right_side,
    strip,
)

# How far from an anchor, or from the end of the text, an answer is looked for.
REACH_CHARS = 2 * limits.MAX_MATH_CHARS
# How many anchors are tried, from the last one back: more would cost time without bound.
MAX_ANCHORS = 8


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

# A few backslashes, because models also write `\\boxed` where a text is quoted twice.
_BOX_TOKEN = re.compile(r"(?P<box>\\{1,4}(?:boxed|fbox)(?![A-Za-z]))|\\.|[{}]", re.DOTALL)
_BOX_OPENS = re.compile(r"\s{0,8}\{")
_UNBRACED = re.compile(rf"\s{{0,8}}([-\u2212]?(?:{NUMBER})(?:/(?:{NUMBER}))?)")
# What a box holds when a text speaks of boxes: nothing, dots, a blank.
_PLACEHOLDER = re.compile(r"(?:[\s._?~\u2026{}$]|\\(?:[lcd]?dots|quad|[,;!: ]))*")


def _boxed(trace: str) -> Span | None:
    answer: Span | None = None
    answer_box: Span = (-1, -1)  # the box of `answer`, from its backslash to its last brace
    open_boxes = 0
    # One entry for each open brace: where a box and its content begin, or None for another brace.
    stack: list[Span | None] = []
    past = 0
    for token in _BOX_TOKEN.finditer(trace):
        start, end = token.span()
        if start < past:
            continue  # the brace of the box before it
        if token["box"]:
            if brace := _BOX_OPENS.match(trace, end):
                past = brace.end()
                stack.append((start, past))
                open_boxes += 1
            elif number := _UNBRACED.match(trace, end):
                answer, answer_box = number.span(1), (start, number.end())
        elif token[0] == "{":
            stack.append(None)
        elif token[0] == "}" and stack and (box := stack.pop()):
            open_boxes -= 1
            content = strip(trace, box[1], start)
            if content is None or _PLACEHOLDER.fullmatch(trace, *content):
                continue
            # A box that holds nothing but a box adds nothing.
            answer = answer if content == answer_box else content
            answer_box = (box[0], end)
    if answer is None and open_boxes:
        raise Cut
    return answer


# --- hash and stated --------------------------------------------------------------------------

_HASH = re.compile(r"^[ \t]{0,8}####[ \t]{0,8}(?=[^\s#])", re.MULTILINE)
# After the value at most two words, a unit: `#### 3. Add them up` is a heading.
_HASH_REST = re.compile(r"(?: [^\W\d_]+){0,2}[\s*.!]*")
_ANCHOR = re.compile(
    r"""(?ix) \b (?P<final> final [ ]{1,3} )? answers? \b [*_\s]{0,4}
        (?: [^.\n:=]{0,60}? \b (?: is | are ) \b [\s:*_]{0,8}
          | (?P<colon> [:=] ) [\s:*_=]{0,8}
          | (?(final) (?<=\n) [\s*_]{0,8} | (?!) ) )
        (?: (?: the | simply | just | exactly | thus | therefore | then | indeed | equal[ ]to
              | given[ ]by | option | choice | number | value ) \b ,? [ ]{1,3} ){0,3}
        [*_"'\u201c`]{0,3}"""
)
_END_OF_LINE = r"(?=[\"'\u201d`*_.!]{0,4}\s*(?:\n|\Z))"
_FEW_WORDS = re.compile(rf"[^\W\d_]+(?: [^\W\d_]+){{0,2}}{_END_OF_LINE}")
_TRUTH_WORD = re.compile(r"(?i)(?:yes|no|true|false|none)(?=[\s.,;!*_\"'`\u201d]|\Z)")


def _last_of(
    trace: str, anchor: re.Pattern[str], value: Callable[[str, re.Match[str]], Span | None]
) -> Span | None:
    for match in reversed(deque(anchor.finditer(trace), MAX_ANCHORS)):
        if span := value(trace, match):
            return span
    return None


def _hash(trace: str) -> Span | None:
    return _last_of(trace, _HASH, _hash_value)


def _hash_value(trace: str, anchor: re.Match[str]) -> Span | None:
    high = min(len(trace), anchor.end() + REACH_CHARS)
    newline = trace.find("\n", anchor.end(), high)
    high = high if newline < 0 else newline
    span = first_span(trace, anchor.end(), high)
    if span is None or not _HASH_REST.fullmatch(trace, span[1], high):
        return None
    return span


def _stated(trace: str) -> Span | None:
    return _last_of(trace, _ANCHOR, _stated_value)


def _stated_value(trace: str, anchor: re.Match[str]) -> Span | None:
    low = anchor.end()
    span = first_span(trace, low, min(len(trace), low + REACH_CHARS))
    if span is not None:
        return right_side(trace, span)
    # Words are taken where the anchor leaves no doubt that an answer follows.
    strong = anchor["final"] or anchor["colon"]
    words = (strong and _FEW_WORDS.match(trace, low)) or _TRUTH_WORD.match(trace, low)
    return words.span() if words else None


# --- whole and last ---------------------------------------------------------------------------

_AROUND = re.compile(r"[\s*_`.,;:!$\\()\[\]]*")


def _whole(trace: str) -> Span | None:
    bounds = strip(trace, 0, len(trace))
    if bounds is None or bounds[1] - bounds[0] > REACH_CHARS or trace.find("\n", *bounds) >= 0:
        return None
    if words := _TRUTH_WORD.match(trace, *bounds):
        span: Span | None = words.span()
    else:
        span = first_span(trace, *bounds)
    if span is None or not _AROUND.fullmatch(trace, bounds[0], span[0]):
        return None
    return span if _AROUND.fullmatch(trace, span[1], bounds[1]) else None


def _last(trace: str) -> Span | None:
    low = max(0, len(trace) - REACH_CHARS)
    if low and (space := re.compile(r"\s").search(trace, low)):
        low = space.end()  # not in the middle of a number
    elif low:
        return None
    span = last_span(trace, low, len(trace))
    return None if span is None else right_side(trace, span)


_RULES: tuple[tuple[str, Callable[[str], Span | None]], ...] = (
    ("boxed", _boxed),
    ("hash", _hash),
    ("stated", _stated),
    ("whole", _whole),
    ("last", _last),
)
