"""GGUF file -> plain Hugging Face folder, once, into a cache folder.

A converted folder holds `config.json`, `model.safetensors`, the tokenizer files and a manifest,
`complete.json`, written last. Its name is the key of what it was made from: the GGUF's SHA-256, the
dtype, the version of this converter and that of transformers. A folder without a manifest that
fits its files is never used.

Tokenizer: `tokenizer_config.json` names the generic class, so that a later load takes
`tokenizer.json` as it is, and a conversion compares the ids of `TOKENIZER_PROBES`, GGUF against
folder, and fails if any differ. One difference is known and allowed: for some families (Qwen)
`AutoTokenizer` insists on the model's own class, which normalises text to NFC as the original
tokenizer does and as the GGUF tokenizer (and llama.cpp) does not. Then `tokenizer.json` gets the
normaliser too, so that every way to load the folder agrees, and the manifest says `nfc`: such a
folder gives the GGUF tokenizer's ids for the NFC form of a text.

BOS: transformers 5.24 follows the GGUF's `add_bos_token`, so Gemma's tokenizer does prepend BOS
(id 2) when special tokens are asked for, and then a text that starts with `<bos>` has two. Older
releases did not prepend it. The manifest records what this one does (`adds_bos`, `bos_token_id`);
the policy is decided where prompts are built, not here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from kvgraft.engines.gguf_check import check_gguf
from kvgraft.engines.modelcache import (
    COMPLETE_NAME,
    Progress,
    complete_manifest,
    converted_prefix,
    locked,
    need_space,
    out_of_space,
    sha256_file,
    sha256_once,
    store_errors,
    sync_folder,
)
from kvgraft.errors import KvgraftError, MissingExtra, UnreadableModel, UsageError

CONVERTER_VERSION = 1  # raise it when the same GGUF would give other bytes
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
PACKAGES = ("torch", "transformers", "gguf", "accelerate", "safetensors")
TOKENIZER_BYTES = 64 * 1024 * 1024  # room for the tokenizer files; Gemma's take 34 MB
MAX_SHARD_BYTES = 2**50  # one model.safetensors, however large

TOKENIZER_PROBES = (
    "Hello world",
    "  two leading spaces",
    "trailing spaces  ",
    "\tTab\nnewline\r\nreturn",
    " \n \n\n   x",
    "1234567890 3.14159 1e-6",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m",
    "decomposed a\u0301 e\u0308 n\u0303",
    "I'm you'll THEY'RE",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 and \U0001f389",
    "<bos>Hi<eos>",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>",
    "<start_of_turn>user\n",
    "def f(x):\n    return x**2\n",
    "e^{i\\pi} + 1 = 0",
    "\u2581under\u00a0nbsp\u3000wide",
    "",
    "   ",
)


def convert(gguf: Path, out_folder: Path, *, dtype: str = "bfloat16", report: Progress) -> Path:
    """The Hugging Face folder made from `gguf`: a keyed subfolder of `out_folder`, built if absent.

    `report(stage, done, total)` gets the stages `verify` and `digest` in bytes; `tokenizer`,
    `load`, `cast` and `save` in steps; `wait` while another process builds the same folder.
    Raises UnreadableModel, MissingExtra, UsageError (dtype), StoreFull, StoreReadOnly, StoreError.
    """
    if dtype not in DTYPE_BYTES:
        hint = f"use one of {', '.join(DTYPE_BYTES)}"
        raise UsageError(f"cannot convert to {dtype!r}", where="dtype", hint=hint)
    _require_packages()
    summary = check_gguf(gguf)
    with store_errors(out_folder):
        out_folder.mkdir(parents=True, exist_ok=True)
        source_sha256 = sha256_once(gguf, _memo(gguf, out_folder), report)
        release = importlib.metadata.version("transformers")
        identity = {
            "source_sha256": source_sha256,
            "dtype": dtype,
            "converter_version": CONVERTER_VERSION,
            "transformers": release,
        }
        key = f"{converted_prefix(source_sha256)}-{dtype}-c{CONVERTER_VERSION}-t{release}"
        folder = out_folder / key
        if _is_made_from(folder, identity):
            return folder
        with locked(out_folder / f"{key}.lock", lambda: report("wait", 0, 1)):
            if not _is_made_from(folder, identity):  # another process may just have built it
                need_space(out_folder, summary.parameters * DTYPE_BYTES[dtype] + TOKENIZER_BYTES)
                _build(gguf, folder, identity, report)
    return folder


def _require_packages() -> None:
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        what = f"converting GGUF needs {', '.join(absent)}"
        hint = "pip install 'kvgraft[transformers]'"
        raise MissingExtra(what, where=", ".join(absent), hint=hint)


def _memo(gguf: Path, out_folder: Path) -> Path:
    # Beside the conversions and not beside the GGUF: that may lie in a folder that is not ours.
    name = hashlib.sha256(str(gguf.absolute()).encode()).hexdigest()[:16]
    return out_folder / f"{name}.verified.json"


def _is_made_from(folder: Path, identity: dict[str, Any]) -> bool:
    manifest = complete_manifest(folder)
    return manifest is not None and all(manifest.get(key) == identity[key] for key in identity)


def _build(gguf: Path, folder: Path, identity: dict[str, Any], report: Progress) -> None:
    """Build in a sibling folder, then rename: `folder` is complete or absent."""
    partial = folder.with_name(f"{folder.name}.partial")
    for stale in (partial, folder):  # of a killed conversion, or with files changed since
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir()
    try:
        tokenizer_facts = _write_model(gguf, partial, str(identity["dtype"]), report)
        files = _seal_files(partial, report)
        manifest = {**identity, **tokenizer_facts, "files": files}
        text = json.dumps(manifest, indent=1, sort_keys=True)
        (partial / COMPLETE_NAME).write_text(text)
        _sync_file(partial / COMPLETE_NAME)
        sync_folder(partial)
        partial.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(gguf: Path, partial: Path, dtype: str, report: Progress) -> dict[str, Any]:
    """Load from the GGUF, write weights, config and tokenizer; what to record of the tokenizer."""
    # An own folder with nothing but the GGUF in it: beside other files (a tokenizer.json, say) the
    # loaders would read those instead. A link, because the file may be large and elsewhere.
    source = partial / "source"
    source.mkdir()
    (source / "model.gguf").symlink_to(gguf.resolve())
    options: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True}
    try:
        # The tokenizer first: where it cannot be kept exactly, the weights are not worth loading.
        report("tokenizer", 0, 1)
        with _quiet_transformers():
            facts = _write_tokenizer(source, partial, options)
        report("tokenizer", 1, 1)
        report("load", 0, 1)
        with _quiet_transformers():
            model = _load(source, options)
        report("load", 1, 1)
        plain = _plain(model, dtype, report)
        del model
        report("save", 0, 1)
        with _quiet_transformers():
            plain.save_pretrained(partial, max_shard_size=MAX_SHARD_BYTES)
        report("save", 1, 1)
    except (KvgraftError, MemoryError):
        raise
    except Exception as exc:
        # transformers raises anything from KeyError to OSError here, with no common base.
        raise _load_error(exc, gguf, partial) from exc
    finally:
        shutil.rmtree(source)
    return facts


def _load(source: Path, options: dict[str, Any]) -> Any:
    import torch
    import transformers

    # Releases that can keep the weights packed do so where a kernel for it is installed.
    if hasattr(transformers, "GgufConfig"):
        options = {**options, "quantization_config": transformers.GgufConfig(dequantize=True)}
    # float32 first: in bfloat16 the dequantising arithmetic itself would be rounded.
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(source), dtype=torch.float32, **options
    )


def _plain(model: Any, dtype: str, report: Progress) -> Any:
    """The same weights in `dtype`, in a model that transformers agrees to save."""
    import torch

    target = getattr(torch, dtype)
    parameters = dict(model.named_parameters())
    for done, (name, parameter) in enumerate(parameters.items(), start=1):
        parameter.data = parameter.data.to(target)  # one at a time, so that float32 is freed early
        if not bool(torch.isfinite(parameter.data).all()):
            what = f"tensor {name} holds values that are not finite in {dtype}"
            hint = "try dtype bfloat16 or float32; if that fails too, the file is damaged"
            raise UnreadableModel(what, where=name, hint=hint)
        report("cast", done, len(parameters))
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = target
    with torch.device("meta"):  # no second set of weights
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), strict=True, assign=True)
    plain.tie_weights()
    return plain


def _write_tokenizer(source: Path, partial: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Save the tokenizer, prove that it gives the same ids when loaded; what to record of it."""
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(str(source), **options)
    tokenizer.save_pretrained(partial)
    # `AutoTokenizer` looks at the model type as well; saving the model writes this file again.
    AutoConfig.from_pretrained(str(source), **options).save_pretrained(partial)
    path = partial / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # see the module's docstring
    for name in ("is_local", "local_files_only"):  # how it was loaded here says nothing later on
        config.pop(name, None)
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    later = AutoTokenizer.from_pretrained(str(partial), local_files_only=True)
    nfc = _differing_probe(tokenizer, later, normal=False) is not None
    differing = _differing_probe(tokenizer, later, normal=nfc)
    if differing is None and nfc:
        later.backend_tokenizer.save(str(partial / "tokenizer.json"))
        generic = PreTrainedTokenizerFast.from_pretrained(str(partial), local_files_only=True)
        differing = _differing_probe(later, generic, normal=False)
    if differing is not None:
        what = f"the folder's tokenizer gives other ids than the GGUF's for {differing!r}"
        hint = "use the model's original files instead of the GGUF"
        raise UnreadableModel(what, where=str(path), hint=hint)
    bos = later.bos_token_id
    adds_bos = bos is not None and later("a")["input_ids"][:1] == [bos]
    return {"bos_token_id": bos, "adds_bos": adds_bos, "nfc": nfc}


