"""Files and models that are refused before, or instead of, anything being computed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

import llama_cpp

from kvgraft.engines.llamacpp import engine as engine_module
from kvgraft.engines.llamacpp import trial
from kvgraft.engines.llamacpp.engine import load
from kvgraft.errors import EngineError, FormatError, UnreadableModel, UnsupportedModel
from kvgraft.identity import Fingerprint
from kvgraft.state import LayerKind, Role
from kvgraft.testing.grafting import prompt, run_digest

TinyPath = Callable[[str], Path]
Write = Callable[..., Path]


@pytest.mark.parametrize("kept", [0, 3, 20, 1000, -1])
def test_a_file_that_was_cut_short_is_unreadable(
    tiny_gguf: TinyPath, tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf("llama").read_bytes()[:kept])
    with pytest.raises(UnreadableModel):
        load(path, source="cut", cache=tmp_path)


def test_what_llama_cpp_cannot_load_is_unreadable(write_tiny: Write, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "x.gguf", "llama", leave_out="blk.1.attn_k.weight")
    with pytest.raises(UnreadableModel, match=r"attn_k"):
        load(path, source="x", cache=tmp_path)
    with pytest.raises(UnreadableModel):
        load(tmp_path / "absent.gguf", source="x", cache=tmp_path)


def test_what_llama_cpp_does_not_survive_is_unreadable(write_tiny: Write, tmp_path: Path) -> None:
    """A vocabulary that has a token twice: an assertion of llama.cpp's ends the process."""

    def twice(writer: Any) -> None:
        writer.add_array("tokenizer.ggml.tokens", ["<unk>", "<bos>", "<eos>"] * 87)

    path = write_tiny(tmp_path / "twice.gguf", "llama", twice)
    for _ in range(2):  # it is not remembered as one that was survived
        with pytest.raises(UnreadableModel, match=r"SIGABRT.*ASSERT"):
            load(path, source="twice", cache=tmp_path)


def test_a_file_is_tried_once(
    tiny_gguf: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        tried.append(command)
        return run(command, **options)

    monkeypatch.setattr(trial.subprocess, "run", counted)
    for _ in range(2):
        load(tiny_gguf("llama"), source="x", cache=tmp_path).close()
    assert [command[-1] for command in tried] == [str(tiny_gguf("llama"))]


def test_an_architecture_that_llama_cpp_does_not_know(tmp_path: Path, write_tiny: Write) -> None:
    path = write_tiny(tmp_path / "y.gguf", "llama", architecture="quux")
    with pytest.raises(UnreadableModel, match="quux"):
        load(path, source="y", cache=tmp_path)


@pytest.mark.parametrize("architecture", ["llama4", "gemma-embedding", "modern-bert"])
def test_other_windows_are_refused_by_name(
    architecture: str, write_tiny: Write, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "z.gguf", "llama", architecture=architecture)
    with pytest.raises(UnsupportedModel, match=architecture):
        load(path, source="z", cache=tmp_path)


@pytest.mark.parametrize(
    ("function", "answer", "words"),
    [
        ("llama_model_is_recurrent", True, "recurrent"),
        ("llama_model_is_hybrid", True, "beside attention"),
        ("llama_model_has_encoder", True, "encoder"),
        ("llama_model_has_decoder", False, "no decoder"),
        ("llama_model_is_diffusion", True, "diffusion"),
        ("llama_model_rope_type", llama_cpp.LLAMA_ROPE_TYPE_IMROPE, "several dimensions"),
        ("llama_get_memory", None, "no state"),
    ],
)
def test_other_kinds_are_refused_by_name(
    tiny_gguf: TinyPath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    answer: Any,
    words: str,
) -> None:
    monkeypatch.setattr(llama_cpp, function, lambda pointer: answer)
    with pytest.raises(UnsupportedModel, match=words):
        load(tiny_gguf("llama"), source="x", cache=tmp_path)


def test_a_mamba_is_refused(write_tiny: Write, tmp_path: Path) -> None:
    def change(writer: Any) -> None:
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(128)
        writer.add_ssm_state_size(4)
        writer.add_ssm_time_step_rank(3)

    inner = 128
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (64,),
        "ssm_in.weight": (2 * inner, 64),
        "ssm_conv1d.weight": (inner, 4),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (3 + 2 * 4, inner),
        "ssm_dt.weight": (inner, 3),
        "ssm_dt.bias": (inner,),
        "ssm_a": (inner, 4),
        "ssm_d": (inner,),
        "ssm_out.weight": (64, inner),
    }
    tensors = {"token_embd.weight": (261, 64), "output_norm.weight": (64,)}
    for layer in range(3):
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in shapes.items()}
    path = write_tiny(tmp_path / "m.gguf", "mamba", change, tensors=tensors)
    with pytest.raises(UnsupportedModel, match="recurrent"):
        load(path, source="m", cache=tmp_path)


