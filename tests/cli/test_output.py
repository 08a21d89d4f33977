"""Pipes, terminals, colour, progress: what goes where."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
import time

import pytest

from kvgraft.cli import output, progress
from kvgraft.cli.progress import Watch


@pytest.mark.parametrize(
    "words", [("library", "ls"), ("library", "ls", "--json"), ("--help",), ("store", "check")]
)
def test_a_reader_that_stopped_reading_is_no_error(start, solved, words) -> None:
    read, write = os.pipe()
    os.close(read)
    process = start(*words, stdout=write)
    os.close(write)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (141, "")


def test_a_pipe_gets_plain_text_and_a_terminal_gets_the_bar(start, solving) -> None:
    """Standard error is a terminal, standard output is not."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = start(*solving, stderr=slave, env=environment)
    os.close(slave)
    shown: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(master, shown))
    reader.start()
    stdout, _ = process.communicate(timeout=60)
    reader.join()
    os.close(master)
    assert process.returncode == 0
    assert "\x1b" not in stdout
    assert stdout.splitlines()[-1].startswith("4 problems: ")
    terminal = b"".join(shown)
    assert b"\x1b[" in terminal
    assert b"opening" in terminal
    assert terminal.count(b"\x1b[?25l") == terminal.count(b"\x1b[?25h")  # the cursor is back


def _drain(terminal: int, shown: list[bytes]) -> None:
    while True:
        try:
            block = os.read(terminal, 65_536)
        except OSError:  # the other end was closed
            return
        if not block:
            return
        shown.append(block)


def test_colour_on_a_terminal_only(start, solved) -> None:
    master, slave = pty.openpty()
    colours = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    for environment, coloured in ((colours, True), ({**colours, "NO_COLOR": "1"}, False)):
        process = start("library", "ls", stdout=slave, env=environment)
        process.communicate(timeout=60)
        text = os.read(master, 65_536)
        assert b"toy:4" in text
        assert (b"\x1b[32m" in text) == coloured
    os.close(slave)
    os.close(master)


def test_without_a_terminal_long_steps_say_a_line_now_and_then(capsys, monkeypatch) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.05)
    with Watch("fetching") as watch:
        watch.progress("download", 1_000_000, 98_000_000)
        time.sleep(0.4)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("fetching: downloading, 1.0 MB of 98.0 MB, after ")


def test_a_quick_step_says_nothing(capsys) -> None:
    with Watch("fetching") as watch:
        watch.progress("download", 1, 2)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_closed_streams_do_not_change_places(spawn, solved) -> None:
    def close_stderr() -> None:
        os.close(2)

    seen = spawn("store", "stats", "--json", "--store", "/nowhere", preexec_fn=close_stderr)
    assert (seen.status, seen.stderr) == (6, "")
    assert seen.document["error"]["code"] == "store"


def test_help_is_quick(spawn) -> None:
    seconds = []
    for _ in range(2):  # the first one may have to compile
        began = time.monotonic()
        assert spawn("solve", "--help").status == 0
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 5  # a tenth of it on an idle machine


def test_the_program_has_a_version(spawn) -> None:
    from kvgraft import __version__

    assert spawn("--version").stdout == f"kvgraft {__version__}\n"


def test_words_that_cannot_be_shown_are_spelled_out(start, replaying) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    process = start("library", "show", replaying["id"], env=environment)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert stdout.isascii()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (2e12, "2.0 TB")],
)
def test_sizes(count: float, text: str) -> None:
    assert output.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "0.012 s"), (3.14, "3.1 s"), (245, "4 min 05 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_control_characters_are_spelled_out() -> None:
    assert output.printable("a\x1b[2Jb\nc\td\u202e") == "a\\x1b[2Jb\nc\td\\x202e"
    assert output.one_line("a\n  b\x07", 10) == "a b\\x07"
    assert output.one_line("x" * 99, 10) == "x" * 9 + "…"


def test_the_command_module_runs_by_itself() -> None:
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "kvgraft.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: kvgraft ")
