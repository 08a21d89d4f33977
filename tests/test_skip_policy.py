"""The rules of tests/conftest.py hold: pytest runs small suites under a copy of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")

INI = """
[pytest]
addopts = --strict-markers
markers =
    conformance: a conformance case
    model(name): needs a real model
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run the given test source under the project's conftest."""
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST)

    def _run(source: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider")

    return _run


@pytest.mark.parametrize("reason", ["no CUDA device", "shared data absent: cases/pairs.jsonl"])
def test_a_listed_reason_passes_and_is_counted(run, reason: str) -> None:
    result = run(f"""
        import pytest
        def test_runs(): pass
        def test_skips(): pytest.skip({reason!r})
    """)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"skipped for a listed reason: 1 x {reason.partition(':')[0]}"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def test_skips(): pytest.skip('too slow today')", "too slow today"),
        ("def test_skips(): pytest.skip('no CUDA')", "no CUDA"),
        ("@pytest.mark.skip\ndef test_skips(): pass", "unconditional skip"),
        ("@pytest.mark.skipif(True, reason='flaky')\ndef test_skips(): pass", "flaky"),
        ("@pytest.fixture\ndef f(): pytest.skip('later')\ndef test_skips(f): pass", "later"),
        (
            "class TestA:\n  def test_skips(self): pytest.importorskip('no_such')",
            "could not import",
        ),
    ],
)
def test_any_other_skip_turns_a_passing_run_red(run, body: str, reason: str) -> None:
    result = run(f"import pytest\ndef test_runs(): pass\n{body}\n")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skips without a listed reason*", f"*test_skips: {reason}*"])


@pytest.mark.parametrize(
    "body",
    ["pytest.importorskip('no_such')", "pytest.skip('not here', allow_module_level=True)"],
)
def test_a_whole_module_cannot_skip_unseen(run, pytester: pytest.Pytester, body: str) -> None:
    pytester.makepyfile(test_other="def test_runs(): pass")
    result = run(f"import pytest\n{body}\ndef test_never(): pass\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # Nor when nothing at all is left to run.
    pytester.path.joinpath("test_other.py").unlink()
    assert pytester.runpytest_inprocess().ret == pytest.ExitCode.TESTS_FAILED


def test_an_expected_failure_is_no_skip(run) -> None:
    result = run("""
        import pytest
        @pytest.mark.xfail(reason="known")
        def test_fails(): assert False
    """)
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0


def test_a_failing_run_stays_failing(run) -> None:
    result = run("import pytest\ndef test_bad(): assert 0\ndef test_s(): pytest.skip('x')\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_conformance_cases_are_counted_when_they_ran(run) -> None:
    result = run("""
        import pytest
        def test_plain(): pass
        @pytest.mark.conformance
        class TestStore:
            @pytest.mark.parametrize("n", [1, 2])
            def test_case(self, n): pass
            def test_gpu(self): pytest.skip("no CUDA device")
    """)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["conformance cases executed: 2 of 3"])


CATALOG = """
    import sys, types
    from pathlib import Path
    import pytest

    calls = []
    def pull(name, progress, say):
        calls.append(name)
        {body}

    @pytest.fixture(scope="session", autouse=True)
    def catalog():
        stub = types.ModuleType("kvgraft.engines.catalog")
        stub.pull = pull
        sys.modules["kvgraft.engines.catalog"] = stub
"""


def test_a_model_that_cannot_be_pulled_fails_the_test(run) -> None:
    result = run(
        CATALOG.format(body="raise ConnectionError('network is unreachable')")
        + """
    @pytest.mark.model("demo:smollm2")
    def test_needs_it(model_path): pass
    """
    )
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_model_is_pulled_once_a_session(run) -> None:
    result = run(
        CATALOG.format(body="return Path('/models') / name")
        + """
    @pytest.mark.model("demo:smollm2")
    @pytest.mark.parametrize("n", [1, 2])
    def test_needs_it(model_path, n): assert model_path.name == "demo:smollm2"

    def test_needs_two(model_cache):
        assert model_cache.get("demo:gemma3") != model_cache.get("demo:smollm2")
        assert calls == ["demo:smollm2", "demo:gemma3"]
    """
    )
    result.assert_outcomes(passed=3)


def test_the_licence_is_shown_though_the_test_passes(run) -> None:
    result = run(
        CATALOG.format(body="say('Licence: its own'); return Path('/models') / name")
        + """
    @pytest.mark.model("demo:smollm2")
    def test_needs_it(model_path): print("captured")
    """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Licence: its own"])
    result.stdout.no_fnmatch_line("captured")


def test_the_fixture_needs_its_marker(run) -> None:
    result = run("def test_needs_it(model_path): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pytest.mark.model*"])


def test_hub_and_threads_are_fixed() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_the_conftest_imports_no_torch() -> None:
    script = "import sys, conftest; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, check=True)
