"""Registered first, never rewritten, and the key opens for nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvgraft
from kvgraft.errors import CheckFailed, InputError, StoreError
from kvgraft.library.problem import Problem
from kvgraft.study import registration
from kvgraft.study.registration import (
    NAME,
    Registration,
    SealedKey,
    blind,
    canonical_json,
    code_part,
    data_part,
    differences,
    load_registration,
    problems_digest,
    register,
)

PROBLEMS = [Problem("a", "What is 1 + 1?", "2", checks={"n": 1}), Problem("b", "And 2 + 2?", "4")]


def parts(**changes: Any) -> dict[str, Any]:
    return {
        "protocol": {"name": "p", "seed": 1, "sets": [{"share": 0.5}]},
        "data": data_part(PROBLEMS, deposit=PROBLEMS[:1], held_out=PROBLEMS[1:]),
        "code": {"kvgraft": "0", "sources_sha256": "c"},
        "models": {"m": "fingerprint", "kvgraft": "a label"},
        **changes,
    }


def test_the_hash_is_written_first_and_stays(tmp_path: Path) -> None:
    made = register(tmp_path / "run", parts())
    path = tmp_path / "run" / NAME
    text = path.read_text()
    document = json.loads(text)
    assert document["hash"] == made.hash
    assert document["data"]["splits"] == {"deposit": ["a"], "held_out": ["b"]}
    assert made.written
    assert made.registered_at
    again = register(tmp_path / "run", parts())
    assert again == made == load_registration(tmp_path / "run")
    assert path.read_text() == text
    assert [one.name for one in path.parent.iterdir()] == [NAME]


def test_the_answers_are_nowhere_in_it(tmp_path: Path) -> None:
    secret = [Problem("a", "What?", "73891"), Problem("b", "Why?", "the key")]
    register(tmp_path, parts(data=data_part(secret)))
    assert "73891" not in (tmp_path / NAME).read_text()
    assert "the key" not in (tmp_path / NAME).read_text()
    seen, key = blind(secret)
    assert [problem.expected for problem in seen] == [None, None]
    assert [(problem.id, problem.text) for problem in seen] == [("a", "What?"), ("b", "Why?")]
    assert "73891" not in repr(key)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"protocol": {"name": "p", "seed": 2, "sets": [{"share": 0.5}]}}, "seed"),
        ({"protocol": {"name": "p", "seed": 1, "sets": [{"share": 0.6}]}}, "sets[0].share"),
        ({"protocol": {"name": "p", "seed": 1.0, "sets": [{"share": 0.5}]}}, "seed"),
        ({"protocol": {"name": "p", "seed": True, "sets": [{"share": 0.5}]}}, "seed"),
        ({"protocol": {"name": "p", "seed": 1}}, "sets"),
        ({"models": {"m": "another", "kvgraft": "a label"}}, "models differs in m"),
        ({"models": {"m": "fingerprint", "kvgraft": "other"}}, "models differs in kvgraft"),
        ({"code": {"kvgraft": "0", "sources_sha256": "c", "verifier_version": "2"}}, "verifier"),
        ({"data": data_part(PROBLEMS)}, "splits.deposit"),
        ({"data": data_part([*PROBLEMS[:1], Problem("b", "And 2 + 2?", "5")])}, "key_sha256"),
        ({"data": data_part([*PROBLEMS[:1], Problem("b", "And 2 + 3?", "4")])}, "problems_sha256"),
    ],
)
def test_another_study_in_the_folder_is_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    made = register(tmp_path, parts())
    with pytest.raises(CheckFailed, match="registered otherwise") as caught:
        register(tmp_path, parts(**change))
    assert named in str(caught.value)
    assert load_registration(tmp_path) == made
    assert Registration(parts(**change)).hash != made.hash


def test_mended_code_is_written_down(tmp_path: Path) -> None:
    made = register(tmp_path, parts())
    other = {"kvgraft": "0", "sources_sha256": "d"}
    for _ in range(2):  # once, not at every start
        mended = register(tmp_path, parts(code=other))
        assert mended.hash == made.hash
        assert [one["code"] for one in mended.amendments] == [other]
    back = register(tmp_path, parts())
    assert [one["code"] for one in back.amendments] == [other, parts()["code"]]
    assert all(one["hash"] == made.hash and one["at"] for one in back.amendments)


def test_results_without_a_registration_are_not_registered_afterwards(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}")
    with pytest.raises(CheckFailed, match="none is a registration"):
        register(tmp_path, parts())
    assert not (tmp_path / NAME).exists()
    (tmp_path / "results.jsonl").rename(tmp_path / ".note")  # a hidden file is no result
    register(tmp_path, parts())


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["protocol"].update(seed=2),
        lambda document: document["data"]["splits"]["deposit"].append("b"),
        lambda document: document.update(hash="0" * 64),
        lambda document: document.update(format="kvgraft-registration-0"),
        lambda document: document.pop("models"),
        lambda document: document.pop("registered_at"),
    ],
)
def test_an_edited_registration_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    register(tmp_path, parts())
    edit(tmp_path / NAME, change)
    for action in (lambda: load_registration(tmp_path), lambda: register(tmp_path, parts())):
        with pytest.raises(InputError, match="registration"):
            action()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000, '{"format": 1}'])
def test_something_else_in_its_place_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(InputError, match="not a registration"):
        load_registration(tmp_path)


def test_no_study_no_registration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no registered study"):
        load_registration(tmp_path)
    with pytest.raises(InputError, match="has the parts"):
        register(tmp_path, {"protocol": {}})
    with pytest.raises(InputError, match="not JSON"):
        register(tmp_path, parts(protocol={"seed": float("nan")}))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        register(tmp_path / "file" / "run", parts())


def test_two_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    script = (
        "import sys, json, pathlib\n"
        "from kvgraft.study.registration import register\n"
        "parts = json.loads(sys.argv[2])\n"
        "sys.stdin.read()\n"
        "print(register(pathlib.Path(sys.argv[1]), parts).registered_at)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run"), json.dumps(parts())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    said = [process.communicate("")[0] for process in started]
    assert {process.returncode for process in started} == {0}
    assert len(set(said)) == 1
    assert [one.name for one in (tmp_path / "run").iterdir()] == [NAME]


def test_whoever_comes_second_does_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw no registration; the other one was faster."""
    made = register(tmp_path, parts())
    text = (tmp_path / NAME).read_text()
    there, asked = Path.exists, []

    def blind_once(path: Path) -> bool:
        asked.append(path)
        return len(asked) > 1 and there(path)

    monkeypatch.setattr(Path, "exists", blind_once)
    monkeypatch.setattr(registration, "_is_content", lambda path: False)
    with pytest.raises(CheckFailed, match="registered otherwise"):
        register(tmp_path, parts(protocol={"seed": 2}))
    assert (tmp_path / NAME).read_text() == text
    assert load_registration(tmp_path) == made
    assert [one.name for one in tmp_path.iterdir()] == [NAME]


