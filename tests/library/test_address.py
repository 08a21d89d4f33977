"""Exact addresses: the same request always, another request never (faults 4, 6, 19, 20)."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.errors import InputError
from kvgraft.library.address import (
    AddressSpace,
    RequestIdentity,
    address,
    canonical_text,
    digest_parts,
)

PLAIN = RequestIdentity(
    problem="What is 2 + 2?", tenant="default", template_digest="t", tokenizer_digest="k"
)
FULL = replace(
    PLAIN,
    system="",
    tools_digest="o",
    tool_choice="auto",
    stop=("\n\n", "END"),
    max_tokens=64,
    images_digest=digest_parts([b"a", b"b"]),
    parent="p",
    extra=(("format", "json"), ("effort", "low")),
)
DOC = Path(__file__).parents[2] / "docs" / "ADDRESS.md"

# Texts rich in what canonical form has to decide about.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(
            list(" \t\n\r\x0b\x0c\x85\xa0\u2028e\u0301\u0316\u212a\u0344\u0f73-\u2212")
        ),
        st.characters(exclude_categories=("Cs",), exclude_characters="\0"),
    ),
    max_size=60,
)


# --- canonical text ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("", ""),
        ("x", "x"),
        ("a\r\nb\rc\n", "a\nb\nc"),
        ("a \t\n\tb  ", "a\n\tb"),
        ("a\r\n\r\n", "a"),
        ("a \r\n \r\n", "a"),
        (" \t\n ", ""),
        ("e\u0301 \u212a", "é K"),
        ("a\n\n\nb", "a\n\n\nb"),
        ("  a\n\n", "  a"),
        ("a\xa0\nb\xa0", "a\xa0\nb\xa0"),
        ("a\u2028\x0c\x85", "a\u2028\x0c\x85"),
        ("x\u00b2", "x\u00b2"),
    ],
)
def test_canonical_text(given_text: str, expected: str) -> None:
    assert canonical_text(given_text) == expected


@given(TEXTS)
def test_canonical_text_is_idempotent_and_says_no_more_than_it_promises(text: str) -> None:
    once = canonical_text(text)
    assert canonical_text(once) == once
    assert unicodedata.is_normalized("NFC", once)
    # A slow and literal form of the definition.
    slow = re.sub(r"\r\n?", "\n", unicodedata.normalize("NFC", text))
    slow = re.sub(r"[ \t\n]+\Z", "", re.sub(r"[ \t]+(?=\n)", "", slow))
    assert once == slow


@given(TEXTS)
def test_only_white_space_at_ends_and_composition_change(text: str) -> None:
    def bare(some: str) -> str:
        return re.sub(r"[ \t\r\n]+", "", unicodedata.normalize("NFD", some))

    assert bare(canonical_text(text)) == bare(text)


@pytest.mark.parametrize("text", ["a\ud800", "\udc80", "a\0b", "é\0", "\0"])
def test_text_that_no_model_can_read_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"surrogate|NUL"):
        canonical_text(text)


def test_a_paired_surrogate_is_a_character() -> None:
    assert canonical_text("\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")) == "😀"


@pytest.mark.parametrize("text", ["a" * 101, "é" * 51, "a" * 99 + "é", "\U0001d15e" * 9])
def test_oversize_text_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    # The last one has 36 bytes as given and 72 composed: some characters have only a longer form.
    cap = 60 if text[0] == "\U0001d15e" else 100
    monkeypatch.setattr(limits, "MAX_PROMPT_BYTES", cap)
    with pytest.raises(InputError, match="bytes"):
        canonical_text(text)


def test_text_at_its_cap_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PROMPT_BYTES", 100)
    assert canonical_text("é" * 50) == "é" * 50
    assert canonical_text("a" * 100) == "a" * 100


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0f73", "\u0344\u0316"])
def test_a_run_of_combining_marks_cannot_hold_the_process(marks: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match="combining"):
        canonical_text("a" + marks * 200_000)
    assert time.monotonic() - start < 5
    assert canonical_text("a" + "\u0316" * 1_000)  # far more than any language or jest needs


# --- what is the same, and what is not ----------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Solve caf\u00e9.\nThen stop.",
        "Solve cafe\u0301.\nThen stop.",
        "Solve caf\u00e9.\r\nThen stop.",
        "Solve caf\u00e9.\rThen stop.",
        "Solve caf\u00e9. \t\nThen stop.",
        "Solve caf\u00e9.\nThen stop. \n",
        "Solve cafe\u0301. \r\nThen stop.\t\r\n",
    ],
)
def test_the_same_request_has_the_same_address(text: str) -> None:
    usual = replace(PLAIN, problem="Solve caf\u00e9.\nThen stop.")
    asked = replace(PLAIN, problem=text)
    assert asked == usual
    assert address(asked) == address(usual) == AddressSpace(PLAIN).address(text)
    assert len(address(asked)) == 32


NEAR_MISSES = [
    ("turn on the light", "turn off the light"),
    ("at least 3 heads", "at most 3 heads"),
    ("x^2 + 1", "x2 + 1"),
    ("x\u00b2 + 1", "x2 + 1"),
    ("what is -3 + 5", "what is 3 + 5"),
    ("what is \u22123 + 5", "what is -3 + 5"),
    ("a well-known sum", "a wellknown sum"),
    ("a well-known sum", "a well known sum"),
    ("a b", "a  b"),
    ("a b", "a\tb"),
    ("a b", "a\xa0b"),
    ("a b", "ab"),
    ("a\nb", "a\n\nb"),
    ("a\nb", "a b"),
    ("a\nb", "a\n b"),
    ("Polish", "polish"),
    ("f(x)", " f(x)"),
    ("f(x)", "\nf(x)"),
    ("f(x)", "f(x)."),
    ("1,000", "1000"),
    ("1.0", "1"),
    ("5!", "5"),
    ("\u201cA\u201d", '"A"'),
    ("\ufb01ne", "fine"),
    ("a\u200bb", "ab"),
]


@pytest.mark.parametrize(("one", "other"), NEAR_MISSES)
def test_a_near_miss_has_another_address(one: str, other: str) -> None:
    space = AddressSpace(PLAIN)
    assert space.address(one) != space.address(other)
    # In the system text just as well.
    assert address(replace(PLAIN, system=one)) != address(replace(PLAIN, system=other))


VARIANTS: list[dict[str, Any]] = [
    {"problem": "What is 2 + 3?"},
    {"tenant": "other"},
    {"system": None},
    {"system": "Be brief."},
    {"system": "be brief."},
    {"template_digest": "t2"},
    {"tokenizer_digest": "k2"},
    {"tools_digest": None},
    {"tools_digest": "o2"},
    {"tool_choice": None},
    {"tool_choice": ""},
    {"tool_choice": "none"},
    {"stop": ()},
    {"stop": ("",)},
    {"stop": ("END", "\n\n")},
    {"stop": ("\n\nEND",)},
    {"stop": ("\n", "\nEND")},
    {"stop": ("\r\n\r\n", "END")},
    {"max_tokens": None},
    {"max_tokens": 65},
    {"images_digest": None},
    {"images_digest": digest_parts([b"b", b"a"])},
    {"images_digest": digest_parts([b"ab"])},
    {"images_digest": digest_parts([b"a", b"c"])},
    {"parent": None},
    {"parent": "q"},
    {"extra": ()},
    {"extra": (("effort", "low"),)},
    {"extra": (("effort", "lowformat"), ("", "json"))},
    {"extra": (("effort", "json"), ("format", "low"))},
]


def test_every_part_of_a_request_is_part_of_its_address() -> None:
    identities = [FULL, PLAIN, *(replace(FULL, **variant) for variant in VARIANTS)]
    assert len({address(identity) for identity in identities}) == len(identities)


@given(st.lists(st.text("ab", max_size=3), min_size=6, max_size=6), st.integers(0, 5))
def test_text_moved_between_fields_makes_another_address(texts: list[str], cut: int) -> None:
    def made(parts: list[str]) -> RequestIdentity:
        tenant, system, template, choice, stop, problem = parts
        return RequestIdentity(
            problem=problem,
            tenant="t" + tenant,
            system=system,
            template_digest="d" + template,
            tokenizer_digest="k",
            tool_choice=choice,
            stop=(stop,),
        )

    joined = "".join(texts)
    other = [joined[:cut], joined[cut:], "", "", "", ""]
    same = texts == other
    assert (address(made(texts)) == address(made(other))) is same


def test_the_order_of_extra_is_no_part_of_it_but_its_names_are_unique() -> None:
    turned = replace(FULL, extra=tuple(reversed(FULL.extra)))
    assert turned == FULL
    assert address(turned) == address(FULL)
    with pytest.raises(InputError, match="twice"):
        replace(FULL, extra=(("a", "1"), ("a", "2")))


@pytest.mark.parametrize(
    "bad",
    [
        {"tenant": ""},
        {"tenant": "a\ud800"},
        {"template_digest": ""},
        {"tokenizer_digest": ""},
        {"tools_digest": ""},
        {"images_digest": ""},
        {"parent": ""},
        {"tool_choice": "\0"},
        {"stop": ("\udc00",)},
        {"stop": ("x" * (limits.MAX_ADDRESS_FIELD_BYTES + 1),)},
        {"extra": (("a", "\ud800"),)},
        {"system": "\ud800"},
        {"problem": "\0"},
        {"max_tokens": 0},
        {"max_tokens": 2**63},
    ],
)
def test_an_unusable_identity_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(PLAIN, **bad)


# --- bytes --------------------------------------------------------------------------------------


def by_the_page(identity: RequestIdentity) -> bytes:
    """The bytes under the digest, written from docs/ADDRESS.md alone."""

    def field(number: int, value: object) -> bytes:
        if value is None:
            return struct.pack("<BBQ", number, 0, 0)
        if isinstance(value, str):
            kind, data = 1, value.encode()
        elif isinstance(value, int):
            kind, data = 2, struct.pack("<Q", value)
        else:
            assert isinstance(value, tuple)
            kind, data = 3, struct.pack("<Q", len(value))
            for item in value:
                data += struct.pack("<Q", len(item.encode())) + item.encode()
        return struct.pack("<BBQ", number, kind, len(data)) + data

    names = re.findall(r"^\| (\d+) \| `(\w+)` \|", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in names] == list(range(1, 13))
    message = b"\x01"
    for number, name in names:
        value = getattr(identity, name)
        if name == "extra":
            value = tuple(text for pair in value for text in pair)
        message += field(int(number), value)
    return message


@pytest.mark.parametrize("identity", [PLAIN, FULL], ids=["plain", "full"])
def test_the_digest_is_the_one_of_the_page(identity: RequestIdentity) -> None:
    context = "kvgraft 2026-11 v1 library address"
    expected = blake3(by_the_page(identity), derive_key_context=context).digest()
    assert address(identity) == expected


def test_the_examples_and_limits_of_the_page() -> None:
    text = DOC.read_text(encoding="utf-8")
    examples = re.findall(r"^[0-9a-f]{64}$", text, re.MULTILINE)
    assert examples == [address(PLAIN).hex(), address(FULL).hex()]
    for cap in ("MAX_PROMPT_BYTES", "MAX_COMBINING_RUN", "MAX_ADDRESS_FIELD_BYTES"):
        assert f"{getattr(limits, cap):,}" in text


def test_addresses_do_not_depend_on_the_process() -> None:
    script = (
        "from kvgraft.library.address import *\n"
        "print(address(RequestIdentity(problem='What is 2 + 2?', tenant='default',"
        " template_digest='t', tokenizer_digest='k')).hex())"
    )
    seen = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout.strip())
    assert seen == {address(PLAIN).hex()}


def test_a_space_is_the_identity_without_its_problem() -> None:
    space = AddressSpace(FULL)
    assert space.tenant == "default"
    assert space.identity("a \r\n") == replace(FULL, problem="a")
    for problem in ("", "a", "é" * 3000):
        assert space.address(problem) == address(replace(FULL, problem=problem))
