"""Converting GGUF: tiny files built here for the rules, the real SmolLM2 for the result."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import gguf
import numpy as np
import pytest

from kvgraft.engines import gguf_convert, modelcache
from kvgraft.engines.gguf_check import check_gguf
from kvgraft.engines.gguf_convert import convert
from kvgraft.errors import MissingExtra, StoreFull, UnreadableModel, UsageError

HIDDEN, HEADS, KV_HEADS, MIDDLE = 32, 4, 2, 64
PLAIN_TEXTS = (
    "The quick brown fox",
    " one leading space",
    "   three leading spaces",
    "trailing   ",
    "1234567890",
    "3.14159 + 2/7 = x^2",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00df",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f600 \U0001f1e9\U0001f1ea \U0001f469\u200d\U0001f680",
    "<|im_start|>user\nhi<|im_end|>",
    "text<|endoftext|>text",
    "<|im_start|>",
    "a\tb\r\nc\n\n\nd",
    "def f(x):\n    return x ** 2",
    "don't can't I'll WE'RE",
    "e\u0301 decomposed",
    "\u00a0nbsp\u3000wide\u200bzero",
    "https://x.y/z?a=1&b=2",
    "",
)


def quiet(stage: str, done: int, total: int) -> None:
    """A report that nobody reads."""


def tiny_gguf(path: Path, arch: str = "llama", pre: str = "default", scale: float = 0.05) -> Path:
    """A whole one-layer model of 100 kB that transformers can load."""
    vocab = [*map(_byte_spelling, range(256)), "he", "ll", "<|endoftext|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab)
    writer.add_token_types([1] * 258 + [3, 3])  # the last two are control tokens
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    random = np.random.default_rng(0)
    for name, shape in _tensors(arch, len(vocab)).items():
        values = random.standard_normal(shape).astype(np.float32) * scale
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_spelling(byte: int) -> str:
    """How byte-level vocabularies spell one byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def _tensors(arch: str, vocab: int) -> dict[str, tuple[int, ...]]:
    kv = KV_HEADS * HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (kv, HIDDEN),
        "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (MIDDLE, HIDDEN),
        "blk.0.ffn_up.weight": (MIDDLE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, MIDDLE),
        "output_norm.weight": (HIDDEN,),
    }
    if arch == "qwen2":
        shapes |= {
            "blk.0.attn_q.bias": (HIDDEN,),
            "blk.0.attn_k.bias": (kv,),
            "blk.0.attn_v.bias": (kv,),
        }
    return shapes


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "converted"


def made(out: Path) -> list[str]:
    """The folders below `out`, whole or not."""
    return sorted(path.name for path in out.iterdir() if path.is_dir())


# --- the result ---------------------------------------------------------------------------------


def test_converted_weights_are_those_of_the_file(tiny: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = convert(tiny, out, report=quiet)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    stored = {t.name: np.array(t.data) for t in gguf.GGUFReader(tiny).tensors}
    assert model.dtype == torch.bfloat16
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ):
        wanted = torch.from_numpy(stored[theirs]).to(torch.bfloat16)
        assert torch.equal(model.state_dict()[ours], wanted), ours
    assert not hasattr(model.config, "quantization_config")
    assert (folder / "model.safetensors").stat().st_mode & 0o077 == (
        folder / "config.json"
    ).stat().st_mode & 0o077


def test_float32_is_kept_exactly_and_apart(tiny: Path, out: Path) -> None:
    import torch
    from safetensors.torch import load_file

    wide = convert(tiny, out, dtype="float32", report=quiet)
    assert wide != convert(tiny, out, report=quiet)
    stored = {t.name: np.array(t.data) for t in gguf.GGUFReader(tiny).tensors}
    weights = load_file(wide / "model.safetensors")
    assert torch.equal(
        weights["model.layers.0.mlp.up_proj.weight"],
        torch.from_numpy(stored["blk.0.ffn_up.weight"]),
    )


