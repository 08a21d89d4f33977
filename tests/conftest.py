"""What every test run stands on: fixed bits, no hub, real models, and no silent skip.

Real models. A test that needs one carries `@pytest.mark.model("demo:smollm2")` and asks for the
fixture `model_path`, or asks `model_cache` for several by name. They are pulled through the code
that users run; when that fails (no network, another digest), the test FAILS: it does not skip.

Skips. A test may skip only for a reason named in ALLOWED_SKIPS, optionally with a detail after
a colon. Any other skip turns the run red, whatever else passed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

# Each reason is something that a machine may lack through no fault of the project. A missing
# dependency is none: `make test` installs them all, but for one that takes minutes to build;
# `make test-llamacpp` installs that and runs what is skipped here.
ALLOWED_SKIPS = (
    "shared data absent",
    "no CUDA device",
    "llama.cpp engine not installed",
    "no Chromium",
)

THREADS = 2  # thread counts change bits; every run of the tests has the same one

# Set before anything imports torch, and inherited by the processes that tests start.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(THREADS)
# Idle kernel threads sleep instead of spinning: tests run beside each other's processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# No deadline: a busy two-core machine is slow now and then. In CI every run tries the same inputs.
settings.register_profile("kvgraft", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("kvgraft")


class ModelCache:
    """The demo models of this session: each is pulled at most once, into the user's cache."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._paths: dict[str, Path] = {}
        self._say = say  # gets the licence and the size, before anything is fetched

    def get(self, name: str) -> Path:
        if name not in self._paths:
            # Imported late, so that a test that needs no model loads no engine.
            catalog = importlib.import_module("kvgraft.engines.catalog")
            self._paths[name] = catalog.pull(name, _no_progress, self._say)
        return self._paths[name]


def _no_progress(stage: str, done: int, total: int) -> None:
    """Progress of a pull, which nobody watches here."""


@pytest.fixture(scope="session")
def model_cache(pytestconfig: pytest.Config) -> ModelCache:
    def say(line: str) -> None:
        # Past the capture: a licence is to be read before the download, not after a failure.
        capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
        reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if reporter is not None:
                reporter.ensure_newline()
                reporter.write_line(line)
                reporter.flush()

    return ModelCache(say)


@pytest.fixture
def model_path(request: pytest.FixtureRequest, model_cache: ModelCache) -> Path:
    """The path of the model that the test's `model(name)` marker asks for."""
    marker = request.node.get_closest_marker("model")
    if marker is None or len(marker.args) != 1:
        pytest.fail('the fixture model_path needs @pytest.mark.model("demo:NAME")', pytrace=False)
    return model_cache.get(marker.args[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Undo what an earlier test did to torch's threads. Does not import torch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RunPolicy(), "kvgraft-run-policy")


class RunPolicy:
    """Refuses skips without a listed reason, and counts the conformance cases that ran."""

    def __init__(self) -> None:
        self.listed: Counter[str] = Counter()
        self.unlisted: list[tuple[str, str]] = []  # (node id, reason)
        self.conformance_ids: set[str] = set()
        self.conformance_ran: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.conformance_ids = {
            item.nodeid for item in session.items if item.get_closest_marker("conformance")
        }

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note_skip(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note_skip(report)
        elif report.when == "call" and report.nodeid in self.conformance_ids:
            self.conformance_ran.add(report.nodeid)

    def _note_skip(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        name = reason.partition(":")[0]
        if name in ALLOWED_SKIPS:
            self.listed[name] += 1
        else:
            self.unlisted.append((report.nodeid, reason))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = terminalreporter.write_line
        for name, count in sorted(self.listed.items()):
            line(f"skipped for a listed reason: {count} x {name}")
        if self.unlisted:
            terminalreporter.section("skips without a listed reason: this run FAILS", red=True)
            for nodeid, reason in self.unlisted:
                line(f"{nodeid}: {reason}")
            line(f"listed reasons (tests/conftest.py): {', '.join(ALLOWED_SKIPS)}")
        ran, selected = len(self.conformance_ran), len(self.conformance_ids)
        line(f"conformance cases executed: {ran} of {selected}")
