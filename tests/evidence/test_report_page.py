"""The page: well-formed, escaped, without any address to fetch; what failed or was not measured
is said where everybody looks."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from kvgraft.errors import InputError
from kvgraft.evidence import report_html
from kvgraft.evidence.report import to_json
from kvgraft.evidence.report_html import (
    broken,
    count,
    counted,
    download,
    el,
    join,
    number,
    seconds,
    size,
    three,
)
from kvgraft.evidence.report_page import page, saved_page, verdict
from report_data import a_failed_report, report_data

_VOID = {"meta", "link", "wbr"}


class Parsed(HTMLParser):
    """Elements with their attributes, texts, and whether every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.styles: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.styles if self._open[-1:] == ["style"] else self.texts).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


PASSED, FAILED = (page(data) for data in (report_data(), a_failed_report()))


@pytest.mark.parametrize("text", [PASSED, FAILED], ids=["passed", "failed"])
def test_the_page_is_whole_and_fetches_nothing(text: str) -> None:
    seen = Parsed(text)
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert {name for name, _ in seen.elements}.isdisjoint({"script", "iframe", "img", "object"})
    fetching = {"src", "href", "srcset", "action", "poster", "data", "xlink:href", "background"}
    ids = {attributes["id"] for _, attributes in seen.elements if "id" in attributes}
    for name, attributes in seen.elements:
        assert not any(key.startswith("on") for key in attributes)
        for key in fetching & set(attributes):
            value = attributes[key]
            assert value.startswith(("#", "data:")), (name, key, value)
            assert not value.startswith("#") or value[1:] in ids
        assert "url(" not in attributes.get("style", "")
    for style in seen.styles:
        assert "url(" not in style
        assert "@import" not in style
    (policy,) = (one["content"] for one in seen.of("meta") if "http-equiv" in one)
    assert policy.startswith("default-src 'none'")
    for name in ("aria-labelledby",):
        assert {one[name] for _, one in seen.elements if name in one} <= ids


def test_the_first_screen_says_what_was_found() -> None:
    seen = Parsed(PASSED)
    headline = (
        "5 of 5 runs that continued from stored memory gave exactly the same numbers as runs that"
        " computed everything, bit for bit."
    )
    text = seen.text
    assert verdict(report_data())[0] == headline
    for words in (
        *(headline, "All 3 deliberately damaged memories were noticed.", "Passed"),
        *("410×", "faster than computing", "2.50 ms to restore 1,024 tokens, 1.02 s to compute"),
        *("527 B", "stored per token", "314 B if compressed (60 %)"),
        *("1", "reuse until storing pays", "What this does not show", "Repeat it"),
        "kvgraft report toy -o report.html --samples 5 --seed 0",
    ):
        assert words in text
        assert text.index(words) < text.index("What was tested, and how")
    assert "FAILED" not in text


def test_a_failed_proof_says_so_first() -> None:
    data = a_failed_report()
    text = Parsed(FAILED).text
    lines = verdict(data)
    assert lines == [
        "1 of 5 runs that continued from stored memory gave other numbers than runs that computed"
        " everything.",
        "1 of 5 runs did not use the stored memory as they should have; they prove nothing.",
        "1 of 3 deliberately damaged memories went unnoticed.",
        "1 of 3 stored objects did not come out the same when another process made them again.",
        "The processes had different fingerprints.",
    ]
    for line in ("FAILED", *lines):
        assert text.index(line) < text.index("What was tested, and how")
    assert "exactly the same numbers" not in text
    assert "✓" not in text
    for words in ("DIFFERENT", "NOT REUSED", "0, not 768", "<b>other</b>"):
        assert words in text


@pytest.mark.parametrize(
    ("proof", "words"),
    [
        ({"controls": []}, "No damaged memory could be tried"),
        ({"kl_max": 1e-300}, "What was claimed does not hold in every part."),
    ],
)
def test_whatever_failed_has_a_sentence(proof: dict[str, Any], words: str) -> None:
    data = report_data()
    data["proof"].update(proof)
    found, text = saved_page(to_json(data))
    assert found["passed"] is False
    assert verdict(found)[0].startswith(words)
    assert "FAILED" in text


