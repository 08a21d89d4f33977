"""`report`: one page, its data, refusals before the long work; a failed proof has status 1."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from kvgraft.cli import docs
from kvgraft.cli.report import environment
from kvgraft.evidence.report import Wanted, to_json
from report_data import a_failed_report, report_data

PASSED = "gave exactly the same numbers as runs that computed everything, bit for bit."


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """What was asked for; a ready report is the answer."""
    asked: list[Wanted] = []

    def collect(wanted: Wanted, **given: Any) -> dict[str, Any]:
        asked.append(wanted)
        assert given["environment"]
        return report_data(model=wanted.model, command=given["command"])

    monkeypatch.setattr("kvgraft.evidence.report.collect", collect)
    return asked


def saved(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "data.json"
    path.write_text(to_json(data), encoding="utf-8")
    return path


def test_a_report_of_the_toy(run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--samples", "5", "--lengths", "64,128", "--offsets", "8", "-o", page)
    seen = run("report", "toy", *words, "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["report"])
    assert document["passed"] is True
    text = page.read_text(encoding="utf-8")
    assert f"5 of 5 runs that continued from stored memory {PASSED}" in text
    # Data that tests make up are what a real report has.
    made = report_data()
    for part in ("engine", "proof"):
        assert set(document[part]) == set(made[part])
    assert set(document["proof"]["rows"][0]) == set(made["proof"]["rows"][0])
    assert [set(at) for at in document["lengths"]] == [set(made["lengths"][0])] * 2
    assert set(document["probe"]) == set(made["probe"])
    # What was printed makes the same page again.
    again = tmp_path / "again.html"
    (tmp_path / "printed.json").write_text(seen.stdout, encoding="utf-8")
    assert run("report", "--from", tmp_path / "printed.json", "-o", again).status == 0
    assert again.read_bytes() == page.read_bytes()
    assert not list(tmp_path.glob("store*"))  # nothing is kept


def test_people_get_the_verdict_and_the_place(run, tmp_path: Path, wanted) -> None:
    page = tmp_path / "page.html"
    seen = run("report", "toy", "-o", page)
    assert seen.status == 0
    assert seen.stdout.splitlines()[0].endswith(PASSED)
    assert str(page) in seen.stdout
    assert wanted == [
        Wanted(
            "toy",
            options={
                "dtype": "bfloat16",
                "device": "cpu",
                "threads": None,
                "paranoid": False,
                "engine": "transformers",
            },
        )
    ]


def test_the_options_arrive_and_the_command_repeats_them(run, tmp_path: Path, wanted) -> None:
    words = (
        *("--samples", "7", "--seed", "3", "--lengths", "64, 128", "--offsets", "8,16"),
        *("--no-probe", "--engine", "llamacpp", "--threads", "2", "--paranoid"),
    )
    seen = run("report", "a model", *words, "-o", tmp_path / "page.html", "--json")
    assert seen.status == 0, seen.stderr
    (one,) = wanted
    assert (one.samples, one.seed, one.lengths, one.offsets) == (7, 3, [64, 128], [8, 16])
    assert (one.probe, one.options["engine"], one.options["threads"]) == (False, "llamacpp", 2)
    program, name, model, *rest = shlex.split(seen.document["command"])
    assert (program, name, model) == ("kvgraft", "report", "a model")
    assert run("report", model, *rest[2:], "-o", tmp_path / "other.html").status == 0
    assert wanted[1] == Wanted(
        **{**vars(one), "options": {**one.options, "paranoid": False}}
    )  # reading the weights again changes nothing


def test_a_failed_proof_has_status_1_and_a_page(run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    data = a_failed_report()
    seen = run("report", "--from", saved(tmp_path, data), "-o", page, "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["passed"] is False
    assert "FAILED" in page.read_text(encoding="utf-8")
    human = run("report", "--from", saved(tmp_path, data), "-o", page)
    assert human.status == 1
    assert human.stdout.startswith("1 of 5 runs that continued from stored memory gave other")
    assert "error: the proof failed" in human.stderr
    # The document of a failed proof makes the page too.
    (tmp_path / "printed.json").write_text(seen.stdout, encoding="utf-8")
    assert run("report", "--from", tmp_path / "printed.json", "-o", tmp_path / "2").status == 1
    assert (tmp_path / "2").read_bytes() == page.read_bytes()


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        ((), 2, "usage"),
        (("toy", "--from", "data.json"), 2, "usage"),
        (("toy", "--samples", "4"), 2, "usage"),
        (("toy", "--lengths", "many"), 2, "usage"),
        (("toy", "--lengths", "64,,128"), 2, "usage"),
        (("toy", "--offsets", "-8"), 2, "usage"),
        (("toy", "--lengths", "5000", "--no-probe"), 2, "usage"),
        (("toy", "-o", "."), 3, "bad_input"),
        (("toy", "-o", "absent/page.html"), 3, "bad_input"),
        (("toy", "-o", os.devnull), 3, "bad_input"),
        (("--from", "absent.json"), 3, "bad_input"),
        (("--from", "."), 3, "bad_input"),
        (("toy:x",), 4, "unknown_model"),
    ],
)
def test_refusals(run, tmp_path: Path, monkeypatch, words, status: int, code: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvgraft.evidence.report.prove", lambda *given, **more: pytest.fail("late"))
    seen = run("report", *words, "--json")
    assert seen.status == status, seen.stderr
    assert seen.document["error"]["code"] == code
    assert seen.document["error"]["hint"]
    assert list(tmp_path.iterdir()) == []


def test_lengths_are_called_lengths(run) -> None:
    seen = run("report", "toy", "--lengths", "x")
    assert "lengths are whole numbers" in seen.stderr
    assert "--lengths 64,1024" in seen.stderr
    assert "offsets" not in seen.stderr


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"{}"])
def test_what_is_no_saved_report_is_refused(run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(content)
    seen = run("report", "--from", path, "-o", tmp_path / "page.html", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (3, "bad_input")
    assert not (tmp_path / "page.html").exists()


def test_an_earlier_page_is_replaced_whole(run, tmp_path: Path, wanted) -> None:
    page = tmp_path / "page.html"
    page.write_text("an earlier one", encoding="utf-8")
    assert run("report", "toy", "-o", page).status == 0
    assert page.read_text(encoding="utf-8").endswith("</html>\n")
    assert stat.S_IMODE(page.stat().st_mode) & 0o444  # as a file is usually made
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_that_cannot_be_written_leaves_the_earlier_one(
    run, tmp_path: Path, wanted, monkeypatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("an earlier one", encoding="utf-8")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvgraft.store.local.os.fsync", full)
    seen = run("report", "toy", "-o", page, "--json")
    assert seen.status == 6
    assert json.loads(seen.stdout)["error"]["code"] == "store_full"
    assert page.read_text(encoding="utf-8") == "an earlier one"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_no_folder_of_this_machine_is_told() -> None:
    lines = environment()
    assert {"python", "kvgraft", "numpy", "cpu class"} <= {line["name"] for line in lines}
    assert str(Path.home()) not in json.dumps(lines)
    assert all(" at " not in line["detail"] for line in lines)


def test_a_saved_report_says_nothing_to_the_terminal(run, tmp_path: Path) -> None:
    data = a_failed_report()
    data["proof"]["failures"] = ["\x1b]0;owned\x07\x1b[8mhidden"]
    seen = run("report", "--from", saved(tmp_path, data), "-o", tmp_path / "page.html")
    assert seen.status == 1
    assert "hidden" in seen.stdout
    assert not {"\x1b", "\x07"} & set(seen.stdout + seen.stderr)


@pytest.mark.parametrize(
    ("name", "value"), [("kl_max", 10**400), ("argmax_agree", 10**400), ("model", "\ud800")]
)
def test_a_saved_report_of_absurd_values_is_refused(
    run, tmp_path: Path, name: str, value: object
) -> None:
    data = report_data()
    data["proof"][name] = value
    if name == "model":
        data[name] = value
    seen = run("report", "--from", saved(tmp_path, data), "-o", tmp_path / "page.html", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (3, "bad_input")
    assert not (tmp_path / "page.html").exists()
