"""Controls do what they say: the library is wrong in one way, and that way only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgraft.energy import EnergyMeter
from kvgraft.errors import StoreError
from kvgraft.library.ask import ask
from kvgraft.library.attempts import LocalModel
from kvgraft.library.deposit import REPLAYS, TEXT_ONLY
from kvgraft.library.problem import Problem
from kvgraft.library.replay import replay
from kvgraft.library.verify.base import Case
from kvgraft.study import controls
from kvgraft.study.bench import MAIN, RESULTS, Bench, copy_store
from kvgraft.study.controls import Fixed, decoy_text, graft_wrongly, plant
from kvgraft.study.items import HELD_OUT, RECURRING, collect, read_items
from kvgraft.study.registration import load_registration
from library.scripted import ScriptedEngine
from study.studied import plan, script


@pytest.fixture
def bench(tmp_path: Path, finished: Path) -> Iterator[Bench]:
    """The finished study's bench over a copy of its folder, with the results of controls gone."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for path in [*(folder / RESULTS).iterdir(), *(folder / "stores").iterdir()]:
        name = path.name.removeprefix("scripted.").partition(".")[0]
        if name in controls_of_the_plan():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    engine = script(collect(plan(), tmp_path))
    yield Bench(
        plan(),
        load_registration(folder),
        plan().models[0],
        tuple(read_items(folder)),
        folder,
        LocalModel(engine, None),
        engine,
        EnergyMeter(),
    )
    engine.close()


def controls_of_the_plan() -> set[str]:
    return {*plan().controls, "near_misses"} - {"emptied"}


def run(bench: Bench, name: str) -> list[dict[str, Any]]:
    journal = bench.journal(name)
    getattr(controls, f"{name}_step")(bench, journal)
    return journal.rows


def test_permuted_answers_are_refused_by_what_the_model_says(bench: Bench) -> None:
    rows = run(bench, "shuffled")
    assert len(rows) == 3
    for row in rows:
        assert row["how"] == "fresh"
        assert row["reasons"][0].startswith("not_reproduced: the replay says")
        assert row["cost"]["reused_tokens"] > 0  # the state was its own, and was loaded
    with bench.workspace(MAIN) as real, bench.workspace("shuffled") as space:
        before = {one.problem: one for one in real.library.list()}
        after = {one.problem: one for one in space.library.list()}
        assert before.keys() == after.keys()
        for problem, one in after.items():
            assert one.answer != before[problem].answer
            assert one.artifact == before[problem].artifact
            assert one.replay == REPLAYS
        assert sorted(one.answer for one in after.values()) == sorted(
            one.answer for one in before.values()
        )


def test_a_permuted_record_without_a_state_keeps_no_answer_tokens(bench: Bench) -> None:
    from dataclasses import replace

    with bench.workspace(MAIN) as real:
        one, other = real.library.list()[:2]
        made = controls._with_answer_of(replace(one, replay=TEXT_ONLY), other)
        assert (made.answer, made.answer_ids) == (other.answer, ())
        assert made.verdict.answer == other.answer


def test_another_deposits_state_is_served_and_noticed(bench: Bench) -> None:
    rows = run(bench, "wrong_block")
    assert len(rows) == 3
    for row in rows:
        assert row["how"] == "fresh"
        assert row["reasons"][0].startswith("not_reproduced")
    with bench.workspace("wrong_block") as space, bench.workspace(MAIN) as real:
        for deposit in real.library.list():
            good, wrong = replay(real, deposit.token_ids), replay(space, deposit.token_ids)
            assert wrong.from_disk  # nothing below the logits noticed
            assert wrong.decoded.logits_sha256 != good.decoded.logits_sha256
            assert good.decoded.logits_sha256 == deposit.replay_logits_sha256


def test_grafting_wrongly_twice_is_grafting_wrongly_once(bench: Bench) -> None:
    run(bench, "wrong_block")
    with bench.workspace("wrong_block") as space, bench.workspace(MAIN) as real:
        one, other = real.library.list()[:2]
        graft_wrongly(space, real.chunks, one, other)
        first = replay(space, one.token_ids).decoded.logits_sha256
        graft_wrongly(space, real.chunks, one, other)
        assert replay(space, one.token_ids).decoded.logits_sha256 == first