def test_positions_of_several_dimensions_are_refused(tiny_gguf: TinyPath, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="several dimensions"):
        load(tiny_gguf("qwen2vl"), source="v", cache=tmp_path)


def test_another_layout_is_refused(
    tiny_gguf: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: bytes, count: int) -> None:
        raise FormatError("transposed values")

    monkeypatch.setattr(engine_module, "learn_caches", refuse)
    with pytest.raises(UnsupportedModel, match="transposed values"):
        load(tiny_gguf("llama"), source="x", cache=tmp_path)


def test_values_that_are_transposed_are_refused(
    tiny_gguf: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a context without flash attention gives: its values cannot be cut by tokens."""
    monkeypatch.setattr(
        llama_cpp, "LLAMA_FLASH_ATTN_TYPE_ENABLED", llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    with pytest.raises(UnsupportedModel, match="laid out"):
        load(tiny_gguf("llama"), source="x", cache=tmp_path)


def test_layers_come_in_the_order_of_the_caches(tiny_engine: Callable[[str], Any]) -> None:
    spec = tiny_engine("gemma3").spec
    kinds = [layer.kind for layer in spec.layers]
    assert kinds == [LayerKind.FULL, LayerKind.SLIDING, LayerKind.SLIDING]
    assert {(layer.heads, layer.key_dim, layer.value_dim) for layer in spec.layers} == {(2, 16, 16)}
    assert (spec.end_name, spec.hidden_dtype, spec.hidden_dim) == ("logits", "F32", 261)
    assert [tensor.name for tensor in spec.tensors(Role.END, 1)] == ["ids", "logits"]


def fields_of(engine: Any) -> dict[str, str]:
    fields = dict(engine.fingerprint.fields)
    engine.close()
    return fields


def test_the_fingerprint_names_what_changes_bits(
    tiny_gguf: TinyPath, write_tiny: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(path: Path, threads: int = 2) -> Fingerprint:
        return Fingerprint.of(fields_of(load(path, source="x", threads=threads, cache=tmp_path)))

    plain = fingerprint(tiny_gguf("llama"))
    assert plain == fingerprint(write_tiny(tmp_path / "elsewhere.gguf", "llama"))
    assert plain.differing(fingerprint(tiny_gguf("llama"), threads=1)) == ("threads",)
    other = write_tiny(tmp_path / "o.gguf", "llama", lambda writer: writer.add_rope_freq_base(9e3))
    assert plain.differing(fingerprint(other)) == ("weights",)
    monkeypatch.setenv("GGML_CPU_DISABLE_FUSION", "1")
    assert plain.differing(fingerprint(tiny_gguf("llama"))) == ("device",)
    fields = dict(plain.fields)
    assert (fields["engine"], fields["kv_dtype"], fields["attention"]) == (
        "llamacpp",
        "F16",
        "flash",
    )
    assert fields["plan"] == "grid-bare-tail/block=512"
    assert fields["engine_version"].startswith("llama-cpp-python-")


def test_the_build_is_named_by_the_libraries_that_run() -> None:
    from kvgraft.engines.llamacpp.library import _loaded_libraries

    names = sorted(path.name.split(".")[0] for path in _loaded_libraries())
    assert names == sorted({*names})  # each of them once, whatever its symbolic links
    assert {"libllama", "libggml-base", "libggml-cpu"} <= set(names)


def test_a_monolithic_run_is_bounded(tiny_engine: Callable[[str], Any]) -> None:
    engine = tiny_engine("llama")
    for tokens in (0, engine.context_tokens + 1):
        with pytest.raises(EngineError, match="in one call"):
            engine.monolithic_logits(np.zeros(tokens, np.uint32))


def test_padded_rows_are_refused(tiny_engine: Callable[[str], Any]) -> None:
    context = tiny_engine("llama").open_context(20)
    with pytest.raises(EngineError, match="as many rows"):
        context.run(np.zeros(3, np.uint32), 4)
    context.close()


def test_a_used_session_is_taken_again_and_empty(tiny_engine: Callable[[str], Any]) -> None:
    engine = tiny_engine("gemma3")
    ids = prompt(engine, 300)
    cold, _ = run_digest(engine, None, ids)
    before = len(engine._sessions)
    for _ in range(6):
        assert run_digest(engine, None, ids)[0] == cold
    assert len(engine._sessions) <= before + 1
