"""From a model's name to a loaded engine: the one place that knows all engines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from kvgraft.engines.base import Engine
from kvgraft.engines.modelcache import Progress, Say, cache_root, converted_root
from kvgraft.engines.resolve import ResolvedModel, resolve
from kvgraft.engines.toy import open_toy
from kvgraft.errors import MissingExtra, UnknownModel

if TYPE_CHECKING:
    from kvgraft.engines.transformers.engine import TransformersEngine

DTYPES = ("bfloat16", "float16", "float32")


def _no_progress(stage: str, done: int, total: int) -> None:
    return


def _no_words(line: str) -> None:
    return


def open_engine(
    model: str,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    threads: int | None = None,
    paranoid: bool = False,
    progress: Progress = _no_progress,
    say: Say = _no_words,
) -> Engine:
    """Load `toy`, `toy:SEED`, `demo:NAME`, a model folder, a GGUF file, or a Hugging Face id.

    Raises:
        UnknownModel, UnreadableModel, UnsupportedModel, DownloadFailed: as the name says.
        MissingExtra: the engine's packages are not installed.
    """
    if model == "toy" or model.startswith("toy:"):
        return open_toy(model)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            "the transformers engine is not installed",
            where=model,
            hint="pip install 'kvgraft[transformers]'",
        )
    resolved = resolve(model, progress=progress, say=say)
    folder = _folder(resolved, dtype, progress)
    from kvgraft.engines.transformers.engine import load

    engine: TransformersEngine = load(
        folder,
        source=resolved.source,
        dtype=dtype,
        device=device,
        threads=threads,
        paranoid=paranoid,
        cache=cache_root(),
        progress=progress,
    )
    return engine


def _folder(resolved: ResolvedModel, dtype: str, progress: Progress) -> Path:
    if resolved.folder is not None:
        return resolved.folder
    if resolved.gguf is not None:
        from kvgraft.engines.gguf_convert import convert

        return convert(resolved.gguf, converted_root(), dtype=dtype, report=progress)
    assert resolved.hub_id is not None
    return _hub_folder(resolved.hub_id)


def _hub_folder(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises many kinds, offline ones included
        raise UnknownModel(
            f"the hub did not give the model: {str(error).strip().splitlines()[0]}",
            where=hub_id,
            hint="check the id and the network, or name a local folder or GGUF file",
        ) from error