def test_manifest_lists_every_other_file(tiny: Path, out: Path) -> None:
    folder = convert(tiny, out, report=quiet)
    manifest = json.loads((folder / "complete.json").read_text())
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"complete.json"}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(manifest["files"])
    for name, entry in manifest["files"].items():
        assert modelcache.sha256_file(folder / name, quiet) == entry["sha256"]
    assert manifest["source_sha256"] == modelcache.sha256_file(tiny, quiet)
    texts = "".join(path.read_text() for path in folder.glob("*.json"))
    for trace in (str(tiny.parent), "is_local", "local_files_only"):  # of the machine it ran on
        assert trace not in texts


def test_conversion_is_reproducible(tiny: Path, out: Path, tmp_path: Path) -> None:
    first, second = (convert(tiny, folder, report=quiet) for folder in (out, tmp_path / "again"))
    assert (first / "complete.json").read_bytes() == (second / "complete.json").read_bytes()


def test_second_call_builds_nothing(tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = convert(tiny, out, report=quiet)
    for name in ("_build", "_load"):
        monkeypatch.setattr(gguf_convert, name, _never)
    assert convert(tiny, out, report=quiet) == folder


def test_another_file_at_the_same_path_is_converted_anew(tiny: Path, out: Path) -> None:
    first = convert(tiny, out, report=quiet)
    tiny_gguf(tiny, scale=0.07)
    assert convert(tiny, out, report=quiet) != first


def test_other_files_beside_the_gguf_are_not_read(tiny: Path, out: Path, tmp_path: Path) -> None:
    alone = convert(tiny, out, report=quiet)
    crowded = tmp_path / "crowded folder"
    crowded.mkdir()
    shutil.copy(tiny, crowded / "a model.Q8.gguf")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json"):
        (crowded / name).write_text("this is not JSON")
    folder = convert(crowded / "a model.Q8.gguf", tmp_path / "other", report=quiet)
    assert (folder / "complete.json").read_bytes() == (alone / "complete.json").read_bytes()


def test_output_is_quiet_and_settings_come_back(
    tiny: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    logging.set_verbosity_info()
    capfd.readouterr()
    try:
        convert(tiny, out, report=quiet)
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity_warning()


def test_progress_is_reported_in_order(tiny: Path, out: Path) -> None:
    seen: list[str] = []
    ends: dict[str, tuple[int, int]] = {}

    def report(stage: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        if stage not in seen:
            seen.append(stage)
        ends[stage] = (done, total)

    convert(tiny, out, report=report)
    assert seen == ["verify", "tokenizer", "load", "cast", "save", "digest"]
    assert all(done == total for done, total in ends.values())


# --- tokenizers ---------------------------------------------------------------------------------


def _ids(tokenizer: Any, text: str) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=s)["input_ids"] for s in (True, False)]


@pytest.mark.parametrize(
    ("arch", "pre", "nfc"), [("llama", "default", False), ("qwen2", "qwen2", True)]
)
def test_every_way_to_load_the_tokenizer_agrees(
    tmp_path: Path, out: Path, arch: str, pre: str, nfc: bool
) -> None:
    import unicodedata

    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    file = tiny_gguf(tmp_path / "tiny.gguf", arch, pre)
    folder = convert(file, out, report=quiet)
    assert json.loads((folder / "complete.json").read_text())["nfc"] is nfc
    auto = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    generic = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    source = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name, local_files_only=True)
    for text in PLAIN_TEXTS:
        normal = unicodedata.normalize("NFC", text) if nfc else text
        assert _ids(auto, text) == _ids(generic, text) == _ids(source, normal), text


def test_a_tokenizer_that_changes_is_refused(
    tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_convert, "_differing_probe", lambda *_, **__: "some text")
    with pytest.raises(UnreadableModel, match="other ids than the GGUF's for 'some text'"):
        convert(tiny, out, report=quiet)
    assert made(out) == []


# --- refusals -----------------------------------------------------------------------------------


def _never(*_: object, **__: object) -> None:
    raise AssertionError("must not be reached")


