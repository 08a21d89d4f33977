"""`kvgraft prove`: exactness on this machine, shown by separate processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.option_groups import EngineOptions, grouped
from kvgraft.cli.output import write_document, write_facts, write_line, write_table
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import fetch_demo
from kvgraft.errors import CheckFailed

if TYPE_CHECKING:
    from kvgraft.evidence.prove import Proof

_MOST_FAILURES = 10  # the first ones say what is wrong; JSON has all


@grouped
def prove_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)],
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", help="Prompts to prove on, at least 5.")
    ] = 50,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="Chooses the prompts.")
    ] = 0,
    *,
    chosen: EngineOptions,
    as_json: options.AsJson = False,
) -> None:
    """Prove that grafted states give the same logits, bit for bit.

    Real prompts of 64 to 4,096 tokens are computed cold in one process and from stored states in
    another; the SHA-256 of all logits must be equal, and altered states must change it. Nothing
    is kept. Status 1 when the proof fails.
    """
    from kvgraft.evidence.prove import prove

    with Watch(f"proving {model}") as watch:
        fetch_demo(model, chosen.engine.value, watch)
        proof = prove(
            model, samples=samples, seed=seed, options=chosen.as_dict(), progress=watch.progress
        )
    if not as_json:
        show_proof(proof)
    if not proof.passed:
        failed = CheckFailed(
            "the proof failed", where=model, hint="this engine is not exact here; do not rely on it"
        )
        raise Stopped(failed, proof.as_dict())
    if as_json:
        write_document(proof.as_dict())


def show_proof(proof: Proof) -> None:
    """The proof as tables; the monolithic difference apart, since it proves nothing."""
    write_facts(
        [
            ("model", proof.model),
            ("samples", str(proof.samples)),
            ("logits equal by SHA-256", f"{proof.sha_equal} of {proof.samples}"),
            ("reused as expected", f"{proof.reused_as_expected} of {proof.samples}"),
            ("largest KL divergence", f"{proof.kl_max:g} nats"),
            ("argmax agreement", f"{100 * proof.argmax_agree:g} %"),
            ("rebuilt artifacts", "equal" if proof.rebuilt_equal else "different"),
            ("altered states", "all detected" if proof.controls_detected else "NOT all detected"),
            ("result", "passed" if proof.passed else "FAILED"),
        ]
    )
    write_line()
    write_table(
        ["altered state (must change the digest)", "tried", "served", "changed"],
        _control_rows(proof),
        right=["tried", "served", "changed"],
    )
    mono = proof.monolithic
    write_line()
    write_line("Apart from the proof: the same text in one monolithic call, this engine's own")
    write_line("arithmetic, without any graft.")
    write_facts(
        [
            ("samples", str(mono["samples"])),
            ("largest logit difference", _measured(mono["max_abs_logit"])),
            ("largest KL divergence", _measured(mono["kl_max"])),
            ("other argmax", _measured(mono["argmax_flips"])),
        ]
    )
    for failure in proof.failures[:_MOST_FAILURES]:
        write_line(f"failed: {failure}")
    if (more := len(proof.failures) - _MOST_FAILURES) > 0:
        write_line(f"and {more} more failures (--json has all)")


def _control_rows(proof: Proof) -> list[list[str]]:
    names = dict.fromkeys(str(row["control"]) for row in proof.controls)
    rows = []
    for name in names:
        mine = [row for row in proof.controls if row["control"] == name]
        counts = [
            len(mine),
            sum(row["served"] for row in mine),
            sum(row["changed"] for row in mine),
        ]
        rows.append([name, *map(str, counts)])
    return rows


def _measured(value: float | int | None) -> str:
    return "not measured" if value is None else f"{value:.3g}"
