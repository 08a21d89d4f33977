"""What a run says: of a program, and of calls to its functions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvgraft import limits as caps
from kvgraft.errors import InputError, UsageError
from kvgraft.sandbox.run import (
    Limits,
    NoValue,
    Ran,
    Session,
    call_functions,
    run_program,
)

# By our names: those of the kernel.
NAMESPACES = {
    **{"ipc": "ipc", "mount": "mnt", "network": "net"},
    **{"pid": "pid", "user": "user", "uts": "uts"},
}
SHORT = Limits(seconds=1.2, cpu_seconds=1.0, memory_bytes=256 * 2**20)


# --- programs -----------------------------------------------------------------------------------


def test_a_program() -> None:
    ran = run_program("import sys\nprint(sys.stdin.read().upper())\nprint('x', file=sys.stderr)")
    assert (ran.ended, ran.exit_status, ran.failure) == ("ended", 0, None)
    assert (ran.stdout, ran.stderr, ran.stdout_bytes, ran.values) == ("\n", "x\n", 1, ())
    assert 0 < ran.seconds < 10
    assert ran.cpu_seconds is not None
    assert 0 < ran.cpu_seconds < 10
    assert {"cpu", "files", "memory", "network", "processes", "tree"} <= set(ran.isolation)


@pytest.mark.parametrize("text", ["", "5\n", "a\u00e9\U0001f600\n", "x" * 300_000, "\ud800"])
def test_what_it_reads(text: str) -> None:
    ran = run_program("import sys; sys.stdout.write(sys.stdin.read())", stdin=text)
    assert ran.failure is None
    assert ran.stdout == text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def test_a_long_input_that_is_not_read() -> None:
    ran = run_program("print('done')", stdin="x" * 10_000_000)
    assert (ran.stdout, ran.failure) == ("done\n", None)


@pytest.mark.parametrize(
    ("source", "status", "failure"),
    [
        ("import sys; sys.exit(3)", 3, "exit status 3"),
        ("exit(4)", 4, "exit status 4"),
        ("quit()", 0, None),
        ("raise SystemExit('so')", 1, "exit status 1: so"),
        ("import os; os._exit(0)", 0, None),
        ("1 / 0", 1, "exit status 1: ZeroDivisionError: division by zero"),
        ("def f(:", 1, "exit status 1: SyntaxError: invalid syntax"),
        ("x = '\0'", 1, "null byte"),
        ("x = '\ud800'", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", 1, "exit status 1: KeyboardInterrupt"),
        ("(" * 5000, 1, "exit status 1"),
        ("import numpy", 1, "No module named 'numpy'"),
        ("import kvgraft.errors", 1, "No module named 'kvgraft.errors'"),
    ],
)
def test_how_a_program_ends(source: str, status: int, failure: str | None) -> None:
    ran = run_program(source)
    assert (ran.ended, ran.exit_status) == ("ended", status), ran
    assert not ran.forced
    if failure is None:
        assert ran.failure is None
    else:
        assert ran.failure is not None
        assert failure in ran.failure


def test_a_traceback_is_the_programs_own() -> None:
    ran = run_program("def f():\n    return 1 / 0\n\nf()\n")
    assert 'File "program.py", line 4, in <module>' in ran.stderr
    assert "child" not in ran.stderr


def test_it_runs_as_a_main_program_with_the_standard_library() -> None:
    source = """
import collections, dataclasses, datetime, decimal, fractions, itertools, json, re, tempfile
import zoneinfo
@dataclasses.dataclass
class A:
    x: int
if __name__ == "__main__":
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    with open("here", "w") as file:
        file.write("y")
    here = tempfile.gettempdir() + "/here"
    print(A(1), fractions.Fraction(1, 3), open(here).read(), sorted({"b", "a"}))
    print(open(0).read())