def test_a_models_name_cannot_do_anything() -> None:
    seen = Parsed(FAILED)
    assert "<script>alert('model')</script>" in seen.text
    assert "<script" not in FAILED
    assert "<b>other</b>" not in FAILED
    evil = '"><img src=http://x/ onerror=alert(1)>&amp;'
    data = report_data(model=evil, command=evil)
    data["fingerprint"]["weights"] = evil
    data["environment"][0]["detail"] = evil
    data["proof"]["failures"] = [evil]
    data["proof"]["controls"][0]["control"] = evil
    data["lengths"][0]["bytes_by_kind"][evil] = 7
    data["lengths"][0]["compressed_by_kind"] = None
    data["lengths"][0]["reasons"]["compressed_by_kind"] = evil
    data["lengths"][1]["bytes_by_kind"][evil] = 7
    data["lengths"][1]["compressed_by_kind"][evil] = 7
    data["passed"] = False
    seen = Parsed(page(data))
    assert seen.of("img") == []
    assert seen.text.count(evil) >= 6


def test_what_was_not_measured_is_said_and_is_no_zero() -> None:
    text = Parsed(FAILED).text
    assert text.count("not measured") >= 8
    for words in (
        "the capture failed: <no space>",
        "not measured : the toy engine does not move states",
        "This engine makes no single pass.",
        "a figure it needs is missing",
    ):
        assert words in text.replace("not measured:", "not measured :")
    top = text[: text.index("What was tested")]
    assert top.count("not measured") >= 4
    assert not re.search(r"\b0(\.0+)? (B|s|ms|µs)\b", text)


def test_a_cut_that_none_of_the_prompts_had_is_not_a_success() -> None:
    data = report_data()
    for row in data["proof"]["rows"]:
        row["cut"] = "tail"
    text = Parsed(page(data)).text
    assert text.count("none tried") == 6
    assert "5 of 5" in text


def test_restoring_may_be_slower_and_the_page_says_so() -> None:
    data = report_data()
    at = data["lengths"][-1]
    at.update(restore_seconds=4.0, compute_seconds=1.0, break_even_reuses=None)
    at["reasons"]["break_even_reuses"] = "restoring takes as long as computing, or longer"
    text = Parsed(page(data)).text
    top = text[: text.index("What was tested")]
    assert "4.00×" in top
    assert "slower than computing" in top
    assert "faster" not in top
    assert "restoring takes as long as computing" in top


def test_one_pass_may_be_equal_differ_or_be_absent() -> None:
    data = report_data()
    mono = data["proof"]["monolithic"]
    said = {}
    for value in (1.0, 0.0, "nan"):
        mono["max_abs_logit"] = value
        said[value] = Parsed(page(data)).text
    assert "differ by up to 1.00, stored memory or not, and 0 of 5 prompts get" in said[1.0]
    assert "Here they did, bit for bit for 5 prompts; the proof does not need it." in said[0.0]
    assert "differ by up to not a number" in said["nan"]
    mono.update(samples=0, max_abs_logit=None)
    assert "How much they differ was not measured." in Parsed(page(data)).text


def test_the_probe_has_curves_by_kind_where_there_are_kinds() -> None:
    text = Parsed(PASSED).text
    assert "sliding window alone" in text
    data = report_data()
    for at in data["probe"]["offsets"]:
        del at["by_kind"]["sliding"]
    text = Parsed(page(data)).text
    assert " alone, " not in text
    assert "moved there, against computed there" in text


def test_the_probes_control_is_not_hidden() -> None:
    data = report_data()
    data["probe"]["control_equal"] = False
    assert "Control FAILED" in Parsed(page(data)).text
    assert "gave the same bits" in Parsed(PASSED).text