def _differing_probe(first: Any, second: Any, *, normal: bool) -> str | None:
    """The first probe for which the ids differ; `first` gets its NFC form if `normal`."""
    for probe in TOKENIZER_PROBES:
        text = unicodedata.normalize("NFC", probe) if normal else probe
        for special in (True, False):
            wanted = first(text, add_special_tokens=special)["input_ids"]
            if second(probe, add_special_tokens=special)["input_ids"] != wanted:
                return probe
    return None


def _load_error(exc: Exception, gguf: Path, partial: Path) -> KvgraftError:
    text = f"{type(exc).__name__}: {exc}"
    # safetensors reports a full disk as an error of its own.
    if "No space left on device" in text:
        return out_of_space("no space left for the converted model", partial.parent)
    if isinstance(exc, ImportError):
        hint = "pip install 'kvgraft[transformers]'"
        return MissingExtra(f"converting GGUF failed: {text}", where=str(gguf), hint=hint)
    hint = "its architecture may be unknown to this transformers release, or the file is damaged"
    return UnreadableModel(f"transformers could not load it: {text}", where=str(gguf), hint=hint)


def _seal_files(partial: Path, report: Progress) -> dict[str, dict[str, Any]]:
    """Make the files durable; their sizes and digests."""
    mode = (partial / "config.json").stat().st_mode
    files = {}
    for path in sorted(partial.iterdir()):
        path.chmod(mode)  # safetensors writes 0600, which a shared cache could not use
        _sync_file(path)
        size = path.stat().st_size
        files[path.name] = {"bytes": size, "sha256": sha256_file(path, report, stage="digest")}
    return files


def _sync_file(path: Path) -> None:
    with path.open("rb+") as handle:
        os.fsync(handle.fileno())


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars, log lines or warnings of transformers: the caller shows its own progress.

    Never held while `report` runs, which may write to stderr.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # Some of the bars obey no switch; all of them go to what stderr is when they start.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
