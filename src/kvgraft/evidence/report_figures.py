"""Sections of a report's page with figures: times, reuses, bytes, and the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgraft.evidence.plot import Axis, Panel, Series, line_charts
from kvgraft.evidence.report_html import (
    NOT_MEASURED,
    Html,
    count,
    counted,
    el,
    join,
    number,
    seconds,
    section,
    size,
    table,
    three,
)

_KINDS = {
    "full": "full attention",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "latent": "latent attention",
    "recurrent": "recurrent states",
    "end": "end point",
    "ids": "token ids",
}
_MEANINGS = {
    "full": "keys and values of every token",
    "sliding": "keys and values of the nearest tokens only",
    "chunked": "keys and values of the current stretch only",
    "latent": "one compact vector per token",
    "recurrent": "a state of fixed size, whatever the length",
    "end": "what gives the next token at the end of the prompt",
    "ids": "the tokens themselves, to compare with",
}


def speed_sections(data: Mapping[str, Any]) -> list[Html]:
    """Restore against compute, and when it pays."""
    return [_speed(data["lengths"]), _reuses(data["lengths"])]


def _chart(panel: Panel, title: str) -> Html:
    # The chart escapes its own texts.
    return el("figure", Html(line_charts([panel], title)), class_="chart")


def _reasons(lengths: Sequence[Mapping[str, Any]], *names: str) -> Html | None:
    """Why figures of these names are missing, each reason once."""
    found: dict[str, list[int]] = {}
    for at in lengths:
        for name in names:
            if at[name] is None and name in at["reasons"]:
                found.setdefault(at["reasons"][name], []).append(at["tokens"])
    lines = [
        el("li", f"{', '.join(count(n) for n in dict.fromkeys(tokens))} tokens: {reason}")
        for reason, tokens in found.items()
    ]
    return el("ul", lines, class_="reasons") if lines else None


def _speed(lengths: Sequence[Mapping[str, Any]]) -> Html:
    rows = []
    for at in lengths:
        compute, restore = at["compute_seconds"], at["restore_seconds"]
        known = compute is not None and restore is not None
        rows.append(
            [
                count(at["tokens"]),
                seconds(compute),
                seconds(restore),
                f"{three(compute / restore)}×" if known else NOT_MEASURED,
                seconds(at["first_restore_seconds"]),
                f"{len(at['compute_runs'])} / {len(at['restore_runs'])}",
            ]
        )
    lines = [
        Series(words, [(at["tokens"], at[name]) for at in lengths])
        for words, name in (
            ("compute the prompt", "compute_seconds"),
            ("restore it", "restore_seconds"),
            ("store it, once", "capture_seconds"),
        )
    ]
    panel = Panel("", Axis("tokens in the prompt", True), Axis("seconds", True), lines)
    return section(
        "speed",
        "Restore or compute",
        el(
            "p",
            "Both begin with a prompt and end where the numbers for the next token are there. A"
            " restore reads a file that the system still holds in memory, and verifies every byte;"
            " what the first step behind it takes longer is added. Medians of several runs in one"
            " process. The first restore also finds the memory for it, and stands apart.",
        ),
        _chart(panel, "Seconds over length, both axes logarithmic"),
        _reasons(lengths, "compute_seconds", "restore_seconds", "capture_seconds"),
        table(
            ["Tokens", "Compute", "Restore", "Compute ÷ restore", "First restore", "Runs of each"],
            rows,
            caption="To compute a prompt and to restore it",
            right=(0, 1, 2, 3, 4, 5),
        ),
    )


def _reuses(lengths: Sequence[Mapping[str, Any]]) -> Html:
    rows = []
    for at in lengths:
        compute, restore = at["compute_seconds"], at["restore_seconds"]
        known = compute is not None and restore is not None
        reuses = at["break_even_reuses"]
        after = f"after {counted(reuses, 'reuse')}" if reuses is not None else "not"
        if not known or at["capture_seconds"] is None:
            after = NOT_MEASURED
        rows.append(
            [
                count(at["tokens"]),
                seconds(at["capture_seconds"]),
                (seconds(compute - restore) if restore < compute else "nothing")
                if known
                else NOT_MEASURED,
                size(at["stored_bytes"]),
                after,
            ]
        )
    return section(
        "reuses",
        "When storing pays",
        el(
            "p",
            "Storing costs time once, while the prompt is computed for the first time. It has paid"
            " for itself at the first reuse where storing and all restores together took less time"
            " than computing as often. What the disk costs is not counted.",
        ),
        _reasons(lengths, "break_even_reuses"),
        table(
            ["Tokens", "Storing costs once", "A reuse saves", "On disk", "It pays"],
            rows,
            caption="Reuses until storing has paid for itself",
            right=(0, 1, 2, 3, 4),
        ),
    )


def bytes_section(data: Mapping[str, Any]) -> Html:
    """Bytes by layer kind, raw and compressed, at the longest length and over lengths."""
    lengths = [at for at in data["lengths"] if at["bytes_by_kind"] is not None]
    title = "Bytes per token, by kind of layer"
    if not lengths:
        return section(
            "bytes", title, el("p", NOT_MEASURED), _reasons(data["lengths"], "bytes_by_kind")
        )
    at = lengths[-1]
    layers = data["engine"]["layers"]
    described = ", ".join(
        f"{count(number)} {_KINDS.get(kind, kind)}" for kind, number in layers.items()
    )
    return section(
        "bytes",
        title,
        el(
            "p",
            f"The layers of this model: {described}. Their states are kept as"
            f" {', '.join(data['engine']['dtypes'])}."
            " What grows with every token and what is kept once per stored prompt are both divided"
            " by the length here. Compressed: bytes of equal weight put side by side, then zstd at"
            " level 1, each tensor alone (blosc2); nothing is lost by it. States are stored raw"
            " today.",
        ),
        _bars(at),
        _reasons(lengths, "compressed_by_kind"),
        _kinds(at),
        _over_lengths(lengths) if len(lengths) > 1 else None,
    )


def _bars(at: Mapping[str, Any]) -> Html:
    """One bar for raw bytes and one for compressed ones, on one scale."""
    kinds, packed = at["bytes_by_kind"], at["compressed_by_kind"]
    whole = max(sum(kinds.values()), sum((packed or {}).values()), 1)
    order = sorted(kinds, key=lambda kind: -kinds[kind])
    rows = []
    for words, sizes in (("raw", kinds), ("compressed", packed)):
        if sizes is None:
            rows.append(el("div", el("span", words), el("span", NOT_MEASURED, class_="none")))
            continue
        parts = [
            el(
                "i",
                class_=f"k{order.index(kind) % 7}",
                style=f"width:{100 * sizes.get(kind, 0) / whole:.3f}%",
                title=f"{_KINDS.get(kind, kind)}: {size(sizes.get(kind, 0))}",
            )
            for kind in order
        ]
        total = size(sum(sizes.values()) / at["tokens"])
        rows.append(
            el("div", el("span", words), el("span", parts, class_="bar"), el("span", total))
        )
    legend = [
        el("li", el("i", class_=f"k{place % 7}"), _KINDS.get(kind, kind))
        for place, kind in enumerate(order)
    ]
    return el(
        "figure",
        el("div", rows, class_="bars"),
        el("ul", legend, class_="legend"),
        el("figcaption", f"Bytes per token of a prompt of {count(at['tokens'])} tokens"),
    )


def _kinds(at: Mapping[str, Any]) -> Html:
    kinds, packed, tokens = at["bytes_by_kind"], at["compressed_by_kind"], at["tokens"]
    rows = []
    for kind in [*sorted(kinds, key=lambda kind: -kinds[kind]), ""]:
        raw = kinds[kind] if kind else sum(kinds.values())
        small = None if packed is None else packed[kind] if kind else sum(packed.values())
        rows.append(
            [
                join([_KINDS.get(kind, kind), el("small", _MEANINGS.get(kind, ""), class_="below")])
                if kind
                else "all together",
                size(raw / tokens),
                size(None if small is None else small / tokens),
                NOT_MEASURED if small is None else f"{three(100 * small / raw)} %",
                size(raw),
            ]
        )
    return table(
        ["Kind", "Raw, per token", "Compressed, per token", "Of raw", "Raw, in all"],
        rows,
        caption=f"By kind of layer, at {count(tokens)} tokens",
        right=(1, 2, 3, 4),
        marks=[*([""] * len(kinds)), "sum"],
    )


def _over_lengths(lengths: Sequence[Mapping[str, Any]]) -> Html:
    kinds = list(dict.fromkeys(kind for at in lengths for kind in at["bytes_by_kind"]))
    rows = []
    for at in lengths:
        sizes, tokens = at["bytes_by_kind"], at["tokens"]
        packed = at["compressed_by_kind"]
        small = None if packed is None else sum(packed.values()) / tokens
        rows.append(
            [
                count(tokens),
                *(size(sizes.get(kind, 0) / tokens) for kind in kinds),
                size(sum(sizes.values()) / tokens),
                size(small),
            ]
        )
    columns = ["Tokens", *(_KINDS.get(kind, kind) for kind in kinds), "All, raw", "All, compressed"]
    return table(columns, rows, caption="Bytes per token over length", right=range(len(columns)))


def probe_section(data: Mapping[str, Any]) -> Html:
    """What memory costs at another place than its own."""
    found = data["probe"]
    title = "Memory at another place than its own"
    text = el(
        "p",
        "Memory belongs to its place in the text. A passage that was read at the beginning can be"
        " put further back by turning its numbers, but the result is approximate, never the same"
        " bits. kvgraft refuses that unless it is asked for by name. Below is what it costs on this"
        " model, next to what the place alone changes when nothing is moved.",
    )
    if found is None:
        return section("probe", title, text, el("p", f"{NOT_MEASURED}: {data['probe_reason']}"))
    rows = []
    for at in found["offsets"]:
        for words, name in (("moved there", "relocated"), ("place alone", "position")):
            one = at[name]
            rows.append(
                [
                    count(at["offset"]),
                    words,
                    number(one["kl_mean_nats"]),
                    number(one["kl_max_nats"]),
                    number(one["max_abs_logit"]),
                    f"{one['argmax_flips']:,} of {one['rows']:,}",
                ]
            )
    control = (
        "Control: memory that was copied without being moved gave the same bits."
        if found["control_equal"]
        else "Control FAILED: memory that was copied without being moved gave other bits, so these"
        " figures do not come from moving alone."
    )
    return section(
        "probe",
        title,
        text,
        _probe_charts(found["offsets"]),
        el("p", control, class_=None if found["control_equal"] else "bad"),
        table(
            ["Moved by", "What", "Mean KL", "Largest KL", "Largest logit", "Other next token"],
            rows,
            caption=f"Over {counted(found['samples'], 'text')} of {count(found['block_tokens'])}"
            f" tokens, each followed by {count(found['suffix_tokens'])}; KL in nats",
            right=(0, 2, 3, 4, 5),
        ),
    )


def _probe_charts(offsets: Sequence[Mapping[str, Any]]) -> list[Html]:
    """Differences over distance; where a model has several kinds of layers, by kind as well."""

    def chart(title: str, lines: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Html:
        series = [
            Series(
                words,
                [
                    (at["offset"], one["kl_mean_nats"])
                    for at, one in zip(offsets, found, strict=True)
                ],
            )
            for words, found in lines
        ]
        x, y = Axis("tokens it was moved by", True), Axis("mean KL (nats)", True)
        return _chart(Panel("", x, y, series), f"{title}, both axes logarithmic")

    both = [
        ("moved there, against computed there", [at["relocated"] for at in offsets]),
        ("computed there, against computed at the beginning", [at["position"] for at in offsets]),
    ]
    charts = [chart("Difference over distance", both)]
    kinds = list(offsets[0]["by_kind"])
    if len(kinds) > 1:
        alone = [
            (f"{_KINDS.get(kind, kind)} alone", [at["by_kind"][kind] for at in offsets])
            for kind in kinds
        ]
        charts.append(chart("Layers of one kind moved, the others computed there", alone))
    return charts