"""
    ran = run_program(source, stdin="input")
    assert ran.failure is None
    assert ran.stdout == "A(x=1) 1/3 y ['a', 'b']\ninput\n"


def test_nothing_is_kept_between_runs() -> None:
    for _ in range(2):
        ran = run_program("import os; print(os.listdir('.')); open('left', 'w')")
        assert ran.stdout == "[]\n"


def test_the_same_program_prints_the_same() -> None:
    source = "print(list({'a', 'b', 'c', 'd', 'e', 'f', 'g'}), hash('x'))"
    assert len({run_program(source).stdout for _ in range(3)}) == 1


def test_binary_and_broken_output() -> None:
    ran = run_program(
        "import sys; sys.stdout.buffer.write(b'a\\xff\\n'); sys.stdout.buffer.flush()"
    )
    assert (ran.stdout, ran.failure) == ("a\ufffd\n", None)


def test_five_thousand_digits() -> None:
    ran = run_program("x = int(input()); print(x * 10)", stdin="7" * 5_000)
    assert (ran.stdout, ran.failure) == ("7" * 5_000 + "0\n", None)


def test_output_is_kept_in_part_and_holds_nobody_up() -> None:
    source = "import sys\nfor _ in range(30): sys.stdout.write('x' * 2**20)\n"
    source += "sys.stderr.write('y' * 10**6)"
    ran = run_program(source, limits=Limits(output_bytes=2**20))
    assert ran.failure is None
    assert (ran.stdout_bytes, len(ran.stdout), len(ran.stderr)) == (30 * 2**20, 2**20, 10**6)


def test_a_source_that_is_too_long_is_not_run() -> None:
    ran = run_program("x = 1\n" * 2_000_000)
    assert (ran.ended, ran.exit_status, ran.isolation, ran.cpu_seconds) == (
        "refused",
        None,
        (),
        None,
    )
    assert ran.failure == f"a program of over {caps.MAX_SANDBOX_SOURCE_BYTES:,} bytes"
    assert ran.forced


def test_an_interpreter_that_does_not_start_is_no_failing_program() -> None:
    ran = run_program("print('x')", limits=Limits(memory_bytes=2 * 2**20))
    assert (ran.ended, ran.exit_status, ran.forced) == ("refused", None, True)
    assert ran.failure is not None
    assert "the interpreter did not start" in ran.failure
    value = one("def f(): return 1", limits=Limits(memory_bytes=2 * 2**20))
    assert isinstance(value, NoValue)
    assert "the interpreter did not start" in value.reason


def test_threads_and_processes_within_the_limits() -> None:
    source = """
import os, threading, time
held = bytearray(150 * 2**20)
for i in range(0, len(held), 4096): held[i] = 1
pids = []
for _ in range(5):
    if (pid := os.fork()) == 0:
        time.sleep(0.3)
        os._exit(held[0])
    pids.append(pid)
threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(3)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print([os.waitpid(pid, 0)[1] >> 8 for pid in pids])
"""
    ran = run_program(source, limits=SHORT)
    if "pid" not in ran.isolation:  # one process, there
        assert "PermissionError" in (ran.failure or "")
    else:
        # What children share with their parent is not counted once more for each.
        assert (ran.failure, ran.stdout) == (None, "[1, 1, 1, 1, 1]\n")


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_limits_are_positive(value: float) -> None:
    with pytest.raises(UsageError, match="cpu_seconds"):
        Limits(cpu_seconds=value)


# --- calls --------------------------------------------------------------------------------------


def one(source: str, *arguments: Any, limits: Limits = SHORT) -> Any:
    """What `f` of `source` comes to."""
    ran = call_functions(source, [("f", arguments)], limits=limits)
    (value,) = ran.values
    assert (ran.failure is None) == (not isinstance(value, NoValue))
    return value


def test_calls() -> None:
    source = """
count = 0
def f(x, *, y=1):
    global count
    count += 1
    return x, y, count
def g():
    raise ValueError("no")
"""
    ran = call_functions(source, [("f", [1]), ("g", []), ("f", [[2]], {"y": {3}}), ("h", [])])
    assert ran.values == (
        (1, 1, 1),
        NoValue("raised ValueError: no"),
        ([2], {3}, 2),
        NoValue("the program defines no such function"),
    )
    assert ran.failure == "call 2: raised ValueError: no"
    assert (ran.ended, ran.exit_status) == ("ended", 0)
    assert call_functions(source, [("f", [1])]).failure is None
    assert call_functions(source, []).failure is None


def test_values_cross_exactly() -> None:
    value = [None, True, 1, 1.5, "a", b"b", (1,), {2}, frozenset({3}), {4: 5}, 6j, 10**5_000]
    returned = one("def f(x): return x", value)
    assert returned == value
    assert [type(item) for item in returned] == [type(item) for item in value]


def test_an_argument_that_does_not_cross_is_the_callers_fault() -> None:
    with pytest.raises(InputError, match="object"):
        call_functions("def f(x): return x", [("f", [object()])])


# Each is to come to no value: what a program says of itself is not what it returned.
LIES = {
    "a lying number": """
