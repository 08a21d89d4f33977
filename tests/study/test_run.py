"""A whole study, stopped anywhere and resumed, on a model that says what a script gives it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from kvgraft.errors import CheckFailed, InputError, MissingExtra
from kvgraft.library.attempts import LocalModel
from kvgraft.library.verify import specs as verifiers
from kvgraft.study import conditions, worker
from kvgraft.study.bench import RESULTS, open_journal
from kvgraft.study.items import RECURRING, collect, read_items
from kvgraft.study.journal import Journal
from kvgraft.study.protocol import ModelSpec
from kvgraft.study.registration import NAME, load_registration
from kvgraft.study.run import phases, run_study
from kvgraft.study.worker import STEPS, run_steps
from study.studied import PLAN, Here, plan, script, studied

ALONE = ["greedy", "vote"]


def rows(folder: Path, step: str, label: str = "scripted") -> list[dict[str, Any]]:
    return open_journal(folder, label, step, load_registration(folder)).rows


def lasting(row: Any) -> Any:
    """What of a row is the same in every run, also where it was made twice because of a stop: then
    states that the first time computed are found the second time."""
    if isinstance(row, dict):
        passing = ("deposit_id", "context", "state", "cost_with_capture")
        passing += ("seconds", "cpu_seconds", "prefill_tokens", "reused_tokens", "model_flops")
        return {name: lasting(value) for name, value in row.items() if name not in passing}
    return [lasting(one) for one in row] if isinstance(row, list) else row


def test_everything_is_registered_before_anything_is_attempted(tmp_path: Path) -> None:
    class Looking(Here):
        def run(self, folder: Path, label: str, steps: Sequence[str], follow: Any) -> None:
            seen.append(load_registration(folder).hash)
            assert not list((folder / RESULTS).glob("*"))
            raise KeyboardInterrupt

    seen: list[str] = []
    runner = Looking(collect(plan(), tmp_path))
    with pytest.raises(KeyboardInterrupt):
        studied(tmp_path / "run", runner=runner)
    document = json.loads((tmp_path / "run" / NAME).read_text())
    assert seen == [document["hash"]]
    assert document["protocol"] == plan().as_dict()
    assert document["models"]["scripted"]["fingerprint"] == runner.engines[0].fingerprint.hex
    items = collect(plan(), tmp_path)
    assert document["data"]["splits"][RECURRING] == [i.id for i in items if i.group == RECURRING]
    assert document["code"]["verifier_version"] == "1"


def test_every_step_runs_and_every_result_names_the_registration(finished: Path) -> None:
    registration = load_registration(finished)
    assert {path.suffix for path in (finished / RESULTS).iterdir()} == {".gz"}
    for path in (finished / RESULTS).iterdir():
        first = gzip.decompress(path.read_bytes()).split(b"\n")[0]
        assert json.loads(first)["registration"] == registration.hash
    items = read_items(finished)
    ids = [item.id for item in items]
    for step in ("greedy", "vote", "library", "few_shot_text"):
        assert [row["id"] for row in rows(finished, step)] == ids
    recurring = [item.id for item in items if item.group == RECURRING]
    for step in ("deposit", "emptied"):
        assert [row["id"] for row in rows(finished, step)] == recurring


def test_the_bare_model_reuses_and_keeps_nothing(finished: Path) -> None:
    for row in rows(finished, "greedy"):
        assert row["how"] == "fresh"
        assert row["cost"]["reused_tokens"] == 0
    assert not list((finished / "stores" / "scripted.scratch").rglob("*.pack"))
    assert any(row["cost"]["reused_tokens"] for row in rows(finished, "emptied"))


def test_what_is_asked_is_asked_by_a_process_that_deposited_nothing(finished: Path) -> None:
    solving, asking = phases(plan(), plan().models[0])
    assert solving == [*ALONE, "deposit"]
    assert asking[0] == "library"
    assert set(solving + asking) == set(STEPS)
    assert phases(plan(), ModelSpec("toy", "other", library=False)) == [ALONE]
    few = plan(baselines=["greedy"], controls=["shuffled"], near_misses=0)
    assert phases(few, few.models[0]) == [["greedy", "deposit"], ["library", "shuffled"]]


def test_recurring_problems_are_replayed_and_nothing_else_is(finished: Path) -> None:
    for row in rows(finished, "library"):
        assert (row["how"] == "replayed") is (row["group"] == RECURRING)
    solved = {row["id"]: row for row in rows(finished, "deposit")}
    for row in rows(finished, "library"):
        if row["group"] == RECURRING:
            assert row["answer"] == solved[row["id"]]["answer"]
            assert row["cost"]["decode_tokens"] < solved[row["id"]]["cost"]["decode_tokens"]
            assert row["cost"]["prefill_tokens"] == 0
    context = [row["context"] for row in rows(finished, "library") if row["group"] == "held_out"]
    assert all(1 <= len(ids) <= 2 for ids in context)  # related solutions were grafted
    assert all(not row["context"] for row in rows(finished, "library") if row["group"] == "new")


def test_solutions_as_text_are_the_same_solutions(finished: Path) -> None:
    library = {row["id"]: row for row in rows(finished, "library")}
    for row in rows(finished, "few_shot_text"):
        assert row["cost"]["reused_tokens"] == 0
        if row["group"] == "held_out":
            grafted = library[row["id"]]
            assert row["context"] == grafted["context"]
            assert row["text"] == grafted["text"]
            assert row["logits_sha256"] == grafted["logits_sha256"]
            assert grafted["cost"]["prefill_tokens"] <= row["cost"]["prefill_tokens"]


def test_votes_are_counted_and_ties_are_no_answer() -> None:
    from kvgraft.library.attempts import Attempt, Batch
    from kvgraft.meter import Cost

    def voted(*texts: str, finished: bool = True) -> Any:
        return conditions._voted(Batch(tuple(Attempt(t, finished, 1) for t in texts), Cost()))

    made = voted("Answer: 016", "Answer: 16.0", "Answer: 5", "I do not know")
    assert (made["answer"], made["share"]) == ("16", 0.5)
    assert made["answers"] == ["16", "16", "5", None]
    assert voted("Answer: 1", "Answer: 2")["answer"] is None
    assert voted("Well.", "Hm.")["answer"] is None
    assert voted("Answer: 1", finished=False)["answer"] is None


class Stopping(Here):
    """Is interrupted before the row with this number is kept."""

    def __init__(self, items: Any, rows_left: int) -> None:
        super().__init__(items)
        self.rows_left = rows_left

    def run(self, folder: Path, label: str, steps: Sequence[str], follow: Any) -> None:
        append = Journal.append

        def stopping(journal: Journal, row: Any) -> None:
            if self.rows_left == 0:
                raise KeyboardInterrupt
            self.rows_left -= 1
            append(journal, row)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "append", stopping)
            super().run(folder, label, steps, follow)


@pytest.mark.parametrize("kept", [0, 23, 30, 57, 65])
def test_a_study_that_was_stopped_goes_on(tmp_path: Path, finished: Path, kept: int) -> None:
    items = collect(plan(), tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        studied(folder, runner=Stopping(items, kept))
    first = load_registration(folder)
    registration, runner = studied(folder, runner=Here(items), resume=True)
    assert registration == first
    for steps in phases(plan(), plan().models[0]):
        for step in steps:
            assert lasting(rows(folder, step)) == lasting(rows(finished, step)), step
    # What had been finished was not done again.
    before = [step for steps in phases(plan(), plan().models[0]) for step in steps]
    assert runner.steps == before[len(before) - len(runner.steps) :]
    assert studied(folder, runner=(again := Here(items)), resume=True)[0] == first
    assert again.steps == []
    assert again.engines == []


def test_a_deposit_without_its_row_keeps_its_cost(tmp_path: Path, finished: Path) -> None:
    """Stopped between a deposit and its row, solving must not look free."""
    items = collect(plan(), tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        studied(folder, runner=Stopping(items, 21))
    studied(folder, runner=Here(items), resume=True)
    mended, whole = rows(folder, "deposit"), rows(finished, "deposit")
    assert [row["state"] for row in mended] == ["solved", "known", "solved", "solved"]
    assert mended[1]["cost"] == mended[1]["rungs"][0]["cost"]
    assert mended[1]["cost"]["decode_tokens"] == whole[1]["cost"]["decode_tokens"] > 0
    assert mended[1]["cost"]["seconds"] > 0
    assert mended[1]["cost_with_capture"] is None  # that was lost, and is not known
    assert whole[1]["cost_with_capture"]["seconds"] >= whole[1]["cost"]["seconds"]


def test_a_folder_is_gone_on_with_only_if_that_is_said(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    runner = Here(collect(plan(), tmp_path))
    with pytest.raises(CheckFailed, match="registered study"):
        studied(folder, runner=runner)
    for change in ({"seed": 6}, {"suffix": "!"}, {"control_problems": 2}):
        other = plan(**change)
        with pytest.raises(CheckFailed, match="registered otherwise"):
            studied(folder, other, Here(collect(other, tmp_path)), resume=True)
    assert runner.engines == []


def test_another_model_is_not_run_under_the_registration(tmp_path: Path) -> None:
    items = collect(plan(), tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        studied(folder, runner=Stopping(items, 3))
    with pytest.raises(CheckFailed, match="not the one that was registered"):
        run_steps(folder, "scripted", ["vote"], lambda spec: script(items, seed=1))
    with pytest.raises(InputError, match="no such model"):
        run_steps(folder, "other", ["vote"], lambda spec: script(items))
    assert not (folder / RESULTS / "scripted.vote.jsonl").exists()


def test_two_processes_do_not_run_one_study(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (
        FileLock(tmp_path / "run" / ".lock"),
        pytest.raises(CheckFailed, match="another process"),
    ):
        studied(tmp_path / "run")
    assert not (tmp_path / "run" / NAME).exists()


def test_an_orphan_does_not_write_beside_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = collect(plan(), tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        studied(folder, runner=Stopping(items, 3))
    before = rows(folder, "greedy")
    monkeypatch.setattr(worker, "_LAST_ROW_SECONDS", 0.0)
    with (
        FileLock(folder / ".worker.lock"),
        pytest.raises(CheckFailed, match="still at work"),
    ):
        studied(folder, runner=Here(items), resume=True)
    assert rows(folder, "greedy") == before


def test_a_verifier_sees_the_key_only_if_the_protocol_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="compares with the key"):
        studied(tmp_path / "run", plan(verifier_sees_key=False))
    assert not (tmp_path / "run").exists()
    free = plan(verifier="regex:.+", verifier_sees_key=False)
    studied(tmp_path / "free", free)
    assert all(item.problem.expected is None for item in read_items(tmp_path / "free"))
    key = {str(item.problem.expected) for item in collect(free, tmp_path)}
    text = (tmp_path / "free" / NAME).read_text() + (
        tmp_path / "free" / "problems.json"
    ).read_text()
    assert not any(f'"{answer}"' in text for answer in key)


def test_a_model_behind_an_endpoint_is_asked_and_voted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no states: nothing is proven of it, and it has no library."""
    served = {"name": "http://127.0.0.1:9/v1#m", "label": "served", "library": False}
    made = plan(models=[*PLAN["models"], served], controls=[], near_misses=0)
    items = collect(made, tmp_path)
    closed: list[str] = []

    class Served(LocalModel):
        def __init__(self, name: str) -> None:
            super().__init__(script(items), None)

        def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(worker, "EndpointModel", Served)
    registration, _ = studied(tmp_path / "run", made, Here(items))
    assert registration.parts["models"]["served"] == {
        "model": served["name"],
        "fingerprint": None,
        "fields": None,
    }
    mine, theirs = (rows(tmp_path / "run", "greedy", label) for label in ("scripted", "served"))
    assert [row["text"] for row in theirs] == [row["text"] for row in mine]
    assert [row["answer"] for row in theirs] == [row["answer"] for row in mine]
    voted = rows(tmp_path / "run", "vote", "served")
    assert [row["answer"] for row in voted] == [item.problem.expected for item in items]
    assert all(row["cost"]["decode_tokens"] > 0 for row in [*theirs, *voted])
    assert closed == ["closed"]


