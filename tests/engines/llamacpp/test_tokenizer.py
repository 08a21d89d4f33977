"""Text to ids and back as the GGUF file says, special tokens recognised and none added."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("llama.cpp engine not installed", allow_module_level=True)

from kvgraft.engines.base import Message
from kvgraft.engines.gguf_check import tokenizer_digest
from kvgraft.engines.gguf_convert import convert
from kvgraft.engines.llamacpp.model import Model
from kvgraft.engines.llamacpp.tokenizer import LlamaTokenizer
from kvgraft.engines.modelcache import converted_root
from kvgraft.errors import InputError, UnsupportedModel, UsageError

Write = Callable[..., Path]

TEXTS = (
    "The quick brown fox",
    " one leading space",
    "   three leading spaces",
    "trailing   ",
    "1234567890",
    "3.14159 + 2/7 = x^2",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00df",
    "e\u0301 decomposed",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\U0001f600 \U0001f1e9\U0001f1ea \U0001f469\u200d\U0001f680",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a<|im_end|>b <|endoftext|> c",
    "<bos>x<eos> <start_of_turn>user",
    "a\tb\r\nc\n\n\nd",
    "def f(x):\n    return x ** 2",
    "don't can't I'll WE'RE",
    "\u00a0nbsp\u3000wide\u200bzero",
    "https://x.y/z?a=1&b=2",
    "$\\frac{1}{2}$",
    "",
)
TURNS = (
    [Message("user", "What is 2 + 2?")],
    [
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", " again "),
    ],
)


def opened(path: Path) -> LlamaTokenizer:
    return LlamaTokenizer(Model(path), tokenizer_digest(path))


def converted(path: Path) -> Any:
    """The tokenizer of the transformers engine over the same file."""
    from kvgraft.engines.transformers.engine import load

    folder = convert(path, converted_root(), report=lambda stage, done, total: None)
    return load(folder, source="converted", cache=converted_root().parent).tokenizer


@pytest.mark.parametrize("name", ["demo:smollm2", "demo:gemma3"])
def test_ids_and_chats_are_those_of_the_converted_model(name: str, model_cache: Any) -> None:
    path = model_cache.get(name)
    mine, theirs = opened(path), converted(path)
    for text in TEXTS:
        ids = mine.encode(text)
        assert ids == theirs.encode(text), text
        assert mine.decode(ids) == theirs.decode(ids), text
    assert mine.bos_id == theirs.bos_id
    assert theirs.stop_ids <= mine.stop_ids
    assert (mine.template_digest == "none") == (theirs.template_digest == "none")
    for turns in TURNS if mine.template_digest != "none" else ():
        assert mine.render(turns) == theirs.render(turns)


@pytest.mark.model("demo:smollm2")
def test_where_llama_cpp_differs_on_purpose(model_path: Path) -> None:
    """Every token that llama.cpp takes for an end of generation is one here, and is left out of
    text; the file's own metadata names a single one."""
    tokenizer = opened(model_path)
    ends = sorted(tokenizer.stop_ids)
    assert [tokenizer._spell(token, special=True) for token in ends[:2]] == [
        b"<|endoftext|>",
        b"<|im_end|>",
    ]
    assert tokenizer.decode([*ends, *tokenizer.encode("x")]) == "x"


def test_special_tokens_are_recognised_and_none_added(tiny_gguf: Callable[[str], Path]) -> None:
    tokenizer = opened(tiny_gguf("llama"))
    assert tokenizer.encode("") == []
    assert tokenizer.encode("<bos><eos>") == [1, 2]
    assert tokenizer.encode("he") == [260]
    assert tokenizer.decode([1, *tokenizer.encode("h\u00e9"), 2]) == "h\u00e9"
    assert tokenizer.stop_ids == {2}
    with pytest.raises(InputError):
        tokenizer.decode([261])
    with pytest.raises(InputError):
        tokenizer.encode("\ud800")


def test_long_texts_and_nul_bytes(tiny_gguf: Callable[[str], Path]) -> None:
    tokenizer = opened(tiny_gguf("llama"))
    for text in ("a\0b", "x" * 100_000):
        assert tokenizer.decode(tokenizer.encode(text)) == text


# In a process of its own: without the check, it would end there and then.
LONG_RUNS = """
import sys
from pathlib import Path
from kvgraft.engines.llamacpp.model import Model
from kvgraft.engines.llamacpp.tokenizer import LlamaTokenizer
from kvgraft.errors import InputError

tokenizer = LlamaTokenizer(Model(Path(sys.argv[1])), "")
for piece in ("x", "1", " ", "!", "\\n", "\u00e9", "\u0915\u093e"):
    for count in (8192, 100_000):
        try:
            print(len(tokenizer.encode(piece * (count // len(piece)))) > 0)
        except InputError:
            print("refused")
"""


@pytest.mark.parametrize("split", ["tekken", "gpt-4o", "deepseek-llm", "falcon", "qwen2"])
def test_a_long_run_of_one_kind_does_not_end_the_process(
    split: str, write_tiny: Write, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "split.gguf", "llama", split=split)
    done = subprocess.run(
        [sys.executable, "-c", LONG_RUNS, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    second = "True" if split == "qwen2" else "refused"
    assert done.stdout.split() == ["True", second] * 7


def test_a_file_without_a_tokenizer_is_refused(write_tiny: Write, tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "none.gguf", "llama", lambda writer: writer.add_tokenizer_model("none")
    )
    with pytest.raises(UnsupportedModel, match="no tokenizer"):
        opened(path)


def test_the_digest_is_of_the_vocabulary_alone(
    tiny_gguf: Callable[[str], Path], write_tiny: Write, tmp_path: Path
) -> None:
    plain = tokenizer_digest(tiny_gguf("llama"))
    assert plain == tokenizer_digest(write_tiny(tmp_path / "same.gguf", "llama"))
    assert plain == tokenizer_digest(tiny_gguf("gemma3"))
    named = write_tiny(tmp_path / "named.gguf", "llama", lambda writer: writer.add_name("another"))
    assert plain == tokenizer_digest(named)
    other = write_tiny(tmp_path / "other.gguf", "llama", lambda writer: writer.add_pad_token_id(0))
    assert plain != tokenizer_digest(other)


def test_bos_is_what_the_file_says_but_for_gemma(
    tiny_gguf: Callable[[str], Path], write_tiny: Write, tmp_path: Path
) -> None:
    said = write_tiny(tmp_path / "no.gguf", "llama", lambda writer: writer.add_add_bos_token(False))
    assert opened(said).bos_id is None
    for path in (
        write_tiny(tmp_path / "a.gguf", "llama", lambda writer: writer.add_add_bos_token(True)),
        write_tiny(tmp_path / "b.gguf", "gemma3", lambda writer: writer.add_add_bos_token(False)),
    ):
        assert opened(path).bos_id == 1


def test_templates(write_tiny: Write, tmp_path: Path) -> None:
    def over(template: str | None) -> LlamaTokenizer:
        name = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        return opened(write_tiny(name, "llama", template=template))

    turns = [Message("user", "<&> \u00e9")]
    shown = over("{{ bos_token }}{{ messages | tojson }}{% if add_generation_prompt %}!{% endif %}")
    assert shown.render(turns) == '<bos>[{"role": "user", "content": "<&> \u00e9"}]!'
    assert over("{{ strftime_now('%Y') }}").render(turns).isdigit()
    with pytest.raises(UsageError, match="no chat template"):
        over(None).render(turns)
    for refused in (
        "{{ raise_exception('turns must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% if %}",
    ):
        with pytest.raises(InputError, match="refuses"):
            over(refused).render(turns)
