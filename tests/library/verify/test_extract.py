"""Extraction: what is an answer, what is none, and how long it takes to tell."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.library.verify.extract import extract

FOUND = [
    # boxed
    (r"so it is \boxed{72}.", "72", "boxed"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
    (r"\boxed 2", "2", "boxed"),
    (r"\boxed -18 done", "-18", "boxed"),
    (r"\fbox{7}", "7", "boxed"),
    (r"\boxed {7}", "7", "boxed"),
    (r"\\boxed{7}", "7", "boxed"),
    (r"first \boxed{4}, no: \boxed{5}", "5", "boxed"),
    (r"\boxed{\boxed{5}}", "5", "boxed"),
    (r"\boxed{\boxed{3} + \boxed{4}}", r"\boxed{3} + \boxed{4}", "boxed"),
    ("\\boxed{\r\n  73\r\n}\r\n", "73", "boxed"),
    (r"\boxed{5} and then \boxed{12", "5", "boxed"),
    (r"a stray { brace, \boxed{5}", "5", "boxed"),
    (r"}} closed too often, \boxed{5}", "5", "boxed"),
    (r"\boxed{5} is in \boxed form", "5", "boxed"),
    (r"\boxed{5}, as asked in \boxed{}", "5", "boxed"),
    (r"\boxed{5} (write \boxed{...})", "5", "boxed"),
    (r"\boxed{28\%}", r"28\%", "boxed"),
    # hash
    ("work\n#### 72", "72", "hash"),
    ("#### $1,234 dollars\n", "1,234", "hash"),
    ("#### -5\r\n", "-5", "hash"),
    # stated
    ("Final Answer: **73**", "73", "stated"),
    ("**Final Answer**\n\n73", "73", "stated"),
    ("**Final Answer:** $\\frac{3}{4}$.", r"\frac{3}{4}", "stated"),
    ("The answer is 72, in total, so that is what they earn.", "72", "stated"),
    ("The answer is $72.", "72", "stated"),
    ("The answer is 28% of it.", "28%", "stated"),
    ("The answer is 1,000 dollars.", "1,000", "stated"),
    ("The answer is \u221218.", "\u221218", "stated"),
    ("The answer is - 18.", "- 18", "stated"),
    ("The answer is (C).", "(C)", "stated"),
    ("Answer: B", "B", "stated"),
    ("Answer: \u201c72\u201d", "72", "stated"),
    ("Answer: `72`", "72", "stated"),
    ("The answer is:\n\n$$x = 5$$\n", "5", "stated"),
    ("the answer is x = 1 or x = 2.", "x = 1 or x = 2", "stated"),
    ("The answer to the problem is therefore 5.", "5", "stated"),
    ("The answer is 2ab.", "2ab", "stated"),
    ("The answer is 2 + ab.", "2 + ab", "stated"),
    ("The answer is 5 million.", "5 million", "stated"),
    ("The answer is 3. Earlier I thought the answer was 4.", "3", "stated"),
    ("The answer is 4. No, the answer is 3!", "3", "stated"),
    ("The answer is yes, it is.", "yes", "stated"),
    ("Final answer: no solution", "no solution", "stated"),
    ("The final answer is east.", "east", "stated"),
    # whole
    ("016", "016", "whole"),
    ("C", "C", "whole"),
    ("(C)", "(C)", "whole"),
    ("x=5", "x=5", "whole"),
    (r"12^{\text{th}}", r"12^{\text{th}}", "whole"),
    ("28 percent", "28 percent", "whole"),
    ("**73**\n", "73", "whole"),
    ("$5$ and $7$", "$5$ and $7$", "whole"),
    (r"(-\infty,3)", r"(-\infty,3)", "whole"),
    ("x\u00b2", "x\u00b2", "whole"),
    ("Yes.", "Yes", "whole"),
    # last
    ("The sum of 3 and 5 is 8.", "8", "last"),
    ("so 3 + 4 = 7.", "7", "last"),
    ("thus x = 22/3 \u2248 7.33", "22/3", "last"),
    ("thus x^2 + y^2 = 25", "x^2 + y^2 = 25", "last"),
    ("So the point is (3, 4).", "(3, 4)", "last"),
    ("It costs $72 and then $15 more.", "15", "last"),
    ("1. Add 3 and 4.\n2. That gives 7.", "7", "last"),
    ("- 5 apples\n- 6 pears", "6", "last"),
    ("a 5 % chance", "5 %", "last"),
    ("Therefore it is 12, where $n$ is an integer.", "12", "last"),
    ("The result is $\\pi$.", r"\pi", "last"),
    ("in the ratio 3:5", "3:5", "last"),
]

NOT_FOUND = [
    "",
    " \r\n\t ",
    "...",
    "no idea",
    "I do not know the answer.",
    r"Write it in \boxed form.",
    r"Put the answer in \boxed{}.",
    r"\boxed{...}",
    r"\boxed{12",
    r"The answer is 5, that is \boxed{5",
    r"\boxed{\frac{1}{2}",
    r"The answer is \frac{1}{",
    r"The answer is \(\frac{1}",
    "so $x = 12",
    "The point is (3, 4",
    "H2O",
    "1. one\n2. two",
    "((((",
    "$$",
    "\\",
]


@pytest.mark.parametrize(("trace", "answer", "rule"), FOUND)
def test_answers_are_found(trace: str, answer: str, rule: str) -> None:
    found = extract(trace)
    assert found is not None
    assert (found.answer, found.rule) == (answer, rule)
    assert trace[found.start : found.end] == answer


@pytest.mark.parametrize("trace", NOT_FOUND)
def test_where_there_is_none_none_is_found(trace: str) -> None:
    assert extract(trace) is None


def test_a_cut_box_stays_cut_whatever_stood_before() -> None:
    # The whole of a good trace, cut at every place inside its box.
    trace = r"Three and four make 7. So: \boxed{\frac{14}{2}}"
    start = trace.index("{")
    for end in range(start + 1, len(trace)):
        assert extract(trace[:end]) is None, trace[:end]


PIECES = st.sampled_from(
    [
        *("\\boxed", "\\boxed{", "\\fbox{", "{", "}", "\\{", "\\}", "\\frac{1}{2}", "\\text{ cm}"),
        *(
            "$",
            "$$",
            "\\(",
            "\\)",
            "\\[",
            "\\]",
            "#### ",
            "\n",
            "\r\n",
            " ",
            ", ",
            ". ",
            "**",
            "- ",
        ),
        *("The answer is ", "Final Answer: ", "answer", "and ", "or ", "words ", "a ", "I ", "C"),
        *(
            "7",
            "1,234",
            "0.5",
            "1e3",
            "x",
            "=",
            "+",
            "-",
            "\u2212",
            "%",
            "(",
            ")",
            "[",
            "]",
            "\u00bd",
        ),
        *("\u0661", "\u00e9", "\ud83d\ude00", "\u0301", "\x00"),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


@given(TEXTS)
@example("\\boxed{" * 50 + "}" * 50)
def test_any_text_is_safe(trace: str) -> None:
    found = extract(trace)
    if found is not None:
        assert trace[found.start : found.end] == found.answer
        assert found.answer
        assert found.answer == found.answer.strip()


@given(st.integers(), TEXTS.filter(lambda text: "box" not in text))
def test_the_last_box_wins_over_all_that_is_around_it(number: int, before: str) -> None:
    # Only an opened brace or a backslash before it could change what the box is.
    before = before.replace("\\", "").replace("{", "")
    found = extract(f"{before} \\boxed{{{number}}} The answer is 3.")
    assert found is not None
    assert (found.answer, found.rule) == (str(number), "boxed")


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(lambda n: f"{n:f}"))
def test_stated_numbers_come_back_whole(number: object) -> None:
    found = extract(f"First 3, then 5.\nThe answer is {number}.\n")
    assert found is not None
    assert found.answer == str(number)


LONG = 1_000_000


@pytest.mark.parametrize(
    "unit",
    [
        *("{", "}", "{}", "\\boxed{", "\\boxed{}", "\\boxed 5 ", "\\", "\\{", "(", "5(", "5)", "$"),
        *("$1 ", "$x$ is ", "\\(x", "answer is ", "answer is (", "answer: ", "#### 5 x y z\n"),
        *("1", "1,234,", "x=", "1=", "5 and ", " ", "\n", "- ", "a b ", "\\text{", "is $x$ 5) ("),
    ],
)
def test_a_megabyte_of_anything_takes_linear_time(unit: str) -> None:
    trace = unit * (LONG // len(unit))
    started = time.monotonic()
    extract(trace)
    # About 0.2 s; with time in the square of the length it would be minutes.
    assert time.monotonic() - started < 20


def test_nested_boxes_to_any_depth() -> None:
    depth = 100_000
    found = extract("\\boxed{" * depth + "5" + "}" * depth)
    assert found is not None
    assert found.answer == "5"


def test_long_answers_are_whole_or_not_at_all() -> None:
    digits = "7" * 5_000
    for trace in (f"\\boxed{{{digits}}}", f"The answer is {digits}.", digits, f"I get {digits}."):
        found = extract(trace)
        assert found is not None
        assert found.answer == digits
    assert extract(f"The answer is {'7' * 100_000}.") is None
    assert extract(f"I get {'7' * 100_000}") is None


def test_a_trace_over_the_cap_has_no_answer() -> None:
    trace = " " * limits.MAX_TRACE_CHARS + r"\boxed{5}"
    assert extract(trace) is None
    assert extract(trace[9:]) is not None