def test_what_is_not_installed_is_told_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(argument: str) -> Any:
        raise MissingExtra("not here")

    monkeypatch.setattr(verifiers, "_MAKERS", {"exact": absent})
    with pytest.raises(MissingExtra):
        run_study(plan(), tmp_path / "run", base=tmp_path)
    assert not (tmp_path / "run").exists()


def test_each_process_reads_no_more_than_it_is_told(tmp_path: Path) -> None:
    """A run folder is enough: the protocol's own file and its data may be gone."""
    data = tmp_path / "data"
    data.mkdir()
    lines = [
        {"id": str(n), "problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(4)
    ]
    (data / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = plan(sets=[{"name": "sums", "file": "sums.jsonl"}], near_misses=0)
    items = collect(made, data)

    class Away(Here):
        def run(self, folder: Path, label: str, steps: Sequence[str], follow: Any) -> None:
            if data.exists():
                shutil.rmtree(data)
            super().run(folder, label, steps, follow)

    run_study(made, tmp_path / "run", base=data, runner=Away(items))
    assert len(rows(tmp_path / "run", "library")) == 4


def test_the_small_plan_is_what_the_tests_say(tmp_path: Path) -> None:
    groups = [item.group for item in collect(plan(), tmp_path)]
    assert [groups.count(name) for name in ("recurring", "held_out", "new")] == [4, 4, 2]
    assert PLAN["solve"]["attempts"] == 3