def test_decoys_are_there_and_are_not_answered_from(bench: Bench) -> None:
    rows = run(bench, "decoys")
    assert {row["group"] for row in rows} == {RECURRING, HELD_OUT}
    assert not any(row["from_decoy"] for row in rows)
    assert {row["how"] for row in rows if row["group"] == RECURRING} == {"replayed"}
    with bench.workspace("decoys") as space:
        planted = space.library.list(source="planted")
        assert len(planted) == len(rows) == 6
        for decoy in planted:  # each would be answered from, if it were asked itself
            answer = ask(space, Problem("", decoy.problem), max_new_tokens=1)
            assert answer.how in ("replayed", "recorded")
            assert answer.answer == decoy.answer


@pytest.mark.parametrize(
    ("text", "decoy"),
    [
        ("What is 19 + 2?", "What is 20 + 2?"),
        ("What is $2^{9}$?", "What is $3^{9}$?"),
        ("Is it so?", "Is it so? Not?"),
    ],
)
def test_a_decoy_asks_something_else(text: str, decoy: str) -> None:
    assert decoy_text(text) == decoy


def test_a_verifier_that_passes_nothing_keeps_nothing(bench: Bench) -> None:
    rows = run(bench, "always_no")
    assert {row["how"] for row in rows} == {"fresh"}
    solving = bench.journal("always_no.deposit")
    assert solving.finished
    assert {row["state"] for row in solving.rows} == {"unsolved"}
    assert all(row["cost"]["attempts"] == 3 for row in solving.rows)


def test_a_verifier_that_passes_everything_keeps_the_first_sample(bench: Bench) -> None:
    rows = run(bench, "always_yes")
    key = {item.id: item.problem.expected for item in collect(plan(), bench.folder)}
    for row in rows:
        assert row["how"] == "replayed"
        assert int(row["answer"]) == int(str(key[row["id"]])) + 1  # the first lane's, and wrong


def test_fixed_verifiers_know_what_has_no_answer() -> None:
    for passes in (True, False):
        verifier = Fixed(passes)
        verdict = verifier.verify(Case("?"), "Answer: 5")
        assert (verdict.passed, verdict.answer) == (passes, "5")
        assert verifier.verify(Case("?"), "Well.").passed is False
        verifier.close()
    assert Fixed(True).name != Fixed(False).name


def test_near_misses_are_asked_of_a_library_that_knows_the_problems(bench: Bench) -> None:
    journal = bench.journal("near_misses")
    controls.near_miss_step(bench, journal)
    assert len(journal.rows) >= 10
    assert not any(row["from_library"] for row in journal.rows)
    assert any(row["differs"] for row in journal.rows)
    with bench.workspace("near_misses") as space:
        (planted,) = space.library.list()
        assert planted.source == "planted"
        answer = ask(space, Problem("", planted.problem), max_new_tokens=1)
        assert answer.how in ("replayed", "recorded")


def test_planting_says_so(tmp_path: Path, bench: Bench) -> None:
    with bench.workspace("garden") as space:
        id = plant(space, Problem("", "What is red?"), "117")
        deposit = space.library.get(id)
        assert (deposit.source, deposit.answer.strip()) == ("planted", "117")
        assert deposit.trace == "The answer is 117."


def test_controls_run_on_as_many_problems_as_the_protocol_says(bench: Bench) -> None:
    chosen = bench.controlled(bench.items)
    assert len(chosen) == 3
    assert chosen == [item for item in bench.items if item in chosen]  # in the study's order
    assert bench.controlled(bench.items[::-1]) == chosen[::-1]
    assert bench.controlled(bench.items[:2]) == list(bench.items[:2])


def test_a_store_is_copied_whole_or_not_at_all(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = bench.store(MAIN)
    copy_store(source, tmp_path / "copy", with_library=True)
    names = {path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*.*")}
    assert {"library.sqlite3", "index.sqlite3", "store.json"} <= {path.name for path in names}
    assert not any("related" in path.name for path in names)
    copy_store(source, tmp_path / "bare", with_library=False)
    assert not (tmp_path / "bare" / "library.sqlite3").exists()

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(StoreError, match="no space"):
        copy_store(source, tmp_path / "third", with_library=True)
    assert not (tmp_path / "third").exists()


def test_changing_a_copy_changes_nothing_else(bench: Bench) -> None:
    source = bench.store(MAIN)
    before = {path: path.read_bytes() for path in (source / "blobs").rglob("*") if path.is_file()}
    for name in ("shuffled", "wrong_block", "decoys"):
        run(bench, name)
    for path, data in before.items():
        assert path.read_bytes() == data
    engine = bench.engine
    assert isinstance(engine, ScriptedEngine)
    with bench.workspace(MAIN) as real:
        for deposit in real.library.list():
            assert replay(real, deposit.token_ids).from_disk
