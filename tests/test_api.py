"""The Python API: the same answers as the functions below it, and nothing left open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvgraft
from kvgraft import api
from kvgraft.api import default_store
from kvgraft.errors import (
    InputError,
    StoreError,
    StoreReadOnly,
    UnknownModel,
    UsageError,
    VerifierError,
)
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.plan import PUBLIC_SALT
from library.scripted import FOUR, QUESTION, Judge, solving_engine
from toys import prompt

EFFORT = kvgraft.Effort(3, 100)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`kvgraft.open` loads a scripted model; how it was asked to."""
    asked: dict[str, Any] = {}

    def open_engine(model: str, **options: Any) -> Any:
        asked.update(model=model, **options)
        return solving_engine()

    monkeypatch.setattr(api, "open_engine", open_engine)
    return asked


def open_files(folder: Path) -> list[str]:
    """What this process holds open under a folder."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.exists())
    return [str(link.readlink()) for link in links if str(link.readlink()).startswith(str(folder))]


# --- solve, restart, ask ----------------------------------------------------------------------


@pytest.mark.usefixtures("scripted")
def test_what_was_solved_is_replayed_after_a_restart(tmp_path: Path) -> None:
    with kvgraft.open("scripted", store=tmp_path) as memory:
        outcome = memory.solve(FOUR, verifier="exact", effort=EFFORT)
        assert (outcome.state, outcome.answer, outcome.replays) == ("solved", "4", True)
    with kvgraft.open("scripted", store=tmp_path) as memory:
        answer = memory.ask(QUESTION)
        assert (answer.how, answer.text, answer.exact) == ("replayed", "4", True)
        assert answer.deposit_id == outcome.deposit_id
        assert answer.cost.prefill_tokens == 0
        # A text is taken in canonical form; a system text makes it another question.
        assert memory.ask(QUESTION + " \r\n").how == "replayed"
        assert memory.ask(kvgraft.Problem("x", QUESTION)).how == "replayed"
        assert memory.ask(QUESTION, system="").how == "fresh"


@pytest.mark.usefixtures("scripted")
def test_problems_are_solved_one_by_one_as_they_are_asked_for(tmp_path: Path) -> None:
    steps: list[str] = []
    with kvgraft.open("scripted", store=tmp_path) as memory:
        outcomes = memory.solve_all(
            [FOUR, kvgraft.Problem("six", "What is 3 + 3?", expected="6")],
            verifier="exact",
            effort=EFFORT,
            on_step=lambda problem, step, running: steps.append(problem.id),
        )
        assert memory.library.count() == 0  # nothing is done before it is wanted
        assert next(outcomes).state == "solved"
        assert set(steps) == {"four"}
        assert next(outcomes).state == "unsolved"
        assert list(outcomes) == []


@pytest.mark.usefixtures("scripted")
def test_a_verifier_by_name_is_closed_and_ones_own_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Counted(ExactVerifier):
        def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setattr(api, "make_verifier", lambda spec: Counted())
    with kvgraft.open("scripted", store=tmp_path) as memory:
        memory.solve(FOUR, verifier="exact", effort=EFFORT)
        assert closed == ["exact"]
        memory.ask(kvgraft.Problem("", "What is 3 + 3?", expected="6"), verifier="exact")
        assert closed == ["exact"] * 2
        with pytest.raises(VerifierError):
            memory.solve(kvgraft.Problem("", "Why?"), verifier="exact", effort=EFFORT)
        assert closed == ["exact"] * 3
        memory.solve(FOUR, verifier=Counted(), effort=EFFORT)
        assert closed == ["exact"] * 3


@pytest.mark.usefixtures("scripted")
def test_a_fresh_answer_is_judged_when_a_verifier_is_given(tmp_path: Path) -> None:
    with kvgraft.open("scripted", store=tmp_path) as memory:
        wrong = memory.ask(FOUR, verifier=Judge())
        assert (wrong.how, wrong.answer, wrong.grade) == ("fresh", "22", "none")
        assert memory.ask(FOUR, verifier=r"regex:\d+").grade == "proved"
        assert memory.library.count() == 0  # asking never deposits


def test_what_cannot_be_posed_or_judged_is_refused(tmp_path: Path) -> None:
    with kvgraft.open("toy", store=tmp_path) as memory:
        with pytest.raises(InputError, match="empty"):
            memory.ask("")
        with pytest.raises(UsageError, match="no verifier 'guess'"):
            memory.ask("a", verifier="guess")
        with pytest.raises(UsageError, match="its own system text"):
            memory.ask(kvgraft.Problem("", "a"), system="b")
        with pytest.raises(UsageError, match="no verifier"):
            memory.solve(FOUR, verifier="guess")


def test_computing_reuses_what_is_stored(tmp_path: Path) -> None:
    ids = prompt(40).tolist()
    with kvgraft.open("toy", store=tmp_path) as memory:
        first = memory.compute(ids)
        first.context.close()
    with kvgraft.open("toy", store=tmp_path) as memory:
        second = memory.compute([*ids, 1, 2], room=3)
        assert (second.report.reused_tokens, second.context.capacity) == (32, 45)
        second.context.close()


# --- opening and closing ----------------------------------------------------------------------


def test_options_reach_the_engine(scripted: dict[str, Any], tmp_path: Path) -> None:
    options = {"dtype": "float32", "device": "cuda:1", "threads": 3, "paranoid": True}
    kvgraft.open("some model", store=tmp_path, **options).close()  # type: ignore[arg-type]
    assert scripted.items() >= {"model": "some model", **options}.items()
    kvgraft.open("some model", store=tmp_path).close()
    assert scripted.items() >= {"dtype": "bfloat16", "device": "cpu", "threads": None}.items()


def test_closing_closes_everything_and_twice_is_harmless(tmp_path: Path) -> None:
    with kvgraft.open("toy", store=tmp_path) as memory:
        memory.compute(prompt(40).tolist()).context.close()
        assert open_files(tmp_path)
    assert open_files(tmp_path) == []
    with pytest.raises(StoreError):
        memory.library.count()
    memory.close()


def test_an_error_inside_closes_too_and_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), kvgraft.open("toy", store=tmp_path):
        raise RuntimeError("mine")
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("model", ["toy:x", "demo:none", "/no/such/folder"])
def test_an_unknown_model_leaves_nothing_open(tmp_path: Path, model: str) -> None:
    with pytest.raises(UnknownModel):
        kvgraft.open(model, store=tmp_path)
    assert open_files(tmp_path) == []


def test_a_damaged_library_or_salt_file_leaves_nothing_open(tmp_path: Path) -> None:
    kvgraft.open("toy", store=tmp_path, tenant="A").close()
    (tmp_path / "tenants.json").write_text("{}")
    with pytest.raises(StoreError, match="tenant salts"):
        kvgraft.open("toy", store=tmp_path, tenant="A")
    (tmp_path / "library.sqlite3").write_bytes(b"no library" * 1000)
    with pytest.raises(StoreError):
        kvgraft.open("toy", store=tmp_path)
    assert open_files(tmp_path) == []


def test_a_file_where_the_store_should_be(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.write_text("mine")
    with pytest.raises(StoreError):
        kvgraft.open("toy", store=place)
    assert place.read_text() == "mine"


def test_a_library_opened_for_reading_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        api.open_library(tmp_path, read_only=True)
    assert list(tmp_path.iterdir()) == []
    kvgraft.open("toy", store=tmp_path).close()
    with api.open_library(tmp_path, read_only=True) as library, pytest.raises(StoreReadOnly):
        library.run_put("a", "b", state="c", attempts_done=0)


# --- where the store is -----------------------------------------------------------------------


def test_the_default_store_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KVGRAFT_STORE", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_store() == tmp_path / ".local" / "share" / "kvgraft"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_store() == tmp_path / "data" / "kvgraft"
    monkeypatch.setenv("KVGRAFT_STORE", "~/mine")
    assert default_store() == tmp_path / "mine"
    monkeypatch.setenv("KVGRAFT_STORE", "")  # as good as not set
    assert default_store() == tmp_path / "data" / "kvgraft"
    monkeypatch.setenv("KVGRAFT_STORE", str(tmp_path / "third"))
    kvgraft.open("toy").close()
    kvgraft.open("toy", store="~/fourth").close()
    assert {path.name for path in tmp_path.iterdir()} == {"third", "fourth"}


# --- tenants ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("scripted")
def test_tenants_do_not_see_each_others_states_or_deposits(tmp_path: Path) -> None:
    def asked(tenant: str) -> tuple[str, int]:
        with kvgraft.open("scripted", store=tmp_path, tenant=tenant) as memory:
            answer = memory.ask(QUESTION)
            return answer.how, answer.cost.reused_tokens

    with kvgraft.open("scripted", store=tmp_path, tenant="A") as memory:
        assert memory.solve(FOUR, verifier="exact", effort=EFFORT).replays
        assert memory.workspace.salt != PUBLIC_SALT
    assert asked("B") == ("fresh", 0)
    assert asked("public") == ("fresh", 0)
    how, reused = asked("A")
    assert how == "replayed"
    assert reused > 0
    with kvgraft.open("scripted", store=tmp_path) as memory:
        assert (memory.workspace.tenant, memory.workspace.salt) == ("public", PUBLIC_SALT)


def test_a_tenant_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tenant"):
        kvgraft.open("toy", store=tmp_path, tenant="")
    assert open_files(tmp_path) == []


# --- the package ------------------------------------------------------------------------------


def test_every_public_name_is_there_and_no_other() -> None:
    for name in kvgraft.__all__:
        assert getattr(kvgraft, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        kvgraft.opne  # noqa: B018


HEAVY = ["torch", "transformers", "sympy", "math_verify", "tokenizers", "gguf", "jinja2"]


def modules_after(script: str) -> set[str]:
    ending = f"\nimport sys\nprint(*{{'numpy', *{HEAVY}}} & set(sys.modules))"
    words = [sys.executable, "-c", script + ending]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    assert modules_after("import kvgraft") == set()
    script = f"""
import kvgraft
problem = kvgraft.Problem("1", "What is 2 + 2?", expected="4")
with kvgraft.open("toy", store={str(tmp_path)!r}) as memory:
    memory.solve(problem, verifier="exact", effort=kvgraft.Effort(2, 5))
    memory.ask(problem, max_new_tokens=3)
"""
    assert modules_after(script) == {"numpy"}
