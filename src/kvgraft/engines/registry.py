"""From a model's name to a loaded engine: the one place that knows all engines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from kvgraft.engines.base import Engine
from kvgraft.engines.modelcache import Progress, Say, cache_root, converted_root
from kvgraft.engines.resolve import ResolvedModel, resolve
from kvgraft.engines.toy import open_toy
from kvgraft.errors import MissingExtra, UnknownModel, UsageError

if TYPE_CHECKING:
    from kvgraft.engines.llamacpp.engine import LlamaEngine
    from kvgraft.engines.transformers.engine import TransformersEngine

DTYPES = ("bfloat16", "float16", "float32")
TRANSFORMERS, LLAMACPP = "transformers", "llamacpp"
_PACKAGES = {TRANSFORMERS: "torch", LLAMACPP: "llama_cpp"}  # engine -> what it cannot be without


def _no_progress(stage: str, done: int, total: int) -> None:
    return


def _no_words(line: str) -> None:
    return


def is_installed(engine: str) -> bool:
    """Whether the packages of the engine of that name are there."""
    return importlib.util.find_spec(_PACKAGES[engine]) is not None


def open_engine(
    model: str,
    *,
    engine: str = TRANSFORMERS,
    dtype: str = "bfloat16",
    device: str = "cpu",
    threads: int | None = None,
    paranoid: bool = False,
    progress: Progress = _no_progress,
    say: Say = _no_words,
) -> Engine:
    """Load `toy`, `toy:SEED`, `demo:NAME`, a model folder, a GGUF file, or a Hugging Face id.

    `engine` is `transformers`, or `llamacpp` for GGUF files as they are. The toy is its own.

    Raises:
        UnknownModel, UnreadableModel, UnsupportedModel, DownloadFailed: as the name says.
        MissingExtra: the engine's packages are not installed.
        UsageError: no such engine, or an option that it does not have.
    """
    if engine not in _PACKAGES:
        raise UsageError(f"unknown engine {engine!r}", hint=" or ".join(_PACKAGES))
    if model == "toy" or model.startswith("toy:"):
        if engine != TRANSFORMERS:
            raise UsageError("the toy is an engine of its own", hint="leave the engine out")
        return open_toy(model)
    if engine == LLAMACPP and (dtype, device) != ("bfloat16", "cpu"):
        raise UsageError(
            "llama.cpp computes in the file's own types, here on the CPU alone",
            hint="leave dtype and device out, or use the transformers engine",
        )
    if not is_installed(engine):
        raise MissingExtra(
            f"the {engine} engine is not installed",
            where=model,
            hint=f"pip install 'kvgraft[{engine}]'",
        )
    resolved = resolve(model, progress=progress, say=say)
    if engine == LLAMACPP:
        return _llamacpp(resolved, threads, paranoid, progress)
    folder = _folder(resolved, dtype, progress)
    from kvgraft.engines.transformers.engine import load

    opened: TransformersEngine = load(
        folder,
        source=resolved.source,
        dtype=dtype,
        device=device,
        threads=threads,
        paranoid=paranoid,
        cache=cache_root(),
        progress=progress,
    )
    return opened


def _llamacpp(
    resolved: ResolvedModel, threads: int | None, paranoid: bool, progress: Progress
) -> LlamaEngine:
    if resolved.gguf is None:
        raise UnknownModel(
            "the llamacpp engine loads GGUF files only",
            where=resolved.source,
            hint="give demo:NAME or a .gguf file, or use the transformers engine",
        )
    try:
        from kvgraft.engines.llamacpp.engine import load
    except (ImportError, OSError, RuntimeError) as error:  # its own loader raises the last one
        raise MissingExtra(
            f"llama.cpp is installed but cannot be loaded: {error}",
            where=resolved.source,
            hint="build it anew: pip install --force-reinstall --no-cache-dir llama-cpp-python",
        ) from error
    return load(
        resolved.gguf,
        source=resolved.source,
        threads=threads,
        paranoid=paranoid,
        cache=cache_root(),
        progress=progress,
    )


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
