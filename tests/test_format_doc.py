"""docs/FORMAT.md says what the code does: byte tables, limits, keys, and a test for every MUST."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from golden.read import GOLDEN, NAMES, Golden
from kvgraft import limits
from kvgraft.blob import header as header_module
from kvgraft.blob import payload as payload_module
from kvgraft.blob.header import MAX_POSITION, ObjectHeader
from kvgraft.blob.pack import TRAILER_BYTES, PackEntry, pack_end, pack_name
from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.identity import Fingerprint
from kvgraft.plan import PlanForm, as_token_ids, chunk_keys, plan_calls, plan_root
from kvgraft.state import DTYPE_BYTES, LayerKind, LayerSpec, PointState, Role, StateSpec

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "FORMAT.md").read_text()
Row = dict[str, str]


def table(name: str) -> list[Row]:
    """The rows of the table behind `<!-- table: name -->`, by column; code marks taken off."""
    _, _, rest = TEXT.partition(f"<!-- table: {name} -->\n")
    assert rest, f"docs/FORMAT.md has no table {name!r}"
    lines = rest.split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    head, rule, *rows = cells
    assert all(set(mark) == {"-"} for mark in "".join(rule).split("|"))
    assert all(len(row) == len(head) for row in rows)
    return [
        {
            column: re.sub(r"^`([^`]*)`$", r"\1", cell)
            for column, cell in zip(head, row, strict=True)
        }
        for row in rows
    ]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def layout(name: str, size: int) -> list[tuple[str, int, int]]:
    """Field, offset and size of a byte table that leaves nothing out."""
    rows = [(row["field"], number(row["offset"]), number(row["bytes"])) for row in table(name)]
    assert [offset for _, offset, _ in rows] == [
        0,
        *(offset + count for _, offset, count in rows[:-1]),
    ]
    assert rows[-1][1] + rows[-1][2] == size
    return rows


def cut(data: bytes, name: str, size: int) -> dict[str, bytes]:
    """The fields of `data` as a table of the page lays them out; reserved bytes are joined."""
    assert len(data) == size
    found: dict[str, bytes] = {}
    for field, offset, count in layout(name, size):
        found[field] = found.get(field, b"") + data[offset : offset + count]
    return found


def encoded(value: Any, size: int) -> bytes:
    if isinstance(value, Role):
        value = value.value
    return value if isinstance(value, bytes) else int(value).to_bytes(size, "little")


# --- byte tables ------------------------------------------------------------------------------

# Every field has a value of its own, so that two that were exchanged show.
HEADER = ObjectHeader(
    Role.END, b"k" * 32, b"f" * 32, b"r" * 32, b"s" * 32, 0x1122334455, 0x66778899AA, 77, 55, 66
)
ENTRY = PackEntry(
    b"k" * 32, b"r" * 32, b"f" * 32, 0x1122330000, 0x445566, 0x77, 0x88, 0x99, Role.NEAR
)


def test_object_header() -> None:
    found = cut(HEADER.pack(), "object header", limits.OBJECT_HEADER_BYTES)
    for field in fields(ObjectHeader):
        stated = found.pop(field.name)
        assert stated == encoded(getattr(HEADER, field.name), len(stated)), field.name
    assert found.pop("magic") == b"KVGRAFT\0"
    assert found.pop("version") == b"\x01\0"
    assert found.pop("codec") == found.pop("seal") == b"\0"
    assert found.pop("reserved") == bytes(51)
    assert found.pop("header_digest") == blake3(HEADER.pack()[:224]).digest()
    assert found == {}


def test_pack_entry() -> None:
    size = (len(pack_end([ENTRY, ENTRY], 0)) - TRAILER_BYTES) // 2
    found = cut(pack_end([ENTRY], 0)[:size], "pack entry", size)
    assert found.pop("reserved") == bytes(7)
    assert found == {
        field.name: encoded(getattr(ENTRY, field.name), len(found[field.name]))
        for field in fields(PackEntry)
    }


def test_pack_trailer() -> None:
    end = pack_end([ENTRY] * 3, 0x5000)
    found = cut(end[-TRAILER_BYTES:], "pack trailer", TRAILER_BYTES)
    assert found == {
        "magic": b"KVGPACK\0",
        "version": b"\x01\0",
        "reserved": bytes(10),
        "count": (3).to_bytes(4, "little"),
        "table_offset": (0x5000).to_bytes(8, "little"),
        "table_digest": blake3(end[:-TRAILER_BYTES]).digest(),
    }
    assert pack_name(end) == blake3(end).hexdigest() + ".pack"


@pytest.mark.parametrize("name", NAMES)
def test_golden_packs_are_laid_out_as_the_page_says(name: str) -> None:
    # A reader of its own, from the page alone.
    golden = Golden(name)
    trailer = cut(golden.pack[-64:], "pack trailer", 64)
    count, start = (int.from_bytes(trailer[f], "little") for f in ("count", "table_offset"))
    rows = golden.pack[start:-64]
    assert blake3(rows).digest() == trailer["table_digest"]
    end = 0
    for entry_number in range(count):
        entry = cut(rows[136 * entry_number : 136 * (entry_number + 1)], "pack entry", 136)
        offset = int.from_bytes(entry["offset"], "little")
        header = cut(golden.pack[offset : offset + 256], "object header", 256)
        for field in entry.keys() - {"offset", "reserved"}:
            assert header[field] == entry[field], field
        length = int.from_bytes(entry["stored_length"], "little")
        payload = golden.pack[offset + 256 : offset + 256 + length]
        assert blake3(payload).digest() == entry["raw_digest"] == header["stored_digest"]
        assert offset == end
        end = offset + 256 + length
        end += -end % 4096
        assert not any(golden.pack[offset + 256 + length : end])
    assert end == start
    assert len(rows) == 136 * count


# --- payload ----------------------------------------------------------------------------------


SPEC = StateSpec(
    (
        LayerSpec(LayerKind.FULL, 2, 4, 3, "BF16"),
        LayerSpec(LayerKind.SLIDING, 1, 5, 6, "F16", window=4),
    ),
    7,
    "F32",
)
STATES = (PointState("conv.0", "BF16", (6, 4)), PointState("recurrent.1", "F32", (2, 3, 5)))
OTHERS = StateSpec(
    (
        LayerSpec(LayerKind.LATENT, 1, 8, 2, "BF16", index_dim=5),
        LayerSpec(LayerKind.RECURRENT, states=STATES),
    ),
    7,
    "F32",
    end_name="logits",
)
PLACE = ChunkPlace(16, 9, 12)


def test_metadata() -> None:
    rows = {row["key"]: row["value"] for row in table("metadata")}
    for role in Role:
        head = payload_head(SPEC, role, PLACE)
        metadata = json.loads(head[8:])["__metadata__"]
        expected = [key for key in rows if "NNNN" not in key]
        if role is Role.NEAR:
            expected += ["layer.0001.first"]
        assert list(metadata) == expected
        assert metadata["format"] == rows["format"]
        assert metadata["role"] in re.findall(r"`(\w+)`", "`" + rows["role"] + "`")


def test_tensors() -> None:
    kinds = {"key": (4, 5), "value": (3, 6)}
    rows = {row["tensor"]: row for row in table("tensors")}
    seen = set()
    for spec in (SPEC, OTHERS):
        for role in Role:
            for tensor in spec.tensors(role, 9):
                name = re.sub(r"\d{4}", "NNNN", tensor.name)
                name = re.sub(r"\.\d$", ".N", name)
                assert rows[name]["role"] == "every" or role.name in rows[name]["role"]
                seen.add(name)
    assert rows.keys() == seen
    for role in Role:
        names = [tensor.name for tensor in SPEC.tensors(role, 9)]
        tensors = json.loads(payload_head(SPEC, role, PLACE)[8:])
        assert names == list(tensors)[1:]
        assert all(list(tensors[n]) == ["dtype", "shape", "data_offsets"] for n in names)
        for tensor in SPEC.tensors(role, 9):
            row = rows[re.sub(r"\d{4}", "NNNN", tensor.name)]
            assert row["role"] == "every" or role.name in row["role"]
            assert len(tensor.shape) == row["shape"].count(",") + 1 <= limits.MAX_TENSOR_DIMS
            if tensor.layer >= 0:
                layer = SPEC.layers[tensor.layer]
                size = kinds[tensor.name.split(".")[-1]][tensor.layer]
                assert tensor.shape == ((9, 3)[tensor.layer], layer.heads, size)
                assert tensor.dtype == layer.dtype
    assert rows["ids"]["dtype"] == "U32"
    stated = re.search(r"Layer dtypes are (.*?)\.", TEXT)
    assert stated is not None
    assert set(re.findall(r"`(\w+)`", stated[1])) == DTYPE_BYTES.keys() - {"U32"}


def test_payload_order() -> None:
    assert [row["bytes"] for row in table("payload")] == [
        "8",
        "that many",
        "4 × `count`",
        "the rest",
    ]
    payload = Golden("mixed").payload(Golden("mixed").facts["objects"][0])
    length = int.from_bytes(payload[:8], "little")
    assert payload[8 + length : 8 + length + 64] == Golden("mixed").ids[:16].tobytes()


def test_roles() -> None:
    stated = {row["role"]: number(row["value"]) for row in table("roles")}
    assert stated == {role.name: role.value for role in Role}


# --- keys -------------------------------------------------------------------------------------


def input_of(name: str, values: dict[str, Any]) -> bytes:
    """What a digest is fed, from the table of it."""
    out = b""
    for row in table(name):
        value = values.pop(row["content"])
        if row["bytes"].startswith("4 ×"):
            out += b"".join(int(id).to_bytes(4, "little") for id in value)
        else:
            out += encoded(value, number(row["bytes"]))
            assert len(encoded(value, number(row["bytes"]))) == number(row["bytes"])
    assert values == {}
    return out


def test_keys_follow_from_the_page_alone() -> None:
    contexts = {row["digest"]: row["context"] for row in table("contexts")}
    assert len(set(contexts.values())) == 3
    fingerprint = Fingerprint.of({"engine": "toy", "dtype": "F32"})
    text = '{"dtype":"F32","engine":"toy"}'
    assert text in TEXT
    digest = blake3(text.encode(), derive_key_context=contexts["fingerprint"]).digest()
    assert digest == fingerprint.digest
    salt = bytes(range(32))
    data = input_of("root input", {"fingerprint": digest, "salt": salt})
    parent = root = blake3(data, derive_key_context=contexts["root"]).digest()
    assert root == plan_root(digest, salt)
    ids = as_token_ids([1, 2, 3, 4, 500_000])
    calls = plan_calls(5, PlanForm(4, (2, 4)), 100)
    keys = []
    for call in calls:
        data = input_of(
            "key input",
            {
                "parent": parent,
                "start": call.start,
                "count": call.count,
                "rows": call.rows,
                "ids": ids[call.start : call.end],
            },
        )
        parent = blake3(data, derive_key_context=contexts["key"]).digest()
        keys.append(parent)
    assert tuple(keys) == chunk_keys(root, ids, calls)
    example = {row["digest"]: row["hex"] for row in table("example")}
    found = [digest, root, *keys]
    names = ["fingerprint", "root", "first key", "second key"]
    assert example == dict(zip(names, (value.hex() for value in found), strict=True))


def test_the_public_salt_is_the_stated_one() -> None:
    assert "the public namespace has 32 zero bytes" in TEXT
    digest = bytes(range(32))
    assert plan_root(digest) == plan_root(digest, bytes(32))
    assert np.dtype("<u4").itemsize == 4


# --- limits -----------------------------------------------------------------------------------


def test_limits() -> None:
    stated = {row["limit"]: number(row["value"]) for row in table("limits")}
    source = Path(limits.__file__).read_text()
    section = source.partition("# --- format")[2].partition("\n# ---")[0]
    names = re.findall(r"^([A-Z_]+) = ", section, flags=re.MULTILINE)
    assert stated == {name: getattr(limits, name) for name in names}


def test_other_numbers_in_the_text() -> None:
    assert f"over {MAX_POSITION:,}" in TEXT
    assert header_module.VERSION == 1
    assert "# The artifact format, version 1" in TEXT
    assert f"up to a multiple of {limits.PACK_ALIGN_BYTES:,}" in TEXT
    assert f"the pack's last {TRAILER_BYTES} bytes" in TEXT
    assert f"{limits.OBJECT_HEADER_BYTES} bytes in front of every payload" in TEXT
    assert f"start at a multiple of {payload_module._ALIGN_BYTES} bytes" in TEXT
    large, align = payload_module._LARGE_BYTES, payload_module._LARGE_ALIGN_BYTES
    assert f"where they are {large:,} bytes or more in all, at a multiple of {align:,}" in TEXT


# --- rules ------------------------------------------------------------------------------------


def test_rules_are_numbered_and_say_must() -> None:
    rules = re.findall(r"^- \*\*M(\d+)\*\* (.*)$", TEXT, flags=re.MULTILINE)
    assert [int(label) for label, _ in rules] == list(range(1, len(rules) + 1))
    assert len(rules) > 30
    assert all("MUST" in rule for _, rule in rules)
    elsewhere = re.sub(r"^- \*\*M\d+\*\*.*$", "", TEXT, flags=re.MULTILINE)
    assert "MUST" not in elsewhere
    cited = {int(label) for label in re.findall(r"\bM(\d+)\b", elsewhere)}
    assert cited <= {int(label) for label, _ in rules}


def functions(path: Path) -> set[str]:
    """The tests that a file defines: functions, and `Class::method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return found


def test_every_rule_names_tests_that_exist() -> None:
    for rule in re.findall(r"^- \*\*M\d+\*\* .*$", TEXT, flags=re.MULTILINE):
        clause = re.search(r"\(test: ([^()]*)\)\.$", rule)
        assert clause is not None, rule
        named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", clause[1])
        assert named, rule
        for path, name in named:
            assert name.rpartition("::")[2].startswith("test_"), name
            assert name in functions(ROOT / path), f"{path}::{name}"


def test_files_that_the_page_names_exist() -> None:
    for path in re.findall(r"`((?:src|tests|docs)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path
    assert GOLDEN.is_dir()
