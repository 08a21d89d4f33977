"""Nothing that a program tries gets it out of the sandbox, lets it outlive it, or uses up the
machine: on a system that grants namespaces, on one that does not, and as several users."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import attacks

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {
    "seconds": 1.2,
    "cpu_seconds": 1.0,
    "memory_bytes": 256 * 2**20,
    "file_bytes": 4 * 2**20,
    "processes": 8,
    "output_bytes": 65_536,
}
SPARE_SECONDS = 1.0  # beyond the limit, for a verdict

ALWAYS = {"cpu", "files", "memory", "network", "processes", "syscalls", "tree"}
NAMESPACES = {"ipc", "mount", "network", "pid", "user", "uts"}
WORLDS = {"here": True, "user": True, "no-capabilities": False, "no-namespaces": False}


@functools.cache
def namespaces(world: str) -> bool:
    """Whether there are to be namespaces: where the world has them, and the system grants them."""
    ask = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x7C020000))"
    return WORLDS[world] and subprocess.run([sys.executable, "-c", ask]).returncode == 0


class World:
    """One process of `world.py`, and what lies outside of its sandboxes."""

    def __init__(self, name: str, folder: Path, abstract: str) -> None:
        self.name = name
        self.secret = folder / "secret"
        self.secret.write_text("what nobody may know")
        self.secret.chmod(0o666)
        folder.chmod(0o777)
        self.folder = folder
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + abstract)
        self.by_path = socket.socket(socket.AF_UNIX)
        self.by_path.bind(str(folder / "socket"))
        for server in (self.abstract, self.by_path):
            server.listen()
        os.mkfifo(folder / "fifo", 0o666)
        self.before = self.listing()
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("world.py"), name, ROOT / "src"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "A_SECRET": "of the environment"},
        )
        self.host = {
            "pid": self.process.pid,
            "port": self.listener.getsockname()[1],
            "abstract": abstract,
            "path": str(folder / "socket"),
            "secret": str(self.secret),
            "folder": str(folder),
            "fifo": str(folder / "fifo"),
        }

    def listing(self) -> list[tuple[str, int, int]]:
        found = sorted(self.folder.rglob("*"))
        return [(path.name, path.stat().st_mode, path.stat().st_mtime_ns) for path in found]

    def attack(self, source: str, **request: Any) -> dict[str, Any]:
        source = attacks.PRELUDE + f"HOST = {self.host!r}\n" + source
        return self.run(source, **request)

    def run(self, source: str, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"source": source, "limits": LIMITS} | request
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that started the sandbox is gone"
        return json.loads(line)

    def untouched(self) -> bool:
        for server in (self.listener, self.abstract, self.by_path):
            server.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                server.accept()
                return False
        return self.listing() == self.before

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()
        for server in (self.listener, self.abstract, self.by_path):
            server.close()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    started: dict[str, World] = {}

    def get(name: str) -> World:
        if name not in started:
            folder = tmp_path_factory.mktemp(name)
            for parent in (folder, *folder.parents[:2]):
                parent.chmod(0o755)  # what keeps a program out is to be the sandbox
            started[name] = World(name, folder, f"kvgraft-{os.getpid()}-{name}")
        return started[name]

    yield get
    for world in started.values():
        world.close()


@pytest.mark.parametrize("name", WORLDS)
def test_what_holds(worlds: Callable[[str], World], name: str) -> None:
    ran = worlds(name).run("print('works')")
    assert (ran["ended"], ran["failure"], ran["stdout"]) == ("ended", None, "works\n")
    assert set(ran["isolation"]) == ALWAYS | (NAMESPACES if namespaces(name) else set())


@pytest.mark.parametrize("attack", attacks.EVERY)
@pytest.mark.parametrize("name", WORLDS)
def test_attacks(worlds: Callable[[str], World], name: str, attack: str) -> None:
    world = worlds(name)
    ran = world.attack(attacks.EVERY[attack])
    assert "ESCAPED" not in ran["stdout"], ran
    assert ran["survivors"] == []
    assert ran["elapsed"] < LIMITS["seconds"] + SPARE_SECONDS
    assert ran["ended"] in ("ended", "late", "killed"), ran
    assert "from outside" not in (ran["failure"] or ""), "the guard was ended"
    assert len(ran["stdout"]) <= LIMITS["output_bytes"]
    if attack in attacks.GETTING_OUT:
        # It tried all it knows, or the kernel ended it at the first try (SIGSYS).
        assert attacks.END in ran["stdout"] or ran["exit_status"] == -31, ran
    assert world.untouched()


CPU = "killed: over the limit of 1 CPU seconds"
LATE = "late: over the limit of 1.2 s"
# What the attacks above are seen to meet: without this, one that did nothing would pass.
MEETS = {
    "a forked sleeper": "ended: None",
    "an endless loop": f"{CPU}|{LATE}",  # a busy machine gives it less than a second
    "an endless sleep": LATE,
    "deaf to the limit of CPU": f"{CPU}|{LATE}",
    "it stops itself": LATE,
    "a thread that does not end": LATE,
    "a handler at exit that does not end": LATE,
    "every descriptor closed, and then a sleep": LATE,
    "one huge allocation": "ended: exit status 1: MemoryError",
    "memory bit by bit": f"ended: exit status 3|{LATE}",
    "standard output without end": "killed: over the limit of 4,194,304 bytes of output",
    "standard error without end": "killed: over the limit of 4,194,304 bytes of output",
    "a crash": "killed: it died by signal 11",
    "an abort": "killed: it died by signal 6",
    "deep recursion": "ended: exit status 1: RecursionError.*",
}


@pytest.mark.parametrize("attack", MEETS)
def test_how_they_end(worlds: Callable[[str], World], attack: str) -> None:
    ran = worlds("here").attack(attacks.EVERY[attack])
    assert re.fullmatch(MEETS[attack], f"{ran['ended']}: {ran['failure']}"), ran


def test_cpu_is_that_of_all_processes(worlds: Callable[[str], World]) -> None:
    # Less than the second from which on the kernel limits a process: the guard adds them up.
    ran = worlds("here").attack(
        attacks.EVERY["CPU of many children"], limits=LIMITS | {"seconds": 5, "cpu_seconds": 0.6}
    )
    assert (ran["ended"], ran["failure"]) == ("killed", "over the limit of 0.6 CPU seconds")


def test_what_the_kernel_counts(worlds: Callable[[str], World]) -> None:
    counts = {
        name: [
            int(worlds(name).attack(attacks.EVERY[attack])["stdout"].split()[1])
            for attack in ("forks counted", "many large files")
        ]
        for name in WORLDS
    }
    with_namespaces, without = [LIMITS["processes"] - 1, LIMITS["file_bytes"]], [0, 0]
    for name in WORLDS:
        assert counts[name] == (with_namespaces if namespaces(name) else without), name
    ran = worlds("here").attack(attacks.EVERY["threads counted"])
    if namespaces("here"):
        assert ran["stdout"] == f"threads {LIMITS['processes'] - 1}\n"
    else:
        assert ran["failure"] == "over the limit of 8 processes and threads"


@pytest.mark.parametrize("name", WORLDS)
def test_all_memory_is_limited_and_not_only_each_processs(
    worlds: Callable[[str], World], name: str
) -> None:
    ran = worlds(name).attack(attacks.EVERY["memory of many children"])
    if namespaces(name):
        assert (ran["ended"], ran["failure"]) == ("killed", "over the limit of 256 MiB of memory")
    else:
        assert ran["ended"] == "late"  # it is alone, and within its limit


# --- systems that cannot isolate ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "missing"), [("no-landlock", ["files"]), ("no-filters", ["files", "network", "tree"])]
)
def test_what_cannot_be_isolated_is_refused_by_name(
    worlds: Callable[[str], World], name: str, missing: list[str]
) -> None:
    world = worlds(name)
    program = f"open({str(world.folder / 'ran')!r}, 'w').close()"
    ran = world.run(program)
    assert ran["missing"] == missing
    assert ran["error"]["code"] == "sandbox_unavailable"
    assert all(word in ran["error"]["what"] for word in missing)
    assert "no namespaces" in ran["error"]["where"]
    assert world.run(program, require=missing[:1])["missing"] == missing[:1]
    assert world.untouched()
    # What the caller can do without is named in what held by being absent.
    ran = world.run("print('ran')", require=[])
    assert (ran["ended"], ran["stdout"], ran["failure"]) == ("ended", "ran\n", None)
    assert not set(missing) & set(ran["isolation"])
    assert ran["survivors"] == []