def test_the_downloads_are_the_data() -> None:
    data = report_data()
    links = {
        one["download"]: one["href"] for one in Parsed(page(data)).of("a") if "download" in one
    }
    assert list(links) == [
        *("kvgraft-report.json", "kvgraft-logits.sha256", "kvgraft-objects.blake3"),
    ]
    texts = {name: base64.b64decode(link.split(",", 1)[1]).decode() for name, link in links.items()}
    assert json.loads(texts["kvgraft-report.json"]) == data
    digests = texts["kvgraft-logits.sha256"].splitlines()
    assert len(digests) == 10
    assert all(re.fullmatch(r"[0-9a-f]{64}  sample-\d{4}-\S+", line) for line in digests)
    assert texts["kvgraft-objects.blake3"].splitlines()[0] == f"{'ab' * 32}  {0:064x}/KEEP"
    # The page of what it carries is the page.
    assert saved_page(texts["kvgraft-report.json"])[1] == page(data)


def test_what_is_too_long_for_a_link_is_compressed_or_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_html, "MAX_LINK_CHARS", 400)
    (link,) = Parsed(download("a.txt", "text/plain", "word " * 1000, "words")).of("a")
    assert link["download"] == "a.txt.gz"
    assert gzip.decompress(base64.b64decode(link["href"].split(",")[1])) == b"word " * 1000
    monkeypatch.setattr(report_html, "MAX_LINK_CHARS", 10)
    seen = Parsed(download("a.txt", "text/plain", "word " * 1000, "words"))
    assert seen.of("a") == []
    assert "too long for a page (5.00 kB)" in seen.text


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.pop("lengths"),
        lambda data: data.update(lengths=[]),
        lambda data: data.update(lengths=[{}]),
        lambda data: data["lengths"][0].update(tokens="many"),
        lambda data: data.update(environment=[5]),
        lambda data: data.update(probe={"offsets": [{}]}),
        lambda data: data.update(model=5, made_at=5),
        lambda data: data["engine"].pop("block"),
        lambda data: data["proof"].update(monolithic={}),
    ],
)
def test_saved_data_that_is_not_whole_is_refused(spoil: Any) -> None:
    data = report_data()
    spoil(data)
    with pytest.raises(InputError):
        saved_page(to_json(data))


# --- the small pieces -------------------------------------------------------------------------


def test_text_is_escaped_wherever_it_enters() -> None:
    assert el("p", "<b>", class_='"x"') == '<p class="&quot;x&quot;">&lt;b&gt;</p>'
    assert el("p", ["a", None, el("b", "&")], id=None) == "<p>a<b>&amp;</b></p>"
    assert el("wbr") == "<wbr>"
    assert join(["a/b", None]) == "a/b"
    assert broken("a/<b>/c") == "a/<wbr>&lt;b&gt;/<wbr>c"


def test_figures_have_three_digits_and_a_unit() -> None:
    assert [seconds(x) for x in (None, 0.0000123, 0.0128, 5.331, 59.96, 245)] == [
        *("not measured", "12.3 µs", "12.8 ms", "5.33 s", "60.0 s", "4 min 05 s"),
    ]
    assert [size(x) for x in (None, 128, 0.125, 10.99, 999.9, 98_400_000, 3.2e12)] == [
        *("not measured", "128 B", "0.125 B", "11.0 B", "1.00 kB", "98.4 MB", "3.20 TB"),
    ]
    assert [number(x) for x in (None, 0, 0.5624, 1.52e-6, "nan", "inf")] == [
        *("not measured", "0", "0.562", "1.52 × 10⁻⁶", "not a number", "infinite"),
    ]
    assert [three(x) for x in (415.3, 1489, 7.0, 0)] == ["415", "1,490", "7.00", "0"]
    assert (count(4096), count(None)) == ("4,096", "not measured")
    assert (counted(1, "text"), counted(2, "text")) == ("1 text", "2 texts")
