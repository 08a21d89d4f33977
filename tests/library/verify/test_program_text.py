"""Which program a trace holds."""

from __future__ import annotations

import textwrap
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.library.verify.program_text import Program, program_in

CODE = "def f(x):\n    return x + 1\n"


def source(trace: str) -> str | None:
    program = program_in(trace)
    return None if program is None else program.source


@pytest.mark.parametrize("tag", ["python", "Python", "py", "python3", "PY3"])
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_a_fenced_block(tag: str, fence: str) -> None:
    trace = f"Here it is:\n\n{fence}{tag}\n{CODE}{fence}\nThat is all. 42 = (6 * 7)"
    program = program_in(trace)
    assert program is not None
    assert program.source == CODE == trace[program.start : program.end]


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("```python\na = 1\n```\nor rather\n```python\nb = 2\n```", "b = 2\n"),
        ("```python\na = 1\n```\nIt prints\n```\n1\n```", "a = 1\n"),
        ("```python\na = 1\n```\nIt prints\n```text\nx = (1)\n```", "a = 1\n"),
        ("```\na = 1\n```\nIt prints\n```\n12 apples\n```", "a = 1\n"),
        ("```\na = 1\n```\nIt prints\n```\n12\n```", "a = 1\n"),
        ("```\nno = = python\n```", "no = = python\n"),
        ("```c++\nint x = 1;\n```", "int x = 1;\n"),
        ("```python title=a.py\na = 1\n```", "a = 1\n"),
        ("```python\r\na = 1\r\n```\r\n", "a = 1\r\n"),
        ("1. So:\n   ```python\n   if x:\n       y = 1\n   ```\n", "if x:\n    y = 1\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("```python\na = 1", "a = 1"),
        ("```python\na = (1,", None),
        ("```python\na = 1\n```\nor\n```python\nb = (2,", "a = 1\n"),
        ("```python\n\n```", None),
        ("```python\n```", None),
        ("```python", None),
        (CODE, CODE),
        ("print(6 * 7)", "print(6 * 7)"),
        ("import os", "import os"),
        ("  x = 1\n  print(x)\n", "x = 1\nprint(x)\n"),
        ("Yes", None),
        ("72", None),
        ("The answer is 72.", None),
        ("f(x) = 2 x", None),
        ("x = '\0'", None),
        ("", None),
        ("inline ``` is no fence (x=1)", None),
    ],
)
def test_which_block(trace: str, expected: str | None) -> None:
    assert source(trace) == expected


def test_a_trace_over_the_cap_holds_none() -> None:
    assert program_in("```python\nx = 1\n```\n" + " " * limits.MAX_TRACE_CHARS) is None


def test_a_warning_of_the_program_is_not_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert source("x = 1 is 1\ny = '\\d'") == "x = 1 is 1\ny = '\\d'"


@given(st.text(alphabet="`~\n py=(x) ", max_size=60))
@example("```py\n``` ```\nx=(1)\n```")
def test_any_text(trace: str) -> None:
    program = program_in(trace)
    assert program is None or program == Program(
        textwrap.dedent(trace[program.start : program.end]), program.start, program.end
    )
    assert program is None or program.source.strip()


# Parsers have been brought down by nesting: each as deep as the cap on characters allows.
@pytest.mark.parametrize(
    "deep",
    [
        *("(" * 60_000, "[" * 60_000 + "]", "-" * 60_000 + "(1)", "not " * 15_000 + "(1)"),
        *("a=" + "x." * 30_000 + "x", "a=" + "1+" * 30_000 + "1", "a=" + "1**" * 20_000 + "1"),
        *("a=" + "x()" * 20_000, "a=" + "lambda:" * 9_000 + "1", "a=" + "f'{" * 20_000),
        *("a=" + "x if x else " * 5_000 + "x", "await " * 10_000 + "f()", "a=" * 30_000 + "1"),
        "".join(" " * n + "if (x):\n" for n in range(300)) + " " * 300 + "y = 1",
        "try: f()\nexcept: g()\n" * 3_000,
        "if (x): y\n" + "elif (x): y\n" * 5_000,
    ],
    ids=lambda text: text[:12],
)
def test_deep_nesting_is_no_danger(deep: str) -> None:
    assert source(deep) in (None, deep)
