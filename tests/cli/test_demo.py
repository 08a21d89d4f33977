"""The demonstration: its phases on a scripted model, their sum, and what must not pass."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvgraft import api
from kvgraft.cli import demo, demo_phase
from kvgraft.cli.demo import DemoOptions, passed, run_demo, show
from kvgraft.cli.demo_command import demo_command
from kvgraft.cli.demo_problems import PROBLEMS, read_demo_problems
from kvgraft.cli.output import console
from kvgraft.errors import UnknownModel
from kvgraft.evidence.process import run_module
from kvgraft.library import problem as problem_module
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.prompt import CUES
from library.scripted import QUESTION, ScriptedEngine, solving_engine

STAMPS = "You need at least 5 stamps and have none. How many do you need?"
NEAR = [
    QUESTION.replace("+", "-"),
    STAMPS.replace("at least", "at most"),
    "What is 3 - 3?",
    "What is 1 - 1?",
]
LINES = [
    {"id": "restated", "problem": QUESTION, "answer": "4", "near": NEAR[0]},
    {"id": "stamps", "problem": STAMPS, "answer": "5", "near": NEAR[1]},
    {"id": "text", "problem": "What is 3 + 3?", "answer": "6", "near": NEAR[2]},
    {"id": "never", "problem": "What is 1 + 1?", "answer": "2", "near": NEAR[3]},
]
Demo = Callable[..., dict[str, Any]]


def scripted() -> ScriptedEngine:
    engine = solving_engine()
    engine.on_problem(STAMPS, "Five.\nAnswer: 5", alone="Answer: 4")
    engine.on("Five.\nAnswer: 5" + CUES[0], " 5 \n")
    engine.on_problem("What is 3 + 3?", "Answer: 6", alone="Answer: 6, but on it goes " * 9)
    return engine


@pytest.fixture
def demonstrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Run the demonstration with every phase in this process, on a scripted model."""

    def run_phase(module: str, arguments: list[str], progress: Any, say: Any) -> None:
        assert module == "kvgraft.cli.demo_phase"
        assert demo_phase.main(arguments) == 0

    def _run(lines: list[dict[str, str]] = LINES, **options: Any) -> dict[str, Any]:
        path = tmp_path / "problems.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        return run_demo(DemoOptions("scripted", 3, 60, problems=path, **options))

    monkeypatch.setattr(demo, "run_module", run_phase)
    monkeypatch.setattr(demo_phase, "make_verifier", lambda spec: ExactVerifier())
    monkeypatch.setattr(api, "open_engine", lambda model, **options: scripted())
    return _run


def shown(result: dict[str, Any], **options: Any) -> str:
    target = Console(file=io.StringIO(), width=200, **options)
    show(result, target)
    return target.file.getvalue()  # type: ignore[attr-defined]


# --- the whole of it --------------------------------------------------------------------------


def test_it_asks_solves_and_asks_again(demonstrate: Demo) -> None:
    result = demonstrate()
    assert passed(result)
    before, solving, after = (
        [row[part] for row in result["rows"]] for part in ("before", "solving", "after")
    )
    assert [row["problem"] for row in result["rows"]] == [line["problem"] for line in LINES]
    assert [one["how"] for one in before] == ["fresh"] * 4
    assert [one["right"] for one in before] == [False] * 4  # the third is right, and cut off
    assert [one["state"] for one in solving] == ["solved"] * 3 + ["unsolved"]
    assert [one["replays"] for one in solving] == [True, True, False, None]
    assert [one["how"] for one in after] == ["replayed", "replayed", "recorded", "fresh"]
    assert [one["right"] for one in after] == [True, True, True, False]
    assert [one["same_bytes_cold"] for one in after] == [True, True, None, None]
    assert [one["tokens"] for one in after] == [3, 4, 0, 1]
    totals = result["totals"]
    assert totals.pop("stored_bytes") > 0
    assert totals.pop("solving_seconds") > 0
    assert totals.pop("replay_seconds_median") > 0
    assert totals == {
        "problems": 4,
        "right_before": 0,
        "right_after": 3,
        "deposited": 3,
        "right_before_not_deposited": 0,
        "replayed": 2,
        "recorded": 1,
        "replays_byte_exact": 2,
        "replay_tokens_median": 3.5,
        "solving_tokens": sum(one["decode_tokens"] for one in solving),
        "right_with_library_emptied": 0,
        "replayed_with_library_emptied": 0,
        "near_misses_asked": 3,
        "near_misses_replayed": 0,
    }
    # The one that was not solved is in no library, and its near miss would show nothing.
    assert result["near_misses"] == [
        {"problem": near, "near": line["problem"], "how": "fresh"}
        for near, line in zip(NEAR[:3], LINES, strict=False)
    ]
    assert json.loads(json.dumps(result)) == result


