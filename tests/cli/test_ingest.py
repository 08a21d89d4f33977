"""`ingest`, `collection` and `ask --collection`: from a folder to an answer with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgraft.cli import docs

MODEL = ("--model", "toy:1")
COLLECTION = ("--collection", "notes")
INGEST = (*COLLECTION, *MODEL, "--page-tokens", 500)
HARBOUR = "The harbour master of Quillport is named Ottoline Vesk. She was born on an island."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "documents"
    root.mkdir()
    (root / "harbour.txt").write_text(HARBOUR)
    (root / "long.md").write_text(
        "# Long\n\n" + "\n\n".join(f"Line {n} says nothing of note." for n in range(60))
    )
    return root


def test_files_are_taken_in_and_only_once(run, folder: Path) -> None:
    seen = run("ingest", folder, *INGEST)
    assert seen.status == 0, seen.stderr
    assert "2 files: 2 added" in seen.stdout
    assert "to capture: " in seen.stdout
    again = run("ingest", folder, *INGEST)
    assert "2 unchanged" in again.stdout
    assert "captured now" not in again.stdout


def test_the_document(run, folder: Path) -> None:
    (folder / "bad.txt").write_bytes(b"\xff\x00")
    document = run("ingest", folder, *INGEST, "--json").document
    assert set(document) == set(docs.DOCUMENTS["ingest"])
    outcomes = {Path(one["path"]).name: one["outcome"] for one in document["files"]}
    assert outcomes == {"bad.txt": "failed", "harbour.txt": "added", "long.md": "added"}
    totals = document["totals"]
    assert totals["captured"] == totals["pages"] == document["captured"]["pages"]
    assert document["forecast"]["tokens"] == document["captured"]["tokens"]


def test_the_text_first_and_the_states_later(run, folder: Path) -> None:
    first = run("ingest", folder, *INGEST, "--text-only", "--json").document
    assert first["totals"]["captured"] == 0
    second = run("ingest", folder, *INGEST, "--json").document
    assert second["totals"]["captured"] == second["totals"]["pages"] == second["captured"]["pages"]


def test_a_question_is_answered_with_its_source(run, folder: Path) -> None:
    run("ingest", folder, *INGEST)
    asked = ("ask", "Who is the harbour master of Quillport?", *COLLECTION, *MODEL)
    seen = run(*asked, "--max-tokens", 8)
    assert seen.status == 0, seen.stderr
    assert "harbour.txt, page 1" in seen.stdout
    assert "grafted" in seen.stdout
    document = run(*asked, "--max-tokens", 8, "--json").document
    assert set(document) == set(docs.DOCUMENTS["ask --collection"])
    assert document["cost"]["reused_tokens"] > 0
    assert document["relevant"] is True
    nothing = run("ask", "Zebra xylophone quartz?", *COLLECTION, *MODEL)
    assert nothing.status == 0
    assert "nothing in the collection is relevant" in nothing.stdout


def test_what_there_is_and_taking_it_out(run, folder: Path) -> None:
    assert "no collections" in run("collection", "ls").stdout
    run("ingest", folder, *INGEST)
    (row,) = run("collection", "ls", "--json").document["collections"]
    assert (row["name"], row["model"], row["documents"]) == ("notes", "toy:1", 2)
    assert "notes" in run("collection", "ls").stdout
    shown = run("collection", "show", "notes", "--json").document
    assert [Path(one["path"]).name for one in shown["documents"]] == ["harbour.txt", "long.md"]
    assert "harbour.txt" in run("collection", "show", "notes").stdout
    removed = run("collection", "rm", "notes", "--document", folder / "long.md", "--json").document
    assert removed["removed"] == 1
    assert removed["freed_bytes"] > 0
    assert run("collection", "show", "notes", "--json").document["totals"]["documents"] == 1
    assert run("collection", "rm", "notes", "--document", folder / "long.md").status == 3
    assert run("collection", "rm", "notes").status == 2
    assert run("collection", "rm", "notes", "--all").status == 0
    assert run("collection", "show", "notes").status == 3
    assert run("store", "check").status == 0


def test_files_that_are_gone(run, folder: Path) -> None:
    run("ingest", folder, *INGEST)
    (folder / "long.md").unlink()
    assert run("ingest", folder, *INGEST, "--json").document["totals"]["documents"] == 2
    after = run("ingest", folder, *INGEST, "--remove-missing", "--json").document["totals"]
    assert (after["removed"], after["documents"]) == (1, 1)


def test_tenants_do_not_see_each_others(run, folder: Path) -> None:
    run("ingest", folder, *INGEST, "--tenant", "a")
    assert run("collection", "ls", "--json").document["collections"] == []
    assert len(run("collection", "ls", "--tenant", "a", "--json").document["collections"]) == 1
    assert run("ask", "Who?", *COLLECTION, *MODEL).status == 3


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--page-tokens", 10), 2),
        (("--page-tokens", 1_000_000), 2),
        (("--collection", "x" * 300), 2),
        (("--model", "/no/such/model"), 4),
    ],
    ids=str,
)
def test_what_cannot_be_ingested(run, folder: Path, words: tuple[object, ...], status: int) -> None:
    seen = run("ingest", folder, *INGEST, *words)
    assert seen.status == status, seen.stderr
    assert "error: " in seen.stderr
    assert run("ingest", folder / "absent", *INGEST).status == 3


def test_other_pages_are_another_collection(run, folder: Path) -> None:
    run("ingest", folder, *INGEST)
    seen = run("ingest", folder, *COLLECTION, *MODEL, "--page-tokens", 600)
    assert seen.status == 2
    assert "page_tokens" in seen.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--verifier", "math"),
        ("--expected", "4"),
        ("--keep",),
        ("--minimum", "agreed"),
        ("--transfer", "page"),
        ("--system", "Be brief."),
    ],
    ids=" ".join,
)
def test_a_collection_takes_no_options_of_deposits(run, words: tuple[str, ...]) -> None:
    assert run("ask", "Who?", *COLLECTION, *MODEL, *words).status == 2


@pytest.mark.parametrize("words", [("--pages", "2"), ("--way", "each"), ("--anyway",)], ids=str)
def test_deposits_take_no_options_of_a_collection(run, words: tuple[str, ...]) -> None:
    seen = run("ask", "Who?", *MODEL, *words)
    assert seen.status == 2
    assert "--collection" in seen.stderr


def test_ctrl_c_keeps_what_is_captured_and_the_rerun_goes_on(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvgraft.context import ingest

    capture_page, calls = ingest.capture_page, 0

    def stopping(space, page):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt  # a background job may ignore the signal itself
        return capture_page(space, page)

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "capture_page", stopping)
        seen = run("ingest", folder, *INGEST, "--json")
    assert seen.status == 130
    assert seen.document["captured"]["pages"] == 2
    again = run("ingest", folder, *INGEST, "--json").document
    assert again["totals"]["captured"] == again["totals"]["pages"]
    assert again["captured"]["pages"] == again["totals"]["pages"] - 2
