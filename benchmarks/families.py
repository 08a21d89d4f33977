"""Every family of the catalogue of tiny models: is a grafted run, bit for bit, the cold one?

    python benchmarks/families.py [--only llama,mamba2] [--dtypes fp32,bf16] [--json FILE]
                                  [--results FILE [--resume]] [--write docs/MODELS.md]

For each family and dtype a cold process and a grafted one (`kvgraft.testing.family_check`). Both
are forked from a server that has imported torch and transformers and done nothing else; with
`--start spawn` each is a new interpreter, which takes some seconds more. Results are appended to
`--results` as they come, and `--resume` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness
import models_doc

TARGETS: dict[str, tuple[str, float]] = {
    "families_exact": (">=", 45),
    "families_refused": ("<=", 9),
    "families_wrong": ("<=", 0),
}
PRELOADED = ["torch", "transformers", "kvgraft.engines.transformers.engine"]
LIMIT_SECONDS = 600

Results = dict[tuple[str, str], Any]


def part(step: str, name: str, dtype: str, folder: str) -> None:
    """One process of a pair."""
    import torch
    import transformers

    from kvgraft.testing import family_check

    torch.set_num_threads(1)  # more gain nothing on models this small
    transformers.logging.set_verbosity_error()
    getattr(family_check, step)(name, dtype, Path(folder))


def check(context: Any, name: str, dtype: str) -> Any:
    """The verdict on one family and dtype, from a pair of processes."""
    from kvgraft.testing.family_check import verdict

    with tempfile.TemporaryDirectory() as folder:
        for step in ("capture", "graft"):
            process = context.Process(target=part, args=(step, name, dtype, folder))
            process.start()
            process.join(LIMIT_SECONDS)
            if process.is_alive():  # it leaves no result, and the verdict says so
                process.kill()
                process.join()
            process.close()
        return verdict(name, dtype, Path(folder))


def run_all(pairs: list[tuple[str, str]], start: str, done: Results) -> Iterator[Any]:
    """Results of the pairs that are not done, as they come, with a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    context = multiprocessing.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload(PRELOADED)
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(pairs))
        for pair in pairs:
            bar.update(task, description=" ".join(pair))
            if pair not in done:
                result = check(context, *pair)
                if result.status == "wrong":
                    bar.console.print(f"{' '.join(pair)}: {result.reason}", markup=False)
                yield result
            bar.advance(task)


def saved(path: Path, versions: dict[str, str]) -> Results:
    """Results of an earlier run with the same versions."""
    from kvgraft.testing.family_check import FamilyResult

    out: Results = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        raw = json.loads(line)
        if raw.pop("versions") == versions:
            result = FamilyResult(**{**raw, "quiet": tuple(raw["quiet"])})
            out[result.name, result.dtype] = result
    return out


def families_of(results: Results) -> dict[str, dict[str, Any]]:
    """Family -> dtype -> result, in the order of the catalogue."""
    from kvgraft.testing.families import FAMILIES

    out: dict[str, dict[str, Any]] = {}
    for name in FAMILIES:
        if found := {dtype: one for (family, dtype), one in results.items() if family == name}:
            out[name] = found
    return out


def status_of(by_dtype: dict[str, Any]) -> str:
    """A family is exact in all its dtypes, wrong in any, or refused."""
    statuses = {result.status for result in by_dtype.values()}
    if "wrong" in statuses:
        return "wrong"
    return "exact" if statuses == {"exact"} else "refused"


def figures_of(families: dict[str, dict[str, Any]], whole: bool) -> dict[str, float | None]:
    """How many families came out how; not known where only a part was run."""
    statuses = [status_of(by_dtype) for by_dtype in families.values()]
    names = {one: f"families_{one}" for one in ("exact", "refused", "wrong")}
    return {name: statuses.count(one) if whole else None for one, name in names.items()}


def print_table(families: dict[str, dict[str, Any]]) -> None:
    """Family, status by dtype, layers; a line more where it is not exact."""
    for name, by_dtype in families.items():
        statuses = "  ".join(f"{dtype} {one.status:<7}" for dtype, one in by_dtype.items())
        layers = {one.layers for one in by_dtype.values()}
        print(f"{name:<20}  {statuses}  {' / '.join(sorted(layers))}")
        for reason in sorted({one.reason for one in by_dtype.values() if one.reason}):
            print(f"{'':<20}  {reason}")


def main() -> int:
    from kvgraft.testing.families import FAMILIES, installed
    from kvgraft.testing.family_engine import DTYPES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="families, with commas between")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="with commas between")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--results", type=Path, help="append every result to this file")
    parser.add_argument("--resume", action="store_true", help="skip what --results has already")
    parser.add_argument("--write", type=Path, help="write the table of all families to this file")
    parser.add_argument("--start", choices=("forkserver", "spawn"), default="forkserver")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else installed()
    dtypes = arguments.dtypes.split(",")
    if unknown := {*names} - {*FAMILIES} | {*dtypes} - {*DTYPES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if arguments.resume and not arguments.results:
        parser.error("--resume goes on from the file --results, which is not given")
    versions = harness.versions()
    results = saved(arguments.results, versions) if arguments.resume else {}
    pairs = [(name, dtype) for name in names for dtype in dtypes]
    for result in run_all(pairs, arguments.start, results):
        results[result.name, result.dtype] = result
        if arguments.results:
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**asdict(result), "versions": versions}) + "\n")
    families = families_of(results)
    print_table(families)
    whole = all((name, dtype) in results for name in installed() for dtype in DTYPES)
    if arguments.write:
        if not whole:
            parser.error("--write needs results of every family in both dtypes")
        text = models_doc.render(families, versions, harness.machine())
        arguments.write.write_text(text, encoding="utf-8")
    harness.report(
        "families",
        figures_of(families, whole),
        TARGETS,
        {name: {d: asdict(one) for d, one in found.items()} for name, found in families.items()},
        arguments.json,
        shlex.join(["python", "benchmarks/families.py", *sys.argv[1:]]),
    )
    return int(any(status_of(found) == "wrong" for found in families.values()))


if __name__ == "__main__":
    sys.exit(main())