def test_every_cut_through_the_header_is_found(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    summary = check_gguf(tiny)
    assert (summary.architecture, summary.tensors) == ("llama", 11)
    data_bytes = sum(4 * int(np.prod(shape)) for shape in _tensors("llama", 260).values())
    header = len(whole) - data_bytes  # the last tensors' padding counts as header, which is fine
    cut = tmp_path / "cut.gguf"
    for length in (*range(0, 40), *range(40, header, 97), header, len(whole) - 4096):
        cut.write_bytes(whole[:length])
        with pytest.raises(UnreadableModel) as caught:
            check_gguf(cut)
        assert caught.value.where == str(cut)
        assert caught.value.hint


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.98])
def test_a_cut_file_never_reaches_the_loader(
    tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch, keep: float
) -> None:
    monkeypatch.setattr(gguf_convert, "_write_model", _never)
    whole = tiny.read_bytes()
    tiny.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UnreadableModel, match="bytes") as caught:
        convert(tiny, out, report=quiet)
    assert "copy or download it again" in caught.value.hint
    assert not out.exists()


def _with(whole: bytes, at: int, new: bytes) -> bytes:
    return whole[:at] + new + whole[at + len(new) :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[len(b) // 2 :], "not a GGUF file"),
        (lambda b: b"PK\x03\x04" + b[4:], "not a GGUF file"),
        (lambda b: _with(b, 4, struct.pack("<I", 1)), "version 1 is not known"),
        (lambda b: _with(b, 4, struct.pack(">I", 3)), "version 50331648 is not known"),
        (lambda b: _with(b, 8, struct.pack("<Q", 0)), "holds no tensors"),
        (lambda b: _with(b, 8, struct.pack("<Q", 2**63)), "9223372036854775808 tensors"),
        (lambda b: _with(b, 16, struct.pack("<Q", 2**40)), "1099511627776 entries"),
        (lambda b: _with(b, 24, struct.pack("<Q", 2**62)), "the header needs more"),
        (lambda b: b.replace(b"general.architecture", b"general.Architecture"), "no architecture"),
        (lambda b: _with(b, b.index(b"blk.0.attn_q.weight") + 19, b"\xff" * 4), "dimensions"),
        (lambda b: _with(b, b.index(b"blk.0.attn_q.weight") + 39, b"\xff" * 4), "unknown type"),
        (lambda b: _with(b, b.index(b"blk.0.attn_q.weight") + 43, b"\xff" * 7), "the tensors need"),
    ],
)
def test_damaged_headers_are_refused(tiny: Path, damage: Any, message: str) -> None:
    tiny.write_bytes(damage(tiny.read_bytes()))
    with pytest.raises(UnreadableModel, match=message) as caught:
        check_gguf(tiny)
    assert caught.value.where == str(tiny)
    assert caught.value.hint


def test_one_piece_of_a_split_model_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "piece.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnreadableModel, match="one of 3 pieces"):
        check_gguf(tmp_path / "piece.gguf")


def test_absent_files_and_folders_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(UnreadableModel, match="cannot read the file"):
            check_gguf(path)


def test_what_transformers_cannot_load_is_refused(tmp_path: Path, out: Path) -> None:
    file = tiny_gguf(tmp_path / "odd.gguf", arch="no-such-architecture")
    with pytest.raises(UnreadableModel, match="transformers could not load it") as caught:
        convert(file, out, report=quiet)
    assert caught.value.where == str(file)
    assert made(out) == []


def test_values_that_overflow_the_dtype_are_refused(tmp_path: Path, out: Path) -> None:
    file = tiny_gguf(tmp_path / "large.gguf", scale=1e30)
    with pytest.raises(UnreadableModel, match="not finite in float16"):
        convert(file, out, dtype="float16", report=quiet)
    assert made(out) == []
    convert(file, out, report=quiet)  # bfloat16 has the range


def test_unknown_dtype(tiny: Path, out: Path) -> None:
    with pytest.raises(UsageError, match="int4") as caught:
        convert(tiny, out, dtype="int4", report=quiet)
    assert "bfloat16" in caught.value.hint


