"""`kvgraft probe`: what it costs to use a state at another place than its own, on this model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.option_groups import EngineOptions, grouped
from kvgraft.cli.output import write_document, write_facts, write_line, write_table
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import fetch_demo
from kvgraft.errors import CheckFailed, InputError, UsageError

if TYPE_CHECKING:
    from kvgraft.evidence.plot import Panel
    from kvgraft.evidence.probe import AtOffset, Difference, Probe

_MOVED, _PLACE = "relocated against computed there", "computed there against computed here"


@grouped
def probe_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)],
    offsets: Annotated[
        str | None,
        typer.Option(
            "--offsets",
            metavar="N,N,...",
            help="Positions to move to. Default: those of 8,128,1024,4096 that the model's "
            "context holds.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, metavar="N", help="Texts to measure on.")
    ] = 8,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, metavar="N", help="Tokens of the text that is moved.")
    ] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Chooses the texts.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.svg", help="Write a plot too.", show_default=False
        ),
    ] = None,
    *,
    chosen: EngineOptions,
    as_json: options.AsJson = False,
) -> None:
    """Measure what a state costs at another place than its own.

    A text is computed at position 0 and moved to an offset by turning its keys; beside it the same
    text is computed at the offset. Compared are the next-token distributions of what follows:
    never equal in bits, so such use is refused elsewhere unless it is asked for as approximate,
    and then carries these figures. Nothing is kept.
    """
    places = parse_offsets(offsets)
    if plot is not None and not plot.parent.is_dir():
        raise InputError("there is no such folder to write the plot to", where=str(plot.parent))
    with Watch(f"probing {model}") as watch:
        fetch_demo(model, chosen.engine.value, watch)
        found = _measure(model, places, samples, tokens, seed, chosen, watch)
    if plot is not None:
        write_plot(found, plot)
    if not as_json:
        show_probe(found)
    if not found.control_equal:
        failed = CheckFailed(
            "a state that was copied without being moved gave other bits",
            where=model,
            hint="the figures do not come from moving alone; do not rely on them",
        )
        raise Stopped(failed, found.as_dict())
    if as_json:
        write_document(found.as_dict())


def _measure(
    model: str,
    offsets: list[int] | None,
    samples: int,
    tokens: int,
    seed: int,
    chosen: EngineOptions,
    watch: Watch,
) -> Probe:
    from kvgraft.engines.registry import open_engine
    from kvgraft.evidence.probe import probe

    # Whatever an engine's packages print while they load is not this command's output.
    with contextlib.redirect_stdout(sys.stderr):
        opened = open_engine(model, **chosen.as_dict(), progress=watch.progress, say=watch.say)
        try:
            return probe(
                opened, offsets, samples, seed=seed, block_tokens=tokens, progress=watch.progress
            )
        finally:
            opened.close()


def parse_offsets(text: str | None) -> list[int] | None:
    """`8,128` as numbers.

    Raises:
        UsageError: it is something else.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    # `isdigit` alone takes digits that `int` does not
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise UsageError(
            f"offsets are whole numbers with commas between them, not {text!r}",
            hint="for example --offsets 8,128,1024",
        )
    return [int(word) for word in words]


def show_probe(found: Probe) -> None:
    """The probe as tables: the differences in what follows, then those in the keys."""
    write_facts(
        [
            ("model", found.model),
            ("texts", f"{found.samples} of {found.block_tokens} tokens"),
            ("followed by", f"{found.suffix_tokens} tokens"),
            ("copied, not moved", "equal bits" if found.control_equal else "OTHER BITS"),
        ]
    )
    write_line()
    columns = ["offset", "compared", "mean KL", "largest KL", "largest logit", "other argmax"]
    write_table(
        columns,
        [row for at in found.offsets for row in _rows(at)],
        right=[column for column in columns if column != "compared"],
    )
    write_line()
    write_table(
        ["offset", "keys of layers", "largest difference", "largest key"],
        [
            [str(at.offset), kind, f"{keys.max_abs:.3g}", f"{keys.largest_key:.3g}"]
            for at in found.offsets
            for kind, keys in at.keys.items()
        ],
        right=["offset", "largest difference", "largest key"],
    )
    write_line()
    write_line(
        "KL in nats, of next-token distributions. All of it is approximate: a moved state is"
    )
    write_line("never equal in bits to one that was computed in its place.")


def _rows(at: AtOffset) -> list[list[str]]:
    compared = [(_MOVED, at.relocated)]
    if len(at.by_kind) > 1:
        compared += [(f"  {kind} layers alone", found) for kind, found in at.by_kind.items()]
    compared.append((_PLACE, at.position))
    return [[str(at.offset), name, *_figures(found)] for name, found in compared]


def _figures(found: Difference) -> list[str]:
    return [
        f"{found.kl_mean_nats:.2e}",
        f"{found.kl_max_nats:.2e}",
        f"{found.max_abs_logit:.3g}",
        f"{found.argmax_flips} of {found.rows}",
    ]


def write_plot(found: Probe, path: Path) -> None:
    """The probe as an SVG file.

    Raises:
        InputError: it cannot be written.
    """
    from kvgraft.evidence.plot import line_charts

    title = f"{found.model}, {found.fingerprint.get('dtype', '')}: a state at another place"
    try:
        path.write_text(line_charts(_panels(found), title), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the plot cannot be written: {error}", where=str(path)) from error


def _panels(found: Probe) -> list[Panel]:
    from kvgraft.evidence.plot import Axis, Panel, Series

    offset = Axis("offset (tokens)", log=True)

    def pair(title: str, label: str, log: bool, figure: Callable[[Difference], float]) -> Panel:
        return Panel(
            title,
            offset,
            Axis(label, log),
            [
                Series(_MOVED, [(at.offset, figure(at.relocated)) for at in found.offsets]),
                Series(_PLACE, [(at.offset, figure(at.position)) for at in found.offsets]),
            ],
        )

    panels = [
        pair("KL divergence", "mean KL (nats)", True, lambda one: one.kl_mean_nats),
        pair("Logits", "largest difference", False, lambda one: one.max_abs_logit),
        pair("Most likely token", "changed (%)", False, lambda o: 100 * o.argmax_flips / o.rows),
    ]
    kinds = list(found.offsets[0].by_kind)
    if len(kinds) > 1:
        lines = [
            Series(
                f"{kind} layers alone",
                [(at.offset, at.by_kind[kind].kl_mean_nats) for at in found.offsets],
            )
            for kind in kinds
        ]
        kl = Axis("mean KL (nats)", log=True)
        panels.append(Panel("Relocated, by kind of layer", offset, kl, lines))
    return panels
