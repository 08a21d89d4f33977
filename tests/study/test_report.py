"""Scoring: the key is opened for the registered study alone, and the sentences follow the figures,
good or bad."""

from __future__ import annotations

import copy
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import CheckFailed, InputError
from kvgraft.study import report
from kvgraft.study.bench import RESULTS
from kvgraft.study.findings import findings, judged
from kvgraft.study.items import HELD_OUT, NAME, NEW, RECURRING
from kvgraft.study.protocol import BASELINES
from kvgraft.study.registration import load_registration
from kvgraft.study.report import load_figures, raw_results, score_study


@pytest.fixture
def folder(tmp_path: Path, finished: Path) -> Path:
    """The finished study, to be changed."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_every_condition_is_there_and_groups_are_apart(figures: dict[str, Any]) -> None:
    model = figures["models"]["scripted"]
    assert set(model["conditions"]) == {*BASELINES, "library"}
    right = {
        name: [None if one[group] is None else one[group]["right"] for group in one]
        for name, one in model["conditions"].items()
    }
    assert right == {
        "greedy": [2, 0, 0],
        "vote": [4, 4, 2],
        "few_shot_text": [2, 0, 0],
        "prefix_cache": [2, None, None],
        "library": [4, 0, 0],
        "answer_cache": [4, 0, 0],
        "similarity_cache": [4, 0, 0],
    }
    assert figures["problems"] == {RECURRING: 4, HELD_OUT: 4, NEW: 2}
    assert model["recurrence"]["replayed_right"] == model["recurrence"]["replayed"] == 4
    assert model["recurrence"]["failed_first"] == 2
    assert model["deposits"]["wrong"] == []
    assert model["break_even"]["solving_again"]["tokens"] >= 1
    assert model["break_even"]["solving_again"]["joules"] is None
    against = {(one["second"], one["group"]) for one in model["paired"]}
    assert ("scripted greedy", HELD_OUT) in against
    assert ("scripted prefix_cache", NEW) not in against


def test_controls_hold_and_an_emptied_library_is_the_bare_model(figures: dict[str, Any]) -> None:
    assert figures["controls_verified_wrongly"] == 0
    controls = figures["models"]["scripted"]["controls"]
    assert controls["emptied"]["same_as_bare"] == controls["emptied"]["problems"] == 4
    for name in ("shuffled", "wrong_block"):
        assert controls[name]["noticed"] == controls[name]["problems"] == 3
    assert controls["always_no"]["deposited"] == 0
    assert controls["always_yes"]["verified_wrongly"] == 3  # shown, but not counted above
    assert controls["always_yes"]["deposited_wrong"] == 3


def test_figures_are_kept_and_are_the_same_again(
    folder: Path, figures: dict[str, Any], tmp_path: Path
) -> None:
    assert load_figures(folder) == figures
    assert score_study(folder, tmp_path) == figures
    assert json.loads((folder / report.NAME).read_text()) == figures


def test_scoring_needs_no_store(folder: Path, figures: dict[str, Any], tmp_path: Path) -> None:
    shutil.rmtree(folder / "stores")
    assert score_study(folder, tmp_path) == figures


def test_an_unfinished_study_is_not_scored(folder: Path, tmp_path: Path) -> None:
    (folder / RESULTS / "scripted.decoys.jsonl.gz").unlink()
    (folder / report.NAME).unlink()
    with pytest.raises(CheckFailed, match=r"not finished: scripted, decoys"):
        score_study(folder, tmp_path)
    with pytest.raises(InputError, match="not scored"):
        load_figures(folder)


def test_the_key_opens_for_the_registered_problems_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = report.collect

    def otherwise(plan: Any, base: Path) -> Any:
        items = collect(plan, base)
        first = items[0].problem
        other = type(first)(first.id, first.text, "0", first.system, first.checks)
        return [type(items[0])(other, *(items[0].set, items[0].family, items[0].group)), *items[1:]]

    monkeypatch.setattr(report, "collect", otherwise)
    with pytest.raises(CheckFailed, match="not those that were registered"):
        score_study(folder, tmp_path)


@pytest.mark.parametrize("change", ["text", "group"])
def test_other_problems_than_the_registered_ones_were_posed(
    folder: Path, tmp_path: Path, change: str
) -> None:
    document = json.loads((folder / NAME).read_text())
    document["problems"][0][change] = {"text": "What?", "group": NEW}[change]
    (folder / NAME).write_text(json.dumps(document))
    with pytest.raises(CheckFailed, match="that were posed"):
        score_study(folder, tmp_path)


def test_figures_of_another_study_are_refused(folder: Path) -> None:
    data = json.loads((folder / report.NAME).read_text())
    for change in ({"format": "kvgraft-study-0"}, {"registration": {"hash": "0"}}):
        (folder / report.NAME).write_text(json.dumps({**data, **change}))
        with pytest.raises(InputError, match="another study or release"):
            load_figures(folder)
    for text in ("", "[]", "{}"):
        (folder / report.NAME).write_text(text)
        with pytest.raises(InputError, match="no figures"):
            load_figures(folder)


def test_raw_results_are_all_results(finished: Path) -> None:
    lines = [json.loads(line) for line in raw_results(finished).splitlines()]
    kept = [
        json.loads(line)
        for path in sorted((finished / RESULTS).iterdir())
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    assert sorted(map(json.dumps, lines)) == sorted(map(json.dumps, kept))
    heads = [line for line in lines if "format" in line]
    assert len(heads) == len(list((finished / RESULTS).iterdir()))
    assert {head["registration"] for head in heads} == {load_registration(finished).hash}


# --- sentences ----------------------------------------------------------------------------------


def changed(figures: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    made = copy.deepcopy(figures)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return made


MODEL = ("models", "scripted")


def test_records_without_a_state_are_named_where_they_are_the_cause(
    figures: dict[str, Any],
) -> None:
    data = changed(figures, *MODEL, "controls", "shuffled", "verified_wrongly", to=2)
    assert "keep text only" not in "\n".join(findings(data))
    data = changed(data, *MODEL, "controls", "shuffled", "recorded_wrongly", to=2)
    assert "2 of them came from deposits that keep text only." in "\n".join(findings(data))


def test_the_sentences_say_what_the_figures_say(figures: dict[str, Any]) -> None:
    lines = figures["findings"]
    assert lines == findings(figures)
    assert "4 of 4 right, alone 2 of 4: no difference is shown (p = 0.5" in lines[0]
    text = "\n".join(lines)
    assert "which saw the key, let 4 of 4 problems in; 0 of these deposits are wrong" in text
    assert "Not gained over a plain answer cache: right answers to recurring problems" in text
    assert "Not gained over a plain answer cache: right answers to held-out problems" in text
    assert "Gained over a plain answer cache: a wrong record is noticed" in text
    assert "3 of 3 were refused" in text
    assert "none got a wrong answer" in text
    assert "Near misses: 0 of" in text


@pytest.mark.parametrize(
    ("only", "p", "words"),
    [
        ((9, 0), 0.004, "better (p = 0.004, McNemar's exact test)"),
        ((0, 9), 0.004, "WORSE (p = 0.004, McNemar's exact test)"),
        ((5, 2), 0.45, "no difference is shown (p = 0.45, McNemar's exact test)"),
    ],
)
def test_a_comparison_is_worse_as_plainly_as_it_is_better(
    only: tuple[int, int], p: float, words: str
) -> None:
    assert judged({"only_first": only[0], "only_second": only[1], "p": p}) == words


@pytest.mark.parametrize(
    ("only", "p", "words"),
    [
        ((9, 0), 0.004, "Gained over a plain answer cache: right answers to"),
        ((9, 2), 0.07, "Not shown to be gained over a plain answer cache: right answers to"),
        ((4, 4), 1.0, "Not gained over a plain answer cache: right answers to"),
        ((2, 9), 0.07, "Not gained over a plain answer cache: right answers to"),
        ((0, 9), 0.004, "LOST against a plain answer cache: right answers to"),
    ],
)
@pytest.mark.parametrize("group", [RECURRING, HELD_OUT])
def test_what_is_gained_over_a_cache_is_what_the_test_shows(
    figures: dict[str, Any], group: str, only: tuple[int, int], p: float, words: str
) -> None:
    data = copy.deepcopy(figures)
    for one in data["models"]["scripted"]["paired"]:
        if (one["second"], one["group"]) == ("scripted answer_cache", group):
            one.update(only_first=only[0], only_second=only[1], p=p)
    name = {RECURRING: "recurring", HELD_OUT: "held-out"}[group]
    lines = [line for line in findings(data) if f"answers to {name} problems" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"{words} {name} problems")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((*MODEL, "controls", "decoys", "verified_wrongly"), 2, "CONTROLS FAILED: wrong answers"
         " that were vouched for: decoys 2."),
        ((*MODEL, "controls", "shuffled", "noticed"), 0, "Not gained over a plain answer cache: no"
         " permuted answer was noticed."),
        ((*MODEL, "recurrence", "replayed"), 0, "Nothing was replayed."),
        ((*MODEL, "deposits", "deposited"), 0, "there was nothing to recall"),
        (("registration", "protocol", "verifier_sees_key"), False, "which saw no key"),
        ((*MODEL, "near_misses", "from_library"), 3, "Near misses: 3 of"),
    ],
)  # fmt: skip
def test_bad_news_is_told(
    figures: dict[str, Any], path: tuple[Any, ...], value: Any, words: str
) -> None:
    assert words in "\n".join(findings(changed(figures, *path, to=value)))
    assert words not in "\n".join(figures["findings"])