def test_the_key_opens_for_its_own_registration_alone(tmp_path: Path) -> None:
    _, key = blind(PROBLEMS)
    with pytest.raises(CheckFailed, match="closed until"):
        key.open(Registration(parts()))
    made = register(tmp_path, parts())
    assert key.open(made) == {"a": "2", "b": "4"}
    with pytest.raises(CheckFailed, match="not those"):
        SealedKey({"a": "2", "b": "5"}).open(made)
    with pytest.raises(CheckFailed, match="not those"):
        SealedKey({"a": "2"}).open(made)


def test_digests_do_not_depend_on_the_order_and_see_every_field() -> None:
    assert problems_digest(PROBLEMS) == problems_digest(PROBLEMS[::-1])
    assert problems_digest(PROBLEMS) == problems_digest(blind(PROBLEMS)[0])
    first = PROBLEMS[0]
    others = [
        Problem("c", first.text, checks=first.checks),
        Problem("a", "What is 1 + 2?", checks=first.checks),
        Problem("a", first.text, system="Be brief.", checks=first.checks),
        Problem("a", first.text),
    ]
    digests = {problems_digest([one, PROBLEMS[1]]) for one in [first, *others]}
    assert len(digests) == 5


def test_the_code_is_digested_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_part() == code_part()
    assert code_part()["kvgraft"] == kvgraft.__version__
    package = tmp_path / "kvgraft"
    (package / "sub").mkdir(parents=True)
    monkeypatch.setattr(kvgraft, "__file__", str(package / "__init__.py"))
    digests = set()
    for name, text in (
        ("__init__.py", ""),
        ("sub/one.py", "x = 1"),
        ("sub/one.py", "x = 2"),
        ("sub/two.py", ""),
    ):
        (package / name).write_text(text)
        digests.add(code_part()["sources_sha256"])
    assert len(digests) == 4
    (package / "notes.txt").write_text("no code")
    assert code_part()["sources_sha256"] in digests


def test_differences_are_named() -> None:
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a[1].b"]
    assert differences({"a": 1}, {"b": 1}) == ["a", "b"]
    assert differences([1], [1, 2], "x") == ["x"]
    assert differences({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == []
    assert canonical_json({"b": "é", "a": 1}) == '{"a":1,"b":"\\u00e9"}'
    assert registration.digest({"b": 1, "a": 2}) == registration.digest({"a": 2, "b": 1})
