"""What a user may write as a model, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgraft.engines import catalog
from kvgraft.engines.resolve import ResolvedModel, resolve
from kvgraft.errors import DownloadFailed, UnknownModel


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths start in an empty folder, and nothing is pulled unless a test says so."""
    monkeypatch.chdir(tmp_path)

    def refuse(name: str, *_: object) -> Path:
        raise AssertionError(f"{name} must not be pulled")

    monkeypatch.setattr(catalog, "pull", refuse)


def test_demo_model_is_pulled_with_the_callbacks_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def pull(name: str, progress: object, say: object) -> Path:
        seen.extend([name, progress, say])
        return Path("/somewhere/x.gguf")

    def progress(stage: str, done: int, total: int) -> None:
        """Only its identity matters."""

    monkeypatch.setattr(catalog, "pull", pull)
    found = resolve("demo:smollm2", progress=progress, say=print)
    assert found == ResolvedModel("demo", "demo:smollm2", gguf=Path("/somewhere/x.gguf"))
    assert seen == ["demo:smollm2", progress, print]
    resolve("demo:smollm2")


def test_pull_errors_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(*_: object) -> Path:
        raise DownloadFailed("no network")

    monkeypatch.setattr(catalog, "pull", pull)
    with pytest.raises(DownloadFailed):
        resolve("demo:gemma3")


def test_unknown_demo_model_hints_at_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UnknownModel) as caught:
        resolve("demo:gema3")
    assert "did you mean demo:gemma3?" in caught.value.hint


@pytest.mark.model("demo:smollm2")
def test_real_demo_model(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = resolve("demo:smollm2")
    assert found.gguf == model_path
    assert model_path.read_bytes()[:4] == b"GGUF"


def test_folder_with_config(tmp_path: Path) -> None:
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    wanted = ResolvedModel("folder", str(folder.resolve()), folder=folder.resolve())
    # The last one is spelled like a hub id: what exists on disk wins.
    for spelling in (str(folder), f"{folder}/", "./org/name", "org/../org/name", "org/name"):
        assert resolve(spelling) == wanted, spelling


def test_folder_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert resolve("~/m").folder == (tmp_path / "m").resolve()


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF", "sha256-0a1b"])
def test_gguf_file_by_ending_or_content(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF and more")
    path = (tmp_path / name).resolve()
    assert resolve(name) == ResolvedModel("gguf", str(path), gguf=path)


@pytest.mark.parametrize("name", ["org/name", "HuggingFaceTB/SmolLM2-135M", "a/b_c.d-GGUF"])
def test_hub_id_is_passed_on(name: str) -> None:
    assert resolve(name) == ResolvedModel("hub", name, hub_id=name)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "   ",
        "just-a-name",
        "absent.gguf",
        "org/absent.gguf",
        "/no/such/folder",
        "./org/name",
        "../org/name",
        "org/name/more",
        "org/",
        "/name",
        "org/name\n",
        "org/na me",
        "~/absent",
        "~no-such-user-at-all/m",
        "with\0nul",
        "x" * 5000,
        "https://host/model.gguf",
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(model: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        resolve(model)
    for accepted in ("demo:NAME", "config.json", ".gguf", "org/name"):
        assert accepted in caught.value.hint
    assert caught.value.where == model


def test_name_without_prefix_hints_at_the_demo_model() -> None:
    with pytest.raises(UnknownModel) as caught:
        resolve("smollm2")
    assert "did you mean demo:smollm2?" in caught.value.hint


def test_folder_without_config_hints_at_the_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnknownModel) as caught:
        resolve(str(tmp_path))
    assert str(tmp_path / "a.gguf") in caught.value.hint


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("model.safetensors", "empty", "/dev/null"):
        with pytest.raises(UnknownModel, match="not a GGUF model"):
            resolve(name)
