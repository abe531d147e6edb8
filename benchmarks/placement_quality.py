# SPDX-License-Identifier: Apache-2.0
"""Makes the tables and pictures of "How good are the placements?" in the docs.

::

    python -m benchmarks.placement_quality FOLDER [--seeds N] [--only NAME]

FOLDER contains the openb trace (``openb_node_list_gpu_node.csv.gz`` and the two
lists ``openb_pod_list_default.csv.gz`` and ``openb_pod_list_multigpu50.csv.gz``).
Each result is written to docs/source/_static/simulation: a JSON document with
its origin, a CSV table, and an SVG picture of the curves.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from nova_hpc_simulate.command import SimulatePolicies
from nova_hpc_simulate.figures import draw_curves
from nova_hpc_simulate.scenario import Scenario, Summary

OUTPUT: Final = Path(__file__).parent.parent / "docs" / "source" / "_static" / "simulation"

_TOPOLOGY: Final = ["--topology", "dgx", "--levels", "50"]

#: name of the result -> list of requests, options
RESULTS: Final[dict[str, tuple[str, list[str]]]] = {
    "whole-multigpu50": ("multigpu50", []),
    "topology-multigpu50": ("multigpu50", _TOPOLOGY),
    "whole-default": ("default", []),
    "topology-default": ("default", _TOPOLOGY),
}
#: The policy that the others are compared with.
_OURS: Final = "nova-hpc"
#: Student's t for 95 %, by degrees of freedom; for more, the normal distribution is used.
_T: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306,
             9: 2.262}  # fmt: skip


def main() -> int:
    """Make all results, or one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="10")
    parser.add_argument("--jobs", default="0")
    parser.add_argument("--only", action="append", choices=list(RESULTS))
    parser.add_argument(
        "--again",
        metavar="POLICY",
        help="simulate this policy alone, and put it in the place that it has in the results "
        "that there are: a policy's figures depend on no other policy",
    )
    args = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in args.only or RESULTS:
        requests, options = RESULTS[name]
        words = ["--nodes", str(args.folder / "openb_node_list_gpu_node.csv.gz")]
        words += ["--requests", str(args.folder / f"openb_pod_list_{requests}.csv.gz")]
        words += ["--seeds", args.seeds, "--format", "json"]
        words += options
        words += ["--policy", args.again] if args.again else []
        if args.jobs != "0":
            words += ["--jobs", args.jobs]
        print(f"{name} ...", file=sys.stderr)
        document = json.loads(_simulate(words))
        if args.again:
            document = _with(json.loads((OUTPUT / f"{name}.json").read_text()), document)
        _draw(document, OUTPUT / f"{name}.svg")
        (OUTPUT / f"{name}.json").write_text(_dumps(document), encoding="utf-8")
        _table(document, OUTPUT / f"{name}.csv")
    return 0


def _simulate(words: list[str]) -> str:
    command = SimulatePolicies(None, None)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        status = command.run(command.get_parser("simulate").parse_args(words))
    if status:
        raise SystemExit(status)
    return text.getvalue()


def _with(document: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """*document* with the policy of *again* replaced."""
    (new,) = again["policies"]
    name = new["policy"]
    seeds = {run["seed"] for run in again["runs"]}
    if seeds != {run["seed"] for run in document["runs"]}:
        raise SystemExit(f"{name}: other seeds than the results that there are")
    runs = {run["seed"]: run for run in again["runs"]}
    document["policies"] = [new if one["policy"] == name else one for one in document["policies"]]
    document["runs"] = [
        runs[run["seed"]] if run["policy"] == name else run for run in document["runs"]
    ]
    document["about"].setdefault("again", {})[name] = again["about"]["date"]
    return document


def _draw(document: dict[str, Any], path: Path) -> None:
    summaries = [
        Summary(one["policy"], {}, {at: (used, lost) for at, used, lost in one["curve"]})
        for one in document["policies"]
    ]
    draw_curves(Scenario((), (), document["demand"]), summaries, path)


def _dumps(document: dict[str, Any]) -> str:
    """The document as JSON with one line for each policy and run, so that diffs are readable."""
    lines = []
    for key, value in document.items():
        if key in ("policies", "runs"):
            rows = ",\n  ".join(json.dumps(row) for row in value)
            lines.append(f" {json.dumps(key)}: [\n  {rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _table(document: dict[str, Any], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(
            ["policy", "allocated %", "±", "at 100 % demand", "fragmented %",
             "refused", "of several GPUs", "needing a level", "GPUs refused",
             f"at 100 %, {_OURS} has more by", f"GPUs refused, {_OURS} fewer by"]
        )  # fmt: skip
        for one in document["policies"]:
            figures = one["figures"]
            mean, deviation = (figures["allocated"][key] for key in ("mean", "deviation"))
            row = [f"{mean:.2f}", f"{deviation:.2f}"]
            row += [f"{figures[key]['mean']:.2f}" for key in ("allocated_at_100", "fragmented")]
            row += [
                f"{figures[key]['mean']:.1f}"
                for key in ("refused", "refused_several", "refused_local", "refused_gpus")
            ]
            row += [
                _difference(document["runs"], _OURS, one["policy"], "allocated_at_100"),
                _difference(document["runs"], one["policy"], _OURS, "refused_gpus"),
            ]
            writer.writerow([one["policy"], *row])


def _difference(runs: list[dict[str, Any]], one: str, other: str, figure: str) -> str:
    """The mean difference of *one* from *other* over the seeds, with its 95 % interval."""
    if one == other:
        return ""
    found = [
        {run["seed"]: run[figure] for run in runs if run["policy"] == name} for name in (one, other)
    ]
    pairs = [found[0][seed] - found[1][seed] for seed in sorted(found[0])]
    mean = statistics.fmean(pairs)
    if len(pairs) < 2:
        return f"{mean:.2f}"
    wide = _T.get(len(pairs) - 1, 1.96) * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return f"{mean:.2f} ({mean - wide:.2f} to {mean + wide:.2f})"


if __name__ == "__main__":
    sys.exit(main())
