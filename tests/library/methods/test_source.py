"""What is taken for a program, what is refused, and when two programs are two."""

from __future__ import annotations

import pytest

from kvgraft.library.methods.source import Program, Unusable, memorises, program_of, read_program

SUM = "def solve(a, b):\n    return a + b\n"


def program(body: str, names: str = "a, b") -> Program:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return program_of(f"def solve({names}):\n{lines}\n", len(names.split(",")))


@pytest.mark.parametrize(
    "text",
    [
        SUM,
        f"```python\n{SUM}```",
        f"Sure:\n```py\n{SUM}```\nThat adds them.",
        f"```\n{SUM}```",
        f"```python\nprint(1)\n```\nand\n```python\n{SUM}```",
        f"```python\n{SUM}\nprint(solve(1, 2))\n```",
        f"```python\n{SUM}\nassert solve(1, 2) == 3\nif __name__ == '__main__':\n    main()\n```",
        "```python\ndef solve(a: int, b: int) -> int:\n    return a + b\n```".replace(": int", ""),
        '```python\ndef solve(a, b):\n    """Adds."""\n    # together\n    return a + b\n```',
    ],
)
def test_the_program_in_a_text(text: str) -> None:
    found = program_of(text, 2)
    assert "return a + b" in found.source
    for word in ("print", "assert", "main", "Adds", "together"):
        assert word not in found.source
    assert read_program(found.source) == found


def test_what_a_program_needs_is_kept() -> None:
    text = "import math\nTABLE = {'x': 1}\n\ndef other(a):\n    return math.gcd(a, TABLE['x'])\n\n"
    found = program_of(f"```python\n{text}def solve(a):\n    return other(a)\n```", 1)
    for word in ("import math", "TABLE = ", "def other", "def solve"):
        assert word in found.source
    bare = program_of("import math\n\ndef solve(a):\n    return math.gcd(a, 2)", 1)
    assert bare.source.startswith("import math\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no function"),
        ("I cannot do that.", "no function"),
        ("```python\ndef sovle(a, b):\n    return a\n```", "no function"),
        ("def solve(a):\n    return a", "2 arguments"),
        ("def solve(a, b, c):\n    return a", "2 arguments"),
        ("def solve(a, b=3):\n    return a", "2 arguments"),
        ("def solve(*a):\n    return a", "2 arguments"),
        ("def solve(a, b, **c):\n    return a", "2 arguments"),
        ("def solve(a, b):\n    return a +", "no Python"),
        ("def solve(a, b):\nreturn a", "no Python"),
        ("def solve(a, b):\n    return '\0'", "no Python"),
        (f"{SUM}\n{SUM}", "twice"),
        ("import random\n\ndef solve(a, b):\n    return random.random()", "imports random"),
        ("import os\n\ndef solve(a, b):\n    return os.getpid()", "imports os"),
        ("from time import time\n\ndef solve(a, b):\n    return time()", "imports time"),
        ("def solve(a, b):\n    import sys\n    return sys.argv", "imports sys"),
        ("from . import x\n\ndef solve(a, b):\n    return a", "imports ."),
        ("def solve(a, b):\n    return open('/etc/passwd').read()", "uses open"),
        ("def solve(a, b):\n    return eval('a+b')", "uses eval"),
        ("def solve(a, b):\n    return __import__('os').getpid()", "uses __import__"),
        ("def solve(a, b):\n    return hash(a)", "uses hash"),
        ("def solve(a, b):\n    return id(a)", "uses id"),
        ("def solve(a, b):\n    return getattr(a, 'real')", "uses getattr"),
        ("def solve(a, b):\n    return ().__class__.__bases__", "uses .__"),
        ("import datetime\n\ndef solve(a, b):\n    return datetime.date.today()", "uses .today"),
        (f"```python\nimport functools\n\n@functools.cache\n{SUM}```", "decorates"),
        ("N = 0\n\ndef solve(a, b):\n    global N\n    return N", "Global"),
        ("class A:\n    pass\n", "no function"),
        ("def solve(a, b):\n    class A:\n        pass\n    return a", "ClassDef"),
        (SUM.replace("return", "a = b\n    " * 800 + "return"), "too long"),
        (SUM + "#" * 20_000, "too long"),
        ("def solve(a, b):\n    return " + "+".join(["a"] * 450), "written down"),
        ("def solve(a, b):\n    return 0x" + "f" * 8_000, "written down"),
        ("def solve(a, b):\n    return " + "(" * 500 + "a" + ")" * 500, "no Python"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        program_of(text, 2)


def test_a_text_that_was_cut_off() -> None:
    with pytest.raises(Unusable, match="cut off"):
        program_of(SUM, 2, finished=False)  # it may have gone on
    with pytest.raises(Unusable, match="cut off"):
        program_of(f"```python\n{SUM}", 2, finished=False)
    assert program_of(f"```python\n{SUM}```\nThis", 2, finished=False)
    assert program_of(f"```python\n{SUM}", 2)  # the model came to its end


def test_two_derivations() -> None:
    builtin = program("return pow(a, b)")
    loop = program("r = 1\nfor _ in range(b):\n    r = r * a\nreturn r")
    assert builtin.differs(loop)
    assert loop.differs(builtin)
    for same in (
        "result = pow(a, b)\nreturn result",
        "return int(pow(a, b))",
        "if b < 0:\n    return 0\nreturn pow(a, b)",
        "def inner(x):\n    return pow(x, b)\nreturn inner(a)",
    ):
        assert not builtin.differs(program(same))
        assert not program(same).differs(builtin)
    assert builtin.differs(program("return a if b == 1 else a * solve(a, b - 1)"))
    assert not loop.differs(program("p = 1\nfor i in range(b):\n    p *= a\nreturn p"))


def test_a_program_that_holds_the_problems() -> None:
    known = [((17, 23), "391"), ((12, 30), "360"), ((5, 6), "30"), ((40, 41), "1640")]
    assert memorises(program("t = {(17, 23): 391, (12, 30): 360}\nreturn t[a, b]"), known)
    assert memorises(
        program("if a == 17 and b == 23: return 391\nif a == 12 and b == 30: return 360"), known
    )
    assert memorises(program("t = {'17 23': 0, 17: 23, 391: 12, 30: 360}\nreturn t[a]"), known)
    assert not memorises(program("if a == 17 and b == 23: return 391\nreturn a * b"), known)
    assert not memorises(program("return a * b"), known)
    # Answers alone are no problems: there are seven names of days.
    days = [(("2024-03-04",), "Monday"), (("2024-03-05",), "Tuesday")]
    table = program("import datetime\nreturn ['Monday', 'Tuesday'][0]", "a")
    assert not memorises(table, days)
    assert memorises(
        program("t = {'2024-03-04': 'Monday', '2024-03-05': 'Tuesday'}\nreturn t[a]", "a"), days
    )
    lists = [(([3, 8, 12],), "8"), (([4, 8, 30],), "8")]
    assert memorises(program("t = {(3, 8, 12): 8, (4, 8, 30): 8}\nreturn t[tuple(a)]", "a"), lists)
