"""Verifiers of other packages, found by entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.errors import UsageError, VerifierError
from kvgraft.library.verify.base import Case
from kvgraft.library.verify.specs import make_verifier

PLUGIN = """
from kvgraft.errors import VerifierError
from kvgraft.library.verify.base import Verdict


class Mute(Exception):
    def __str__(self):
        raise OSError("oh")


class Parity:
    name, version, spec, needs = "parity", "7", "parity", frozenset()

    def __init__(self, argument):
        self.argument = argument

    def verify(self, case, trace):
        if self.argument == "crash":
            raise RuntimeError("oh")
        if self.argument == "mute":
            raise Mute
        if self.argument == "exit":
            raise SystemExit(0)
        if self.argument == "needs" and "parity" not in case.checks:
            raise VerifierError("no parity")
        return {
            "lie": lambda: True,
            "maybe": lambda: Verdict("yes", "proved", "4", "v", "7", {}),
            "number": lambda: Verdict(True, "proved", 4, "v", "7", {}),
            "long": lambda: Verdict(True, "proved", "4" * 5000, "v", "7", {}),
            "ungraded": lambda: Verdict(True, "none", "4", "v", "7", {}),
            "much": lambda: Verdict(True, "proved", "4", "v", "7", {"x": "x" * 9999}),
            "other": lambda: Verdict(True, "proved", "4", "math", "1", {}),
        }.get(self.argument, lambda: Verdict(True, "proved", trace, "parity", "7", {}))()

    def close(self):
        raise OSError("oh")


class Meddler(Parity):  # writes to what it was given, and to what it gave
    notes = {"n": 0}

    def verify(self, case, trace):
        case.checks["limits"]["most"] = 10**9
        case.checks["more"] = 1
        self.notes["n"] += 1
        return Verdict(True, "proved", trace, "v", "7", self.notes)


def needing(argument):
    made = Parity("needs")
    made.needs = frozenset({"parity"})
    return made


def leaving(argument):
    raise SystemExit(0)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with entry points, as an installer leaves it."""
    (tmp_path / "parity_plugin.py").write_text(PLUGIN)
    info = tmp_path / "parity_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parity-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[kvgraft.verifiers]\n"
        "parity = parity_plugin:Parity\n"
        "exact = parity_plugin:Parity\n"
        "broken = parity_plugin:Absent\n"
        "missing = no_such_module_anywhere:make\n"
        "text = parity_plugin:Parity.__name__\n"
        "nothing = parity_plugin:print\n"
        "leaves = parity_plugin:leaving\n"
        "needing = parity_plugin:needing\n"
        "meddler = parity_plugin:Meddler\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("parity_plugin", None)


def test_a_plug_in_is_a_verifier(plugin: None) -> None:
    verdict = make_verifier("parity").verify(Case("p"), "4")
    assert (verdict.passed, verdict.version) == (True, "7")
    assert make_verifier("all:[parity] [regex:4]").verify(Case("p"), "4").passed


@pytest.mark.parametrize(
    "how", ["crash", "mute", "lie", "exit", "maybe", "number", "long", "ungraded", "much", "needs"]
)
def test_a_plug_in_that_breaks_fails_the_trace(plugin: None, how: str) -> None:
    verifier = make_verifier(f"parity:{how}")
    verifier.close()  # which breaks too
    verdict = make_verifier(f"parity:{how}").verify(Case("p"), "4")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert verdict.evidence["failure"]


def test_what_is_built_in_is_not_replaced(plugin: None) -> None:
    assert type(make_verifier("exact")).__name__ == "ExactVerifier"


@pytest.mark.parametrize("name", ["broken", "missing", "text", "nothing", "leaves"])
def test_a_plug_in_that_cannot_be_loaded_is_named(plugin: None, name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        make_verifier(name)
    assert "entry point" in str(caught.value.where)


def test_plug_ins_are_offered(plugin: None) -> None:
    with pytest.raises(UsageError) as caught:
        make_verifier("nope")
    offered = caught.value.hint.removeprefix("choose from ").split(", ")
    assert "parity" in offered
    assert offered.count("exact") == 1


def test_a_plug_in_speaks_for_itself_only(plugin: None) -> None:
    verdict = make_verifier("parity:other").verify(Case("p"), "4")
    assert verdict.passed
    assert (verdict.verifier, verdict.version) == ("parity", "7")


def test_a_plug_in_changes_neither_the_problem_nor_an_earlier_verdict(plugin: None) -> None:
    checks = {"limits": {"most": 5}}
    verifier = make_verifier("meddler")
    first = verifier.verify(Case("p", checks=checks), "4")
    second = verifier.verify(Case("p", checks=checks), "4")
    assert first.passed
    assert second.passed
    assert checks == {"limits": {"most": 5}}
    assert (first.evidence, second.evidence) == ({"n": 1}, {"n": 2})


def test_checks_that_cannot_be_copied_fail_the_trace(plugin: None) -> None:
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    verdict = make_verifier("parity").verify(Case("p", checks={"deep": deep}), "4")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "RecursionError" in verdict.evidence["failure"]


def test_a_case_that_lacks_what_a_plug_in_needs_is_an_error(plugin: None) -> None:
    verifier = make_verifier("needing")
    assert verifier.needs == {"parity"}
    with pytest.raises(VerifierError, match="no parity"):
        verifier.verify(Case("p"), "4")
    assert verifier.verify(Case("p", checks={"parity": 0}), "4").passed


def test_a_name_that_two_packages_give_is_nobodys(plugin: None, tmp_path: Path) -> None:
    info = tmp_path / "rival-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[kvgraft.verifiers]\nparity = rival:make\n")
    with pytest.raises(UsageError, match="two packages: parity_plugin:Parity, rival:make"):
        make_verifier("parity")
