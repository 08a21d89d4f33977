"""Tiny random-weight GGUF files, and what all tests of the llama.cpp engine need.

`make test-llamacpp` installs the engine and runs these tests; where it is not installed, each
module here skips for one listed reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MIDDLE = 64, 4, 2, 16, 96
CONTEXT = 330  # past the ring of a sliding cache: llama.cpp gives it 256 cells
WINDOW = 11
SLIDING = {"gemma2": 2, "gemma3": 3}  # every so many layers, one is of full attention
WORDS = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "he"]
TYPES = [2, 3, 3, *[6] * 256, 1, 1]  # unknown, control, bytes, normal
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"


def write_gguf(
    path: Path,
    arch: str,
    change: Callable[[Any], None] = lambda writer: None,
    *,
    architecture: str | None = None,
    template: str | None = TEMPLATE,
    leave_out: str = "",
    tensors: dict[str, tuple[int, ...]] | None = None,
    split: str = "",
) -> Path:
    """A model of `arch`: llama, qwen2, qwen3, or a gemma with sliding windows in two layers.

    `change` may add or replace metadata; `architecture` is what the file calls itself instead;
    `leave_out` names a tensor, `tensors` gives other ones; `split` makes the vocabulary one of
    merges over bytes whose text is split by the pattern of that name.
    """
    import gguf

    layers = 3
    writer = gguf.GGUFWriter(path, architecture or arch)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    if arch in SLIDING:
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern(SLIDING[arch])
    if arch == "qwen2vl":
        writer.add_rope_dimension_sections([2, 3, 3, 0])
    writer.add_vocab_size(len(WORDS))
    writer.add_token_list(WORDS if not split else [*_byte_words(), *WORDS[:3], "he", "she"])
    writer.add_token_types(TYPES if not split else [*[1] * 256, *TYPES[:3], 1, 1])
    if split:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(split)
        writer.add_token_merges(["h e"])
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * len(WORDS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(False)
    if template is not None:
        writer.add_chat_template(template)
    change(writer)
    random = np.random.default_rng(0)
    for name, shape in (tensors or _tensors(arch, layers)).items():
        values = random.standard_normal(shape).astype(np.float32)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        else:
            values /= np.sqrt(np.float32(shape[-1]))
        if name != leave_out:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_words() -> list[str]:
    """How vocabularies of merges spell single bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)
    ]


def _tensors(arch: str, layers: int) -> dict[str, tuple[int, ...]]:
    query, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    one: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (query, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, query),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (MIDDLE, HIDDEN),
        "ffn_up": (MIDDLE, HIDDEN),
        "ffn_down": (HIDDEN, MIDDLE),
    }
    if arch in ("gemma3", "qwen3"):
        one |= {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)}
    if arch in SLIDING:
        one |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    shapes = {"token_embd.weight": (len(WORDS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in one.items()}
        if arch.startswith("qwen2"):
            biases = {"attn_q": query, "attn_k": kv, "attn_v": kv}
            shapes |= {f"blk.{layer}.{name}.bias": (size,) for name, size in biases.items()}
    if arch not in SLIDING:
        shapes["output.weight"] = (len(WORDS), HIDDEN)
    return shapes


@pytest.fixture
def write_tiny() -> Callable[..., Path]:
    """`write_gguf`."""
    return write_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of the tiny model of an architecture; each is written once."""
    folder = tmp_path_factory.mktemp("gguf")

    def path_of(arch: str) -> Path:
        path = folder / f"{arch}.gguf"
        return path if path.exists() else write_gguf(path, arch)

    return path_of


@pytest.fixture(scope="session")
def tiny_engine(
    tiny_gguf: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Any]:
    """The engine over a tiny model, with a block of 16; each is loaded once."""
    from kvgraft.engines.llamacpp.engine import load
    from kvgraft.plan import PlanForm

    engines: dict[str, Any] = {}
    cache = tmp_path_factory.mktemp("cache")

    def engine_of(arch: str) -> Any:
        if arch not in engines:
            form = PlanForm(block=16, rungs=())
            engines[arch] = load(tiny_gguf(arch), source=arch, threads=2, cache=cache, form=form)
        return engines[arch]

    return engine_of