def test_replays_of_other_bytes_are_not_hidden(
    demonstrate: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = demo_phase.compute_prompt
    monkeypatch.setattr(
        demo_phase,
        "compute_prompt",
        lambda engine, store, ids, **options: real(engine, store, (256, *ids), **options),
    )
    result = demonstrate()
    assert result["totals"]["replayed"] == 2
    assert result["totals"]["replays_byte_exact"] == 0
    assert not passed(result)
    assert "NO" in shown(result)


@pytest.mark.parametrize(("one", "other"), [("at most", "at least"), ("3 - 3", "3 + 3")])
def test_a_near_miss_that_is_answered_from_the_library_fails(
    demonstrate: Demo, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    real = problem_module.canonical_text
    # A library that takes likeness for identity: replayed the first, recorded the second.
    monkeypatch.setattr(problem_module, "canonical_text", lambda t: real(t.replace(one, other)))
    result = demonstrate()
    assert result["totals"]["near_misses_asked"] == 3
    assert result["totals"]["near_misses_replayed"] == 1
    assert not passed(result)
    assert "1 of 3 answered from memory" in shown(result)


def test_an_emptied_library_that_still_answers_fails(
    demonstrate: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = demo._phase

    def same_store(options: Any, folder: Path, phase: str, store: str, *rest: Any) -> Any:
        return real(options, folder, phase, "store", *rest)

    monkeypatch.setattr(demo, "_phase", same_store)
    result = demonstrate()
    assert result["totals"]["replayed_with_library_emptied"] == 3
    assert not passed(result)


def test_near_misses_of_what_is_not_in_the_library_are_no_control(
    demonstrate: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_phase, "_is_deposited", lambda memory, problem: False)
    result = demonstrate()
    assert result["totals"]["near_misses_asked"] == 0
    assert result["totals"]["right_after"] == 3
    assert not passed(result)


def test_nothing_deposited_is_nothing_shown(demonstrate: Demo) -> None:
    result = demonstrate([LINES[3], {**LINES[3], "id": "2", "problem": f"{STAMPS} Or not?"}])
    totals = result["totals"]
    assert (totals["replayed"], totals["replay_tokens_median"]) == (0, None)
    assert (totals["deposited"], totals["near_misses_asked"], result["near_misses"]) == (0, 0, [])
    assert not passed(result)
    assert "median replay" not in shown(result)


def test_right_on_the_first_try_alone_is_not_deposited_and_it_says_so(demonstrate: Demo) -> None:
    # Greedily the scripted model says 4; its samples say 5.
    result = demonstrate([LINES[0], {**LINES[1], "answer": "4"}])
    totals = result["totals"]
    assert [row["before"]["right"] for row in result["rows"]] == [False, True]
    assert (totals["deposited"], totals["right_before_not_deposited"]) == (1, 1)
    assert result["rows"][1]["after"]["how"] == "fresh"
    text = shown(result)
    assert "deposited: 1 of 2" in text
    assert "right on the first try, but with no such attempt: 1" in text


@pytest.fixture(scope="module")
def held() -> dict[str, Any]:
    """A result that holds, as the phases would record it."""
    asked = {"how": "replayed", "answer": "4", "right": True, "tokens": 3, "seconds": 0.01}
    row = {
        "problem": "What is 2 + 2?",
        "before": {**asked, "how": "fresh", "right": False, "answer": None, "tokens": 80},
        "solving": {"state": "solved", "decode_tokens": 300, "seconds": 4.0},
        "after": {**asked, "same_bytes_cold": True},
    }
    row["before"]["same_bytes_cold"] = None
    totals = {
        "problems": 1,
        "right_before": 0,
        "right_after": 1,
        "deposited": 1,
        "right_before_not_deposited": 0,
        "replayed": 1,
        "recorded": 0,
        "replays_byte_exact": 1,
        "replay_tokens_median": 3,
        "replay_seconds_median": 0.01,
        "solving_tokens": 300,
        "solving_seconds": 4.0,
        "stored_bytes": 1_500_000,
        "right_with_library_emptied": 0,
        "replayed_with_library_emptied": 0,
        "near_misses_asked": 1,
        "near_misses_replayed": 0,
    }
    return {"model": "toy", "rows": [row], "totals": totals, "near_misses": []}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("right_after", 0),
        ("right_before", 1),
        ("replayed", 0),
        ("replays_byte_exact", 0),
        ("replayed_with_library_emptied", 1),
        ("near_misses_replayed", 1),
        ("near_misses_asked", 0),
        ("deposited", 2),  # and one near miss only
    ],
)
def test_every_claim_has_to_hold(held: dict[str, Any], name: str, value: int) -> None:
    assert passed(held)
    result = copy.deepcopy(held)
    result["totals"][name] = value
    if name == "replayed":
        result["totals"]["replays_byte_exact"] = 0
    assert not passed(result)


# --- what is shown ----------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_problem_and_the_totals_below(held: dict[str, Any]) -> None:
    text = shown(held)
    (row,) = [line for line in text.splitlines() if "What is 2 + 2?" in line]
    cells = [cell.strip() for cell in row.split("   ") if cell.strip()]
    assert cells == [
        *("What is 2 + 2?", "wrong (no", "80, 0.01", "300, 4.0"),
        *("right (4)", "3, 0.01", "yes"),
    ]
    for line in (
        "answer)",
        "replayed",
        "right answers: 0 of 1 on the first try, 1 of 1 asked again",
        "deposited: 1 of 1, those with a sampled attempt that verified; a first try never is",
        "1 replayed from disk by the model, 0 kept as text only; 1.5 MB stored",
        "byte-exact: 1 of 1 replays have the SHA-256 of a cold run's logits",
        "solving: 300 decode tokens, 4 s in all; 300 tokens a problem",
        "median replay: 3 decode tokens, 0.01 s; solving a problem took 100 times as many tokens",
        "control, library emptied: 0 replayed, 0 of 1 right",
        "control, near misses of what was deposited: 0 of 1 answered from memory",
    ):
        assert line in text
    assert "with no such attempt" not in text


def test_it_fits_a_hundred_columns_where_no_terminal_says_how_many(
    held: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    result = copy.deepcopy(held)
    (row,) = result["rows"]
    row["before"]["answer"] = row["after"]["answer"] = "a long answer, and more of it"
    row["before"]["seconds"] = row["after"]["seconds"] = row["solving"]["seconds"] = 1234.5
    row["solving"]["decode_tokens"] = 1_310_720
    result["rows"] = [{**row, "problem": one.problem.text} for one in read_demo_problems(PROBLEMS)]
    for name, count in result["totals"].items():
        result["totals"][name] = count * 14 if isinstance(count, int) else count
    result["totals"] |= {"solving_tokens": 999_999, "right_before_not_deposited": 14}
    show(result, console())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "1310720, 1234.5" in "\n".join(lines)  # numbers are never broken


def test_a_row_says_whether_its_bytes_were_equal(held: dict[str, Any]) -> None:
    for exact, word in ((True, "yes"), (False, "NO"), (None, "-")):
        result = copy.deepcopy(held)
        result["rows"][0]["after"]["same_bytes_cold"] = exact
        (row,) = [line for line in shown(result).splitlines() if "What is" in line]
        assert row.split()[-1] == word


@pytest.mark.parametrize("markup", [True, False])
def test_whatever_a_model_says_is_shown_as_text(held: dict[str, Any], markup: bool) -> None:
    result = copy.deepcopy(held)
    result["rows"][0]["problem"] = "[red]Is[/red] [/b]2?"
    result["rows"][0]["before"]["answer"] = "[/]\x1b[2J\n"
    text = shown(result, markup=markup)
    assert "[red]Is[/red] [/b]2?" in text
    assert "([/]\\x1b[2J)" in text
    assert "\x1b" not in text


def test_the_commands_own_console_shows_it(
    held: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show(held, console())
    assert "right (4)" in capsys.readouterr().out


# --- phases -----------------------------------------------------------------------------------


def test_a_phase_tells_its_error_and_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"phase": "recall", "model": "toy:x", "store": str(tmp_path / "store")}
    job |= {"problems": str(PROBLEMS), "attempts": 2, "max_tokens": 8, "seed": 0}
    (tmp_path / "job").write_text(json.dumps({**job, "threads": None, "engine": "transformers"}))
    assert demo_phase.main([str(tmp_path / "job"), str(tmp_path / "result")]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_model"
    assert not (tmp_path / "result").exists()
    with pytest.raises(UnknownModel):
        run_module("kvgraft.cli.demo_phase", [str(tmp_path / "job"), str(tmp_path / "result")])


def test_its_own_problems_have_answers_and_near_misses() -> None:
    posed = read_demo_problems(PROBLEMS)
    assert f"Short problems ({len(posed)})" in (demo_command.__doc__ or "")
    assert all(one.problem.expected for one in posed)
    texts = [text for one in posed for text in (one.problem.text, one.near)]
    assert len(set(texts)) == len(texts) == 2 * len(posed)
    for one in posed:
        pairs = zip(one.problem.text.split(), one.near.split(), strict=True)
        changed = [pair for pair in pairs if pair[0] != pair[1]]
        assert len(changed) == 1, one.near


@pytest.mark.model("demo:smollm2")
@pytest.mark.usefixtures("model_path")
def test_on_a_real_model_in_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where other processes want the cores too, threads that wait must not spin.
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    path = tmp_path / "problems.jsonl"
    lines = [
        ("What is 2 + 3?", "5", "What is 2 - 3?"),
        ("How many days are in a week?", "7", "How many days are in a year?"),
        ("How many legs does a spider have?", "8", "How many eyes does a spider have?"),
        (STAMPS.replace("many do", "many stamps do"), "5", NEAR[1].replace("many do", "stamps do")),
    ]
    names = ("problem", "answer", "near")
    path.write_text(
        "\n".join(
            json.dumps({"id": str(number), **dict(zip(names, line, strict=True))})
            for number, line in enumerate(lines)
        )
    )
    stages: list[str] = []
    options = DemoOptions(attempts=8, max_tokens=48, threads=2, problems=path)
    result = run_demo(options, lambda stage, done, total: stages.append(stage))
    assert {"first try", "solving", "asking again"} <= set(stages)
    totals = result["totals"]
    # Which of them a model solves by sampling is another machine class's own affair.
    assert totals["replays_byte_exact"] == totals["replayed"] > 0
    assert totals["right_after"] >= totals["right_before"]
    assert totals["replayed_with_library_emptied"] == totals["near_misses_replayed"] == 0
    assert totals["near_misses_asked"] == totals["deposited"] >= totals["replayed"]
    replays = [row["after"] for row in result["rows"] if row["after"]["how"] == "replayed"]
    assert replays
    assert all(one["right"] and one["tokens"] <= 16 and not one["reasons"] for one in replays)
