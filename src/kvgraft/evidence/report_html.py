"""HTML in small pieces. Text is escaped where it enters; nothing else can be put into a page."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TypeAlias

NOT_MEASURED = "not measured"
# Chromium opens no longer addresses, and `data:` links are addresses.
MAX_LINK_CHARS = 2_000_000

_VOID = {"meta", "wbr", "link"}
# Whatever a page says, the browser loads nothing and runs nothing.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none';"
    " form-action 'none'"
)
_ICON = "data:,"  # without one, browsers ask a server for it


class Html(str):
    """Text that is markup already."""


Child: TypeAlias = "str | Html | Iterable[str | Html | None] | None"


def el(tag: str, /, *children: Child, **attributes: str | None) -> Html:
    """An element. Children that are plain text are escaped; attributes always are, spelled as
    Python can (`class_`, `aria_label`), and left out where they are None."""
    words = [tag]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(value)}"')
    start = f"<{' '.join(words)}>"
    return Html(start if tag in _VOID else f"{start}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Children one after the other."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            parts.append(child if isinstance(child, Html) else escape(child))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def document(title: str, body: Html) -> str:
    """A whole page in one file: our style, and a policy that forbids the browser to load anything,
    whatever stands in the page."""
    style = files("kvgraft.evidence").joinpath("report.css").read_text(encoding="utf-8")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href=_ICON),
        el("title", title),
        el("style", Html(style)),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def section(anchor: str, title: str, *children: Child) -> Html:
    """A part of the page with a heading that can be linked to."""
    heading = el("h2", title, id=f"{anchor}-title")
    return el("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")


def table(
    columns: Sequence[str | Html],
    rows: Iterable[Sequence[Child]],
    *,
    caption: str,
    right: Sequence[int] = (),
    marks: Sequence[str] = (),
) -> Html:
    """A table that scrolls by itself where the page is narrow. The first cell names the row;
    columns in `right` hold numbers; `marks` are the rows' classes."""
    numbers = set(right)

    def kind(place: int) -> str | None:
        return "n" if place in numbers else None

    head = el("tr", [el("th", one, scope="col", class_=kind(n)) for n, one in enumerate(columns)])
    body = []
    for number, cells in enumerate(rows):
        first, *rest = cells
        cell = [el("th", first, scope="row", class_=kind(0))]
        cell += [el("td", one, class_=kind(place + 1)) for place, one in enumerate(rest)]
        body.append(el("tr", cell, class_=(marks[number] or None) if marks else None))
    whole = el("table", el("caption", caption), el("thead", head), el("tbody", body))
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """Names and what belongs to them."""
    return el(
        "dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_="facts"
    )


def broken(text: str) -> Html:
    """A long value that a line may break behind its slashes."""
    first, *rest = text.split("/")
    return join([first, *(part for one in rest for part in ("/", el("wbr"), one))])


def download(name: str, kind: str, text: str, words: str) -> Html:
    """A link that saves `text` as a file, out of the page itself. What is too long for a link is
    compressed, and what still is, is not offered."""
    data = text.encode()
    link = _link(name, kind, data)
    if link is None:
        name, data = f"{name}.gz", gzip.compress(data, mtime=0)
        link = _link(name, "application/gzip", data)
    if link is None:
        return el("li", f"{name}: too long for a page ({size(len(text))}); --json prints it all")
    anchor = el("a", name, href=link, download=name)
    return el("li", anchor, " ", el("small", f"{words}; {size(len(data))}"))


def _link(name: str, kind: str, data: bytes) -> str | None:
    link = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return link if len(link) <= MAX_LINK_CHARS else None


# --- figures ------------------------------------------------------------------------------------


def seconds(value: float | None) -> str:
    """`12.8 ms`, `5.33 s`, `4 min 05 s`."""
    if value is None:
        return NOT_MEASURED
    if value < 1e-3:
        return f"{three(value * 1e6)} µs"
    if value < 1:
        return f"{three(value * 1e3)} ms"
    if value < 60:
        return f"{three(value)} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def size(value: float | None) -> str:
    """Bytes in decimal units: `98.4 MB`."""
    if value is None:
        return NOT_MEASURED
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value} B" if isinstance(value, int) else f"{three(value)} {unit}"
        value /= 1000
    return f"{three(value)} TB"


def number(value: float | int | str | None) -> str:
    """Three digits, in powers of ten where it is very small; what is no number in words."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        return {"nan": "not a number", "inf": "infinite", "-inf": "minus infinite"}[value]
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return three(value)
    digits, power = f"{value:.2e}".split("e")
    return f"{digits} × 10{_raised(int(power))}"


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def three(value: float) -> str:
    """Three digits that count: `1,490`, `415`, `12.8`, `0.560`."""
    if value == 0:
        return "0"
    text = f"{value:#.3g}".rstrip(".")
    return f"{float(text):,.0f}" if "e+" in text else text


def count(value: int | None) -> str:
    """`4,096`."""
    return NOT_MEASURED if value is None else f"{value:,}"


def counted(value: int, noun: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"
