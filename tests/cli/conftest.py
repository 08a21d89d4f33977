"""Running the command line in this process, as a process of its own, and on a solved store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvgraft.cli.main import make_app
from kvgraft.energy import EnergyMeter
from powercap import hide_zeus

MODEL = "toy:4"  # of its deposits some replay and some do not; what it says is noise
ANYTHING = "regex:(?s).+"  # noise passes, if there is an answer in it
PROBLEMS = [f"What is {number} + {number}?" for number in range(4)]
# A background job's children ignore SIGINT; the command line must be tested as a user has it.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from kvgraft.cli.main import main; main()"
)


@dataclass
class Run:
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value


def invoke(words: Sequence[object], stdin: str | None = None) -> Run:
    result = CliRunner().invoke(make_app(), [str(word) for word in words], input=stdin)
    return Run(result.exit_code, result.stdout, result.stderr)


def command(words: Sequence[object]) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-c", START, *map(str, words)]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's store, or a terminal; and what the toy computes is loaded, though on
    a fast machine computing it would be the faster choice."""
    monkeypatch.setenv("KVGRAFT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KVGRAFT_LOAD", "always")
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Callable[..., Run]:
    """Run a command in this process."""
    return lambda *words, stdin=None: invoke(words, stdin)


@pytest.fixture
def spawn() -> Callable[..., Run]:
    """Run a command as a process of its own, to its end."""

    def _spawn(*words: object, **options: Any) -> Run:
        done = subprocess.run(
            command(words), capture_output=True, text=True, check=False, timeout=120, **options
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return _spawn


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command as a process of its own; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def _start(*words: object, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        started.append(subprocess.Popen(command(words), text=True, **pipes))
        return started[-1]

    yield _start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """A file of the problems that are solved in `solved`."""
    return write_problems(tmp_path / "problems.jsonl")


def write_problems(path: Path) -> Path:
    rows = [{"problem": text, "answer": str(2 * n)} for n, text in enumerate(PROBLEMS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def solve_words(file: Path, *more: object) -> list[object]:
    return [
        *("solve", file, "--model", MODEL, "--verifier", ANYTHING),
        *("--max-tokens", 64, *more),
    ]


@pytest.fixture
def solving(problems: Path) -> list[object]:
    """The words that solve `problems`."""
    return solve_words(problems)


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solved")
    done = invoke(
        solve_words(write_problems(folder / "problems.jsonl"), "--store", folder / "store")
    )
    assert done.status == 0, done.stderr
    return folder / "store"


@pytest.fixture
def solved(solved_once: Path) -> Path:
    """A store of its own for each test, the default one, with deposits of all `PROBLEMS` that
    the toy came to an answer for."""
    store = Path(os.environ["KVGRAFT_STORE"])
    shutil.copytree(solved_once, store)
    return store


@pytest.fixture
def deposits(solved: Path) -> list[dict[str, Any]]:
    """The deposits of `solved`, as `library ls` lists them."""
    listed: list[dict[str, Any]] = invoke(["library", "ls", "--json"]).document["deposits"]
    assert listed
    return listed


@pytest.fixture
def replaying(deposits: list[dict[str, Any]]) -> dict[str, Any]:
    """A deposit that replays."""
    return next(one for one in deposits if one["replay"] == "replays")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extras."""
    import importlib.util

    find_spec = importlib.util.find_spec
    absent = {"torch", "math_verify"}
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name in absent else find_spec(name, package),
    )


@pytest.fixture
def no_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without energy meters, whichever one this is."""
    hide_zeus(monkeypatch)
    without = partial(EnergyMeter, root=tmp_path / "no powercap")
    monkeypatch.setattr("kvgraft.api.EnergyMeter", without)