class Liar(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f(): return Liar(3)""",
    "a lying text": """
class Liar(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def f(): return Liar('x')""",
    "an object equal to all": """
class Liar:
    def __eq__(self, other): return True
def f(): return Liar()""",
    "a lying list": """
class Liar(list):
    def __eq__(self, other): return True
def f(): return [Liar()]""",
    "a way out": "import os\ndef f(): os._exit(0)",
    "a way out with a handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(): exit(0)",
    "SystemExit": "def f(): raise SystemExit(0)",
    "an error whose text is an error": """
class E(Exception):
    def __str__(self): raise E()
def f(): raise E()""",
    "an error at the start": "def f(): return 1\nraise ValueError",
    "an exit at the start": "import sys\ndef f(): return 1\nsys.exit(0)",
    "a silent exit at the start": "import os\ndef f(): return 1\nos._exit(0)",
    "no function": "f = 3",
    "no Python": "the function f is",
    "a generator": "def f(): yield 1",
    "a value within itself": "def f():\n    x = []; x.append(x); return x",
    "a long value": "def f(): return 'x' * 2_000_000",
    "replies before the request": """
import json, os
for fd in range(3, 64):
    for line in ('{"dict":[["token",""],["value",1]]}', '{"value": 1}', '1'):
        try: os.write(fd, line.encode() + b'\\n')
        except OSError: pass
def f(): os._exit(0)""",
    "what is no reply": """
import os
def f():
    for fd in range(3, 64):
        try: os.write(fd, b'\\xff\\x00[[[\\n')
        except OSError: pass
    return 1""",
    "a reply by itself": """
import os
def f():
    for fd in range(3, 64):
        try: os.write(fd, b'{"dict":[["token",""],["value",1]]}\\n')
        except OSError: pass
    os._exit(0)""",
    "a closed channel": """
import os, time
def f():
    os.closerange(0, 64)
    time.sleep(0.3)""",
    "a channel without end": """
import os
def f():
    while True:
        for fd in range(3, 64):
            try: os.write(fd, b'x' * 65536)
            except OSError: pass""",
    "a question that only a judge may ask": """
def f(): return __ask__("g", [], {})""",
    "deep recursion": "def f(): return f()",
    "a crash": "import ctypes\ndef f(): ctypes.string_at(0)",
    "too much memory": "def f(): return len(bytearray(10**10))",
    "a signal to itself": "import os, signal\ndef f(): os.kill(os.getpid(), signal.SIGKILL)",
    "an endless loop": "def f():\n    while True: pass",
    "an endless start": "while True: pass\ndef f(): return 1",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_call_that_comes_to_no_value(lie: str) -> None:
    started = time.monotonic()
    value = one(LIES[lie])
    assert isinstance(value, NoValue), value
    assert 0 < len(value.reason) < 400
    assert time.monotonic() - started < SHORT.seconds + 1


# Each changes what it can reach of our code inside; the value is still the one that it returned.
TRICKS = {
    "standard output replaced": "import io, sys\nsys.stdout = io.StringIO()\nsys.stderr = None\n",
    "standard output closed": "import sys\nsys.stdout.close()\n",
    "a word of success": "print('5 passed'); import os; os.write(1, b'OK')\n",
    "another json": "import json\njson.dumps = lambda *a, **k: 'null'\n",
    "other builtins": "import builtins\nbuiltins.len = builtins.isinstance = lambda *a: True\n",
    "another os": "import os\nos._exit = os.write = lambda *a: None\n",
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n",
    "a handler at exit": "import atexit, time\natexit.register(time.sleep, 9)\n",
    "much printing": "print('x' * 5_000_000)\n",
    "a name of its own": "__name__ = 'x'; del __builtins__\n",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_changes_no_value(trick: str) -> None:
    value = one(TRICKS[trick] + "def f(x): return x + 1", 4)
    assert value in (5, NoValue("raised TypeError")) or isinstance(value, NoValue)
    assert value != 4
    if trick not in ("another json", "other builtins"):
        assert value == 5


def test_a_long_value_is_named_as_such() -> None:
    limits = Limits(output_bytes=1000)
    assert one("def f(): return 'x' * 900", limits=limits) == "x" * 900
    value = one("def f(): return 'x' * 1000", limits=limits)
    assert value == NoValue("gave a value of over 1,000 bytes")


def test_after_the_end_every_call_says_why() -> None:
    source = "import os\ndef f(): return 1\ndef g(): os._exit(7)"
    ran = call_functions(source, [("f", []), ("g", []), ("f", [])])
    assert ran.values[0] == 1
    assert [type(value) for value in ran.values[1:]] == [NoValue, NoValue]
    assert ran.values[1] == ran.values[2]
    assert (ran.exit_status, ran.failure) == (7, "exit status 7")


def test_a_session_is_late_as_a_whole() -> None:
    with Session("import time\ndef f(x): time.sleep(x)", limits=SHORT) as session:
        assert session.call("f", [0.1]) is None
        assert not session.forced
        assert session.call("f", [60]) == NoValue("over the limit of 1.2 s")
        assert session.forced
        ran = session.end()
    assert (ran.ended, ran.failure) == ("late", "over the limit of 1.2 s")


def test_a_judge_asks_for_anothers_functions() -> None:
    judge = "def evaluate(n): return __ask__('f', [n], {'y': 1}), __ask__('g', [], {})"
    asked: list[Any] = []

    def answer(*call: Any) -> Any:
        asked.append(call)
        return 5 if call[0] == "f" else NoValue("none there")

    with Session(judge) as session:
        value = session.call("evaluate", [4], ask=answer)
    assert value == ({"value": 5}, {"none": "none there"})
    assert asked == [("f", [4], {"y": 1}), ("g", [], {})]


# --- the process around it ----------------------------------------------------------------------


def test_the_namespaces_are_those_that_it_names() -> None:
    with ThreadPoolExecutor() as pool:
        future = pool.submit(run_program, "import time; time.sleep(0.5)")
        found: list[psutil.Process] = []
        while not found:
            assert not future.done()
            tree = psutil.Process().children(recursive=True)
            found = [process for process in tree if "child" in process.cmdline()]
        (program,) = found
        users = program.uids()
        other = {
            name
            for name, short in NAMESPACES.items()
            if Path(f"/proc/{program.pid}/ns/{short}").readlink()
            != Path(f"/proc/self/ns/{short}").readlink()
        }
        ran = future.result()
    assert other == (set(NAMESPACES) if "pid" in ran.isolation else set())
    if other:
        assert os.geteuid() != 0 or min(users) >= 2**30


def test_runs_side_by_side() -> None:
    def run(number: int) -> str:
        return run_program(f"import time; time.sleep(0.1); print({number})").stdout

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(16))) == [f"{number}\n" for number in range(16)]


def test_no_descriptor_and_no_process_is_left() -> None:
    def every() -> list[Ran]:
        return [
            run_program("pass"),
            run_program("while True: pass", limits=SHORT),
            call_functions("def f(): return 1", [("f", [])]),
            run_program("x" * 2_000_000),
        ]

    every()
    before = psutil.Process().num_fds(), psutil.Process().children(), threading.active_count()
    every()
    after = psutil.Process().num_fds(), psutil.Process().children(), threading.active_count()
    assert after == before


def test_leaving_a_session_ends_all_of_it() -> None:
    source = """
import os, time
def f():
    try: os.fork()
    except OSError: pass
    return os.getpid()
"""
    before = set(psutil.Process().children(recursive=True))  # workers of other tests
    with Session(source) as session:
        assert session.call("f")
        tree = set(psutil.Process().children(recursive=True)) - before
        assert len(tree) >= 2
    # Gone, though the last of them may still be on its way out on a busy machine.
    _, alive = psutil.wait_procs(tree, timeout=5)
    assert alive == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_when_we_end_so_does_the_program(how: signal.Signals, tmp_path: Path) -> None:
    script = (
        "from kvgraft.sandbox.run import run_program\n"
        "run_program('import os, time; os.fork(); time.sleep(60)')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL
    ) as user:
        deadline = time.monotonic() + 30
        while len(tree := psutil.Process(user.pid).children(recursive=True)) < 4:
            assert time.monotonic() < deadline, tree
            time.sleep(0.02)
        user.send_signal(how)
    assert psutil.wait_procs(tree, timeout=5)[1] == []
