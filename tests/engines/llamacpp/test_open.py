"""Choosing the engine by name; needs no llama.cpp but for the last test."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgraft.engines import registry
from kvgraft.engines.registry import open_engine
from kvgraft.errors import MissingExtra, UnknownModel, UsageError


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package look as if it were not installed."""

    def hide(package: str) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            registry.importlib.util,
            "find_spec",
            lambda name, *rest: None if name == package else find(name, *rest),
        )

    return hide


@pytest.mark.parametrize(
    ("engine", "package"), [("llamacpp", "llama_cpp"), ("transformers", "torch")]
)
def test_a_missing_engine_says_what_to_install(
    engine: str, package: str, without: Callable[[str], None]
) -> None:
    without(package)
    assert not registry.is_installed(engine)
    with pytest.raises(MissingExtra) as caught:
        open_engine("demo:smollm2", engine=engine)
    assert caught.value.hint == f"pip install 'kvgraft[{engine}]'"


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"device": "cuda"}])
def test_options_that_it_does_not_have_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="own types"):
        open_engine("demo:smollm2", engine="llamacpp", **options)


def test_engines_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown engine"):
        open_engine("demo:smollm2", engine="vllm")
    with pytest.raises(UsageError, match="of its own"):
        open_engine("toy", engine="llamacpp")
    assert open_engine("toy").name == "toy"


def test_only_gguf_files_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "is_installed", lambda engine: True)
    (tmp_path / "config.json").write_text("{}")
    for model in (str(tmp_path), "org/name"):
        with pytest.raises(UnknownModel, match="GGUF files only"):
            open_engine(model, engine="llamacpp")


def test_a_broken_build_is_named(
    tmp_path: Path, tiny_gguf: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the package raises where its library does not load."""
    import builtins

    load = builtins.__import__

    def fail(name: str, *rest: object) -> object:
        if name == "kvgraft.engines.llamacpp.engine":
            raise RuntimeError("Failed to load shared library")
        return load(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "is_installed", lambda engine: True)
    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(MissingExtra, match="cannot be loaded"):
        open_engine(str(tiny_gguf("llama")), engine="llamacpp")


def test_a_file_is_opened_by_its_path(tiny_gguf: Callable[[str], Path]) -> None:
    if not registry.is_installed("llamacpp"):
        pytest.skip("llama.cpp engine not installed")
    engine = open_engine(str(tiny_gguf("llama")), engine="llamacpp", threads=1)
    assert (engine.name, engine.model) == ("llamacpp", str(tiny_gguf("llama").resolve()))
    engine.close()