def test_missing_packages_are_named(tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("gguf", "accelerate") else found(name),
    )
    with pytest.raises(MissingExtra, match="gguf, accelerate") as caught:
        convert(tiny, out, report=quiet)
    assert caught.value.hint == "pip install 'kvgraft[transformers]'"


# --- never half a folder ------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["tokenizer", "cast", "save", "digest"])
def test_interruption_leaves_nothing_and_can_be_repeated(tiny: Path, out: Path, stage: str) -> None:
    def interrupt(now: str, done: int, total: int) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tiny, out, report=interrupt)
    assert made(out) == []
    assert modelcache.complete_manifest(convert(tiny, out, report=quiet))


def _drop_manifest(folder: Path) -> None:
    (folder / "complete.json").unlink()


def _half_manifest(folder: Path) -> None:
    text = (folder / "complete.json").read_text()
    (folder / "complete.json").write_text(text[: len(text) // 2])


def _short_weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb+") as handle:
        handle.truncate(1000)


def _lost_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _killed_before_rename(folder: Path) -> None:
    _drop_manifest(folder)
    folder.rename(folder.with_name(f"{folder.name}.partial"))


@pytest.mark.parametrize(
    "harm",
    [_drop_manifest, _half_manifest, _short_weights, _lost_tokenizer, _killed_before_rename],
)
def test_incomplete_folder_is_built_again(tiny: Path, out: Path, harm: Any) -> None:
    folder = convert(tiny, out, report=quiet)
    wanted = (folder / "complete.json").read_bytes()
    harm(folder)
    assert modelcache.complete_manifest(folder) is None
    assert convert(tiny, out, report=quiet) == folder
    assert (folder / "complete.json").read_bytes() == wanted
    assert made(out) == [folder.name]


def test_full_disk_is_said_and_leaves_nothing(
    tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "_load", full)
        with pytest.raises(StoreFull):
            convert(tiny, out, report=quiet)
    assert made(out) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(StoreFull, match="are needed and 0 MB are free"):
        convert(tiny, out, report=quiet)


def test_two_at_once_build_once(tiny: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = convert(tiny, out, report=quiet)
    parked = folder.with_name("parked")
    folder.rename(parked)  # as if the other process had not finished yet
    waiting, results = threading.Event(), []

    def report(stage: str, done: int, total: int) -> None:
        if stage == "wait":
            waiting.set()

    monkeypatch.setattr(gguf_convert, "_build", _never)
    with filelock.FileLock(out / f"{folder.name}.lock"):
        thread = threading.Thread(target=lambda: results.append(convert(tiny, out, report=report)))
        thread.start()
        assert waiting.wait(20)
        parked.rename(folder)
    thread.join(20)
    assert results == [folder]


# --- a real model -------------------------------------------------------------------------------


@pytest.fixture
def converted(model_path: Path, tmp_path: Path) -> Iterator[Path]:
    # Always fresh: a folder in the shared cache could be one that an older converter made.
    yield convert(model_path, tmp_path / "real", report=quiet)
    shutil.rmtree(tmp_path / "real")


@pytest.mark.model("demo:smollm2")
def test_real_model_converts_and_speaks(converted: Path, model_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(converted, local_files_only=True).eval()
    assert model.dtype == torch.bfloat16
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])

    source = AutoTokenizer.from_pretrained(
        model_path.parent, gguf_file=model_path.name, local_files_only=True
    )
    for text in PLAIN_TEXTS:
        assert _ids(tokenizer, text) == _ids(source, text), text


@pytest.mark.model("demo:smollm2")
def test_real_file_cut_anywhere_is_refused(model_path: Path, tmp_path: Path) -> None:
    size = model_path.stat().st_size
    cut = tmp_path / "cut.gguf"
    with model_path.open("rb") as source, cut.open("wb") as target:
        shutil.copyfileobj(source, target)
    for length in (size - 1, size // 2, 2_000_000, 1_000_000, 5_000, 24, 23, 4, 3, 0):
        with cut.open("rb+") as handle:
            handle.truncate(length)
        with pytest.raises(UnreadableModel):
            check_gguf(cut)
    cut.unlink()
