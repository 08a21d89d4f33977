"""The worker process: limits, crashes, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from kvgraft import limits
from kvgraft.library.verify.worker import Worker

HANDLERS = "library.verify.handlers"
MEMORY_BYTES = 256 * 1024 * 1024


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(f"{HANDLERS}:load", seconds=1.0, memory_bytes=MEMORY_BYTES)
    yield made
    made.close()


def own_children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_requests_and_replies_of_any_size(worker: Worker) -> None:
    for value in ("", "line\nbreak", "\ud800", "\u00e9" * 100_000, None, {"a": [1, 2.5]}):
        reply = worker.ask({"do": "echo", "value": value})
        assert (reply.value, reply.failure) == (value, None)


def test_one_process_serves_many_requests(worker: Worker) -> None:
    pids = {worker.ask({"do": "pid"}).value for _ in range(5)}
    assert pids == {worker.pid}


@pytest.mark.parametrize("what", ["spin", "big power"])
def test_the_time_limit_kills(worker: Worker, what: str) -> None:
    pid = worker.ask({"do": "pid"}).value
    started = time.monotonic()
    reply = worker.ask({"do": what})
    assert 0.9 < time.monotonic() - started < 10
    assert reply.value is None
    assert reply.failure == "over the limit of 1 s"
    assert not psutil.pid_exists(pid)
    assert worker.ask({"do": "echo", "value": 1}).value == 1


@pytest.mark.parametrize("request_", [{"do": "allocate", "bytes": MEMORY_BYTES}, {"do": "grow"}])
def test_the_memory_limit_holds(worker: Worker, request_: dict) -> None:
    reply = worker.ask(request_)
    assert reply.value is None
    assert "MemoryError" in str(reply.failure)
    assert worker.ask({"do": "echo", "value": 1}).value == 1


def test_what_fits_in_memory_is_allowed(worker: Worker) -> None:
    size_bytes = MEMORY_BYTES // 4
    assert worker.ask({"do": "allocate", "bytes": size_bytes}).value == size_bytes


@pytest.mark.parametrize(
    ("what", "failure"),
    [
        ("crash", f"the worker died by signal {signal.SIGSEGV.value}"),
        ("exit", "the worker died with exit status 7"),
        ("raise", "ValueError: xxx"),
        ("unknown", "KeyError: 'unknown'"),
    ],
)
def test_a_crash_is_a_failure_of_one_request(worker: Worker, what: str, failure: str) -> None:
    before = own_children()
    reply = worker.ask({"do": what})
    assert reply.value is None
    assert str(reply.failure).startswith(failure)
    assert len(str(reply.failure)) <= 200
    assert own_children() == before  # the dead one is reaped
    assert worker.ask({"do": "echo", "value": 1}).value == 1


def test_a_reply_that_is_none_is_a_failure(worker: Worker) -> None:
    assert worker.ask({"do": "echo", "value": 1}).failure is None
    reply = worker.ask({"do": "garble"})
    assert reply.value is None
    assert reply.failure
    assert worker.ask({"do": "echo", "value": 2}).value == 2


def test_a_worker_that_cannot_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_children()
    broken = Worker(f"{HANDLERS}:load_nothing", seconds=1, memory_bytes=MEMORY_BYTES)
    assert "no such thing" in str(broken.ask({}).failure)
    missing = Worker("no_such_module:load", seconds=1, memory_bytes=MEMORY_BYTES)
    assert "no_such_module" in str(missing.ask({}).failure)
    monkeypatch.setattr(limits, "WORKER_START_SECONDS", 0.5)
    slow = Worker(f"{HANDLERS}:load_slowly", seconds=1, memory_bytes=MEMORY_BYTES)
    assert "too long" in str(slow.ask({}).failure)
    assert own_children() == before


def test_the_package_is_not_imported_whole(worker: Worker) -> None:
    loaded = worker.ask({"do": "modules"}).value
    assert "numpy" not in loaded
    assert "kvgraft" in loaded


def test_a_worker_that_nobody_holds_ends() -> None:
    worker = Worker(f"{HANDLERS}:load", seconds=1, memory_bytes=MEMORY_BYTES)
    pid = worker.ask({"do": "pid"}).value
    assert psutil.pid_exists(pid)
    del worker
    assert not psutil.pid_exists(pid)


def test_a_fork_has_a_worker_of_its_own(worker: Worker) -> None:
    pid = worker.ask({"do": "pid"}).value
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        other = worker.ask({"do": "pid"}).value
        worker.close()
        os.write(writer, b"%d" % (other != pid))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"1"
    os.waitpid(fork, 0)
    assert worker.ask({"do": "pid"}).value == pid


def test_a_worker_whose_owner_is_killed_ends_by_itself() -> None:
    script = (
        "import threading, time\n"
        "from kvgraft.library.verify.worker import Worker\n"
        f"worker = Worker('{HANDLERS}:load', seconds=0.5, memory_bytes={MEMORY_BYTES})\n"
        "print(worker.ask({'do': 'pid'}).value, flush=True)\n"
        "threading.Thread(target=worker.ask, args=({'do': 'big power'},)).start()\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
