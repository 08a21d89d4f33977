"""The page of a study: every figure is on it, and nothing on it is markup that was not ours."""

from __future__ import annotations

import copy
import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from kvgraft.study.page import first_lines, page
from kvgraft.study.plots import Share, reuse_chart, risk_chart, share_chart

MODEL = "scripted"


def test_the_page_is_well_formed_and_says_what_was_found(figures: dict[str, Any]) -> None:
    text = page(figures)
    for line in figures["findings"]:
        assert line.replace("'", "&#x27;") in text
    assert figures["registration"]["hash"] in text
    assert "script" not in re.sub(r"scripted|runs no scripts", "", text)
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)


def test_the_first_screen_is_short(figures: dict[str, Any]) -> None:
    lines = first_lines(figures)
    assert lines[0] == figures["findings"][0]
    assert len(lines) == 3
    assert lines[2].startswith("Controls")


@pytest.mark.parametrize(
    ("wrong", "stamp", "kind"),
    [
        (0, "✓ Controls held", "pass"),
        (2, "✗ CONTROLS FAILED", "fail"),
        (None, "No controls", "pass"),
    ],
)
def test_failed_controls_are_seen_first(
    figures: dict[str, Any], wrong: int | None, stamp: str, kind: str
) -> None:
    text = page({**figures, "controls_verified_wrongly": wrong})
    assert f'<p class="stamp">{stamp}</p>' in text
    assert f'class="verdict {kind}"' in text


def test_what_was_not_measured_is_not_nought(figures: dict[str, Any]) -> None:
    text = page(figures)
    assert figures["models"][MODEL]["conditions"]["library"]["recurring"]["per_right"][
        "joules"
    ] is (None)
    assert "not measured" in text
    assert "none right" in text  # the held-out group has no right answer to divide by


def test_texts_are_escaped(figures: dict[str, Any]) -> None:
    bad = "<script>alert(1)</script>"
    data = copy.deepcopy(figures)
    data |= {"name": bad, "question": bad, "findings": [bad] * 3}
    data["registration"]["protocol"]["verifier"] = bad
    model = data["models"][MODEL]
    model["deposits"]["wrong"] = [{"id": bad, "answer": bad, "grade": bad}]
    model["near_misses"]["kinds"] = {bad: {"asked": 1, "differing": 1, "from_library": 1}}
    model["conditions"]["library"]["recurring"]["families"] = {bad: {"right": 1, "problems": 1}}
    model["conditions"]["greedy"]["recurring"]["families"] = {bad: {"right": 1, "problems": 1}}
    data["models"] = {bad: {**model, "paired": [
        {**one, "second": one["second"].replace(MODEL, bad)} for one in model["paired"]
    ]}}  # fmt: skip
    text = page(data, bad)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_wrong_deposits_and_bad_rows_stand_out(figures: dict[str, Any]) -> None:
    data = copy.deepcopy(figures)
    data["models"][MODEL]["deposits"]["wrong"] = [
        {"id": "sums:add/1+1", "answer": "3", "grade": "agreed"}
    ]
    data["models"][MODEL]["controls"]["decoys"]["verified_wrongly"] = 1
    text = page(data)
    assert "Deposits that are wrong by the key" in text
    assert "sums:add/1+1" in text
    assert '<tr class="bad"><th scope="row">near misses planted beside</th>' in text
    assert "Deposits that are wrong by the key" not in page(figures)


def test_several_models_have_sections_of_their_own(figures: dict[str, Any]) -> None:
    data = copy.deepcopy(figures)
    model = data["models"][MODEL]
    alone = {name: model["conditions"][name] for name in ("greedy", "vote")}
    data["models"]["larger"] = {
        **{"name": "toy", "library": False, "conditions": alone, "controls": {}, "paired": []},
        "risk_coverage": [],
    }
    text = page(data)
    assert text.count("Right answers (scripted)") == 2  # in the list of chapters, and above it
    assert "Right answers (larger)" in text
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors <= set(re.findall(r'id="([^"]+)"', text))
    assert "controls-1" not in text


def test_amended_code_is_told(figures: dict[str, Any]) -> None:
    data = copy.deepcopy(figures)
    data["registration"]["amendments"] = [
        {"at": "2026-01-01T00:00:00+00:00", "code": {"sources_sha256": "abcd"}}
    ]
    text = page(data)
    assert "The code was changed 1 time since" in text
    assert "abcd" in text
    assert "The code was changed" not in page(figures)


def test_a_share_is_drawn_where_it_is() -> None:
    shares = [Share("a<b", 1, 2, 0.25, 0.75), Share("c", 4, 4, 0.5, 1.0, marked=True)]
    root = ElementTree.fromstring(share_chart("x & y", shares))
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert [float(one.attrib["cx"]) for one in circles] == [396.0, 616.0]
    assert circles[0].attrib["fill"] != circles[1].attrib["fill"]
    titles = [str(one.text) for one in root.iter() if one.tag.endswith("title")]
    assert titles == [
        "x & y",
        "a<b: 1 of 2, 50.0 %, from 25.0 to 75.0 %",
        "c: 4 of 4, 100.0 %, from 50.0 to 100.0 %",
    ]


def test_lines_of_cost_meet_where_a_deposit_has_paid() -> None:
    svg = reuse_chart(10.0, 1.0, {"solving again": 6.0}, "seconds")
    series = dict(re.findall(r"<g><title>([^<]+)</title><desc>([^<]+)</desc>", svg))
    library = dict(pair.split(": ") for pair in series["library"].split("; "))
    again = dict(pair.split(": ") for pair in series["solving again"].split("; "))
    assert (library["0"], again["0"]) == ("10.0", "0.0")
    assert (library["2"], again["2"]) == ("12.0", "12.0")
    assert float(library["4"]) < float(again["4"])
    assert "not measured" not in svg


def test_a_cost_that_is_not_known_is_not_drawn(figures: dict[str, Any]) -> None:
    data = copy.deepcopy(figures)
    assert "tokens, all rounds" in page(data)
    assert "seconds, all rounds" in page(data)
    asked = data["models"][MODEL]["conditions"]["library"]["recurring"]["cost"]
    asked["decode_tokens"] = None
    assert "tokens, all rounds" not in page(data)
    assert "seconds, all rounds" in page(data)
    data["models"][MODEL]["deposits"]["cost_with_capture"] = None
    assert "all rounds" not in page(data)


def test_risk_and_its_bound_are_two_lines() -> None:
    points = [
        {"threshold": 0.5, "coverage": 0.8, "risk": 0.25, "risk_upper": 0.6},
        {"threshold": 1.0, "coverage": 0.4, "risk": 0.0, "risk_upper": 0.5},
    ]
    svg = risk_chart(points)
    assert "<desc>0.8: 0.25; 0.4: 0.0</desc>" in svg
    assert "<desc>0.8: 0.6; 0.4: 0.5</desc>" in svg


def test_the_figures_can_be_saved_from_the_page(figures: dict[str, Any]) -> None:
    import base64

    links = dict(re.findall(r'href="data:[^,]*,([^"]*)" download="([^"]*)"', page(figures, "{}\n")))
    files = {name: base64.b64decode(data) for data, name in links.items()}
    assert json.loads(files["study-figures.json"]) == figures
    assert files["study-results.jsonl"] == b"{}\n"
    assert json.loads(files["study-registration.json"]) == figures["registration"]
