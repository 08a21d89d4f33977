"""The verifier `command`: the exit status decides, and nothing of the program survives."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kvgraft import limits
from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.command import CommandVerifier
from kvgraft.library.verify.specs import make_verifier

TRACE = r"Thus \boxed{72}."


def judge(verifier: CommandVerifier, trace: str = TRACE, expected: str | None = "72") -> Verdict:
    return verifier.verify(Case("How much?", expected), trace)


def shell(script: str, seconds: float = 30.0) -> CommandVerifier:
    return CommandVerifier(["sh", "-c", script], seconds=seconds)


def wait_gone(pid: int) -> None:
    """A killed process may be a zombie until whoever adopted it looks."""
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} survived"
        time.sleep(0.02)


@pytest.mark.parametrize(("status", "passed"), [(0, True), (1, False), (2, False), (255, False)])
def test_the_exit_status_decides(status: int, passed: bool) -> None:
    verdict = judge(shell(f"echo passed; exit {status}"))
    assert (verdict.passed, verdict.grade, verdict.answer) == (passed, "proved", "72")
    assert verdict.evidence["exit_status"] == status
    assert verdict.evidence["method"] == "command"
    assert verdict.evidence["gold"] == verdict.evidence["given"] == "72"


def test_the_program_is_told_everything(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    verifier = make_verifier(f"command:sh -c {shlex.quote(f'cat > {seen}')}")
    trace = "A\ud800\u00e9\n" + TRACE
    assert verifier.verify(Case("How much?"), trace).passed
    request = json.loads(seen.read_text())
    assert request == {
        "problem": "How much?",
        "trace": trace,
        "answer": "72",
        "expected": None,
        "checks": {},
    }
    tests = {"tests": [1.5]}
    verifier.verify(Case("", "5", tests), "no idea")
    request = json.loads(seen.read_text())
    unknown = {"problem": "", "trace": "no idea", "answer": None, "expected": "5"}
    assert request == {**unknown, "checks": tests}


def test_a_long_trace_that_nobody_reads() -> None:
    assert judge(shell("exit 0"), trace="x " * 1_000_000 + TRACE).passed
    verdict = judge(shell("exit 0"), trace="x" * (limits.MAX_TRACE_CHARS + 1))
    assert not verdict.passed
    assert "over" in verdict.evidence["reason"]


def test_a_death_by_signal_is_a_fail() -> None:
    verdict = judge(shell("kill -SEGV $$"))
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert verdict.evidence["failure"] == f"the program died by signal {signal.SIGSEGV.value}"


def test_output_is_kept_in_part_and_holds_nobody_up() -> None:
    verdict = judge(shell("yes | head -c 3000000; printf '\\001\\377' >&2; exit 0"))
    assert verdict.passed
    assert verdict.evidence["stdout"]["bytes"] == 3_000_000
    assert verdict.evidence["stdout"]["start"].startswith("y\ny\n")
    assert verdict.evidence["stderr"] == {"start": "\x01\ufffd", "bytes": 2}
    assert len(json.dumps(verdict.evidence)) < limits.MAX_EVIDENCE_CHARS / 2


def test_evidence_stays_small_whatever_is_in_it() -> None:
    odd = "\U0001f600" * 2_000
    noisy = CommandVerifier(
        ["sh", "-c", "head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; : " + odd]
    )
    verdict = judge(noisy, trace=f"\\boxed{{{odd}}}", expected=odd)
    assert verdict.passed
    assert len(json.dumps(verdict.evidence)) < limits.MAX_EVIDENCE_CHARS / 2


def test_the_time_limit() -> None:
    started = time.monotonic()
    verdict = judge(shell("echo begun; sleep 60", seconds=0.5))
    assert time.monotonic() - started < 10
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert verdict.evidence["failure"] == "over the limit of 0.5 s"
    assert verdict.evidence["stdout"]["start"] == "begun\n"


SURVIVORS = {
    "a child in the background": "sleep 60 & echo $! > PID; exit 0",
    "a child that ignores signals": "(trap '' TERM HUP INT; sleep 60) & echo $! > PID; exit 0",
    "a session of its own": "setsid sh -c 'echo $$ > PID; exec sleep 60' & sleep 0.3; exit 0",
    "no environment": "env -i setsid /bin/sh -c 'echo $$ > PID; exec sleep 60' & sleep 0.3; exit 0",
    "an orphan": "(setsid sh -c 'echo $$ > PID; exec sleep 60' &) ; sleep 0.3; exit 0",
    "late as well": "setsid sh -c 'echo $$ > PID; exec sleep 60' & sleep 60",
}


@pytest.mark.parametrize("script", SURVIVORS.values(), ids=SURVIVORS)
def test_nothing_survives(script: str, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    started = time.monotonic()
    verdict = judge(shell(script.replace("PID", str(pid_file)), seconds=1.5))
    assert time.monotonic() - started < 10
    assert verdict.passed is ("failure" not in verdict.evidence)
    wait_gone(int(pid_file.read_text()))


def test_a_daemon_that_holds_the_pipes_does_not_hold_us(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    daemon = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "print('alive', flush=True)\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    wait = f"while [ ! -s {pid_file} ]; do sleep 0.05; done"
    verdict = judge(shell(f"{sys.executable} -c {shlex.quote(daemon)}; {wait}"))
    assert time.monotonic() - started < 15
    assert verdict.passed
    wait_gone(int(pid_file.read_text()))


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "from kvgraft.library.verify.command import CommandVerifier\n"
        f"command = ['sh', '-c', 'echo $$ > {pid_file}; sleep 60']\n"
        "from kvgraft.library.verify.base import Case\n"
        "CommandVerifier(command).verify(Case(''), '5')\n"
    )
    for how in (signal.SIGINT, signal.SIGKILL):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pid_file.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL
        ) as user:
            deadline = time.monotonic() + 30
            while not (pid_file.exists() and pid_file.read_text().strip()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            user.send_signal(how)
        wait_gone(int(pid_file.read_text()))


def test_a_program_that_goes_away_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "check"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    verifier = CommandVerifier([str(program)])
    assert judge(verifier).passed
    program.unlink()
    verdict = judge(verifier)
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "FileNotFoundError" in verdict.evidence["failure"]


def test_no_descriptor_and_no_process_is_left() -> None:
    verifier = shell("exit 0")
    judge(verifier)
    before = psutil.Process().num_fds(), psutil.Process().children()
    for _ in range(5):
        judge(verifier)
    assert (psutil.Process().num_fds(), psutil.Process().children()) == before


@pytest.mark.parametrize(
    "argv", [[], [""], ["no-such-program-anywhere"], [str(Path(__file__))], ["/"]]
)
def test_a_program_that_cannot_run_is_refused_at_once(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        CommandVerifier(argv)


def test_another_program_is_another_version() -> None:
    one, other = CommandVerifier(["true"]), CommandVerifier(["true", "-x"])
    assert one.version != other.version
    assert one.version == CommandVerifier(["true"]).version
