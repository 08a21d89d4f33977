"""The catalog of tiny models: its names, and a model of each kind of layer."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import kvgraft.testing.families
from kvgraft.testing.families import FAMILIES, build_model, installed
from kvgraft.testing.family_rows import KINDS

# Full, sliding and chunked attention, experts, recurrent states, convolutions, shared layers, both.
BUILT = (
    "llama",
    "gemma3n_text",
    "llama4_text",
    "mixtral",
    "deepseek_v32",
    "mamba2",
    "lfm2",
    "falcon_h1",
    "qwen2_vl",
)
IDS = torch.arange(4, 44).remainder(37)[None] + 4


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def test_names_are_many_and_unique() -> None:
    folder = Path(kvgraft.testing.families.__file__).parent
    written = Counter(
        key.value
        for path in folder.glob("family_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "dict[str, Row]"
        if isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant)
    )
    assert [name for name, times in written.items() if times > 1] == []
    assert set(written) == set(FAMILIES)
    assert len(installed()) >= 60
    assert [name for name, family in FAMILIES.items() if family.name != name] == []


def test_every_kind_of_layer_occurs_and_has_a_word() -> None:
    assert {kind for family in FAMILIES.values() for kind in family.layer_kinds} == set(KINDS)
    assert {family.attention for family in FAMILIES.values()} == {"sdpa", "eager"}


@pytest.mark.parametrize("name", installed())
def test_configs_can_be_made_twice_and_have_the_layers(name: str) -> None:
    family = FAMILIES[name]
    one, two = (family.build().get_text_config() for _ in range(2))
    assert one.to_dict() == two.to_dict()
    assert one.num_hidden_layers == len(family.layer_kinds)


@pytest.mark.parametrize("name", BUILT)
def test_a_model_is_a_function_of_its_seed(name: str) -> None:
    one, two, other = (build_model(name, seed=seed) for seed in (0, 0, 1))
    assert not one.training
    assert torch.equal(logits(one), logits(two))
    assert not torch.equal(logits(one), logits(other))
    assert logits(one).isfinite().all()


def test_building_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model("llama")
    assert torch.equal(torch.rand(3), expected)


def test_a_model_has_the_dtype_that_it_is_asked_for() -> None:
    parameters = build_model("llama", dtype=torch.bfloat16).parameters()
    assert {parameter.dtype for parameter in parameters} == {torch.bfloat16}


def test_the_catalog_needs_no_torch() -> None:
    script = (
        "import sys, kvgraft.testing.families\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
