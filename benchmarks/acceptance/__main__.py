# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.acceptance``: faults on purpose, and whether accept names them.

``run FILE`` makes the trials that FILE lacks, one line of JSON each. It may be ended and started
again at any point. ``show FILE`` prints the table for the documentation. Run it as root, and only
on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.acceptance.faults import FAULTS, NOTHING, Fault
from benchmarks.acceptance.places import made_places, make_place
from nova_hpc_guest.accept.probes import QUICK, list_probes
from nova_hpc_guest.accept.ratio import SLOW
from nova_hpc_guest.accept.result import AcceptanceResult
from nova_hpc_guest.accept.sample import AcceptanceError
from nova_hpc_guest.accept.session import end_on_signals
from nova_hpc_guest.accept.tools import adopt_orphans
from nova_hpc_tools.accept.beside_run import BesideTerms, measure_beside

#: The trials that the documentation shows.
TRIALS: Final = Path(__file__).with_name("trials.jsonl")
#: Number of trials of each fault, and of runs without a fault.
_OF_FAULT: Final = 5
_OF_NOTHING: Final = 20
#: Seconds of turns; a probe that is still undecided then does not count here.
_BUDGET: Final = 120.0
#: The project's goal: the least share of faults with the right cause and no other.
_LEAST_NAMED: Final = 0.9


@attrs.frozen
class Trial:
    """The result of one trial.

    :ivar named: named causes with their status.
    """

    fault: str
    named: Mapping[str, str]
    slow: tuple[str, ...]
    unexplained: tuple[str, ...]
    rows: Mapping[str, Sequence[float]]
    rounds: int
    seconds: float
    load: float

    @property
    def is_good(self) -> bool:
        """Whether exactly the right causes were named, and probes were slow only with a fault."""
        fault = FAULTS[self.fault]
        if fault.unknown:
            return not self.named and bool(self.slow)
        return set(self.named) == fault.right and bool(self.slow) == bool(fault.right)

    @property
    def is_wrong(self) -> bool:
        """Whether a wrong cause was named."""
        return bool(set(self.named) - FAULTS[self.fault].right)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if the trials miss the project's goals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help="make the trials that FILE lacks")
    run.add_argument("file", type=Path)
    run.add_argument("--only", action="append", choices=sorted(FAULTS), help="may be repeated")
    run.add_argument("--times", type=int, help=f"of each; default {_OF_FAULT}, {_OF_NOTHING}")
    run.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="on a disk")
    show = actions.add_parser("show", help="print the table")
    show.add_argument("file", type=Path)
    options = parser.parse_args(argv)
    if options.action == "show":
        trials = read_trials(options.file)
        print(format_table(trials))
        return judge_trials(trials)
    if os.geteuid():
        print("only root can make the faults", file=sys.stderr)
        return 2
    wanted = options.only or FAULTS
    try:
        with end_on_signals(), adopt_orphans():
            for trial in make_trials(options.file, wanted, options.times, options.folder):
                print(_format_trial(trial), flush=True)
    except KeyboardInterrupt as error:
        print(f"{error or 'interrupted'}; the same command makes what is missing", file=sys.stderr)
        return 2
    return judge_trials(read_trials(options.file))


def make_trials(
    file: Path, names: Sequence[str] | Mapping[str, Any], times: int | None, disk: Path
) -> Iterator[Trial]:
    """Make the trials that the file lacks, in turns over the faults, and write each at once."""
    with tempfile.TemporaryDirectory(dir=disk, prefix="nova-hpc-trials-") as place:
        folder = Path(place)
        with made_places(folder):
            for name in list_missing(read_trials(file), names, times):
                absent = [path for path in FAULTS[name].needs if not Path(path).exists()]
                if absent:
                    print(f"{name}: left out: there is no {', '.join(absent)}", file=sys.stderr)
                    continue
                try:
                    trial = make_trial(name, FAULTS[name], folder)
                except (AcceptanceError, subprocess.SubprocessError) as error:
                    print(f"{name}: no trial: {error}", file=sys.stderr)
                    continue
                with file.open("a") as stream:
                    stream.write(f"{json.dumps(attrs.asdict(trial))}\n")
                yield trial


def list_missing(
    trials: Sequence[Trial], names: Sequence[str] | Mapping[str, Any], times: int | None
) -> Iterator[str]:
    """The faults with missing trials, in turns, once for each missing trial."""
    made = Counter(trial.fault for trial in trials)
    wanted = {name: times or (_OF_NOTHING if name == NOTHING else _OF_FAULT) for name in names}
    for turn in range(max(wanted.values(), default=0)):
        for name, count in wanted.items():
            if made[name] <= turn < count:
                yield name


def make_trial(name: str, fault: Fault, folder: Path) -> Trial:
    """Make one trial: six pairs of turns, more for undecided probes, and experiments.

    :raises AcceptanceError: a place does not answer, or a symptom is missing.
    """
    begun = time.monotonic()
    good = make_place(folder, NOTHING, fault.both)
    bad = make_place(folder, name, fault.both)
    only = fault.only or tuple(probe.name for probe in list_probes(QUICK))
    result = measure_beside(good, bad, BesideTerms(only, budget=_BUDGET), lambda text: None)
    if result.refused is not None:
        raise AcceptanceError(f"refused: {result.refused.text}")
    absent = [
        f"{probe}: {result.missing[probe]}" for probe in fault.only if probe in result.missing
    ]
    if absent:
        # Without its symptom a fault cannot be named, so the trial does not test the rules.
        raise AcceptanceError("; ".join(absent))
    seconds = time.monotonic() - begun
    return _describe_trial(name, result, seconds)


def _describe_trial(name: str, result: AcceptanceResult, seconds: float) -> Trial:
    rows = {row.probe: (row.ratio, row.low, row.high) for row in result.rows}
    return Trial(
        name,
        {cause.cause: cause.status for cause in result.diagnosis.causes},
        tuple(sorted(row.probe for row in result.rows if row.verdict == SLOW)),
        result.diagnosis.unexplained,
        {probe: [round(value, 3) for value in values] for probe, values in rows.items()},
        result.rounds,
        round(seconds, 1),
        os.getloadavg()[0],
    )


def read_trials(file: Path) -> list[Trial]:
    """The trials of a file; none if there is no such file."""
    if not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    return [
        Trial(
            **{
                **row,
                "slow": tuple(row["slow"]),
                "unexplained": tuple(row["unexplained"]),
            }
        )
        for row in rows
    ]


def format_table(trials: Sequence[Trial]) -> str:
    """The faults, their right causes and the named causes, as a table of the documentation."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 38 22 40", ""]
    rows = [("Made", "Right", "Named")]
    for name, fault in FAULTS.items():
        of_fault = [trial for trial in trials if trial.fault == name]
        if of_fault:
            said = Counter(_format_names(trial) for trial in of_fault)
            texts = (f"{count} x {text}" for text, count in sorted(said.items()))
            rows.append((fault.says, ", ".join(sorted(fault.right)) or "none", "; ".join(texts)))
    for row in rows:
        lines += [f"   {'* -' if number == 0 else '  -'} {text}" for number, text in enumerate(row)]
    return "\n".join([*lines, "", *_summarize_trials(trials)])


def _format_names(trial: Trial) -> str:
    if trial.named:
        return ", ".join(f"{cause} ({status})" for cause, status in sorted(trial.named.items()))
    return "no cause found" if trial.slow else "nothing slow"


def _summarize_trials(trials: Sequence[Trial]) -> list[str]:
    of_faults = [trial for trial in trials if FAULTS[trial.fault].right]
    of_nothing = [trial for trial in trials if trial.fault == NOTHING]
    unknown = [trial for trial in trials if FAULTS[trial.fault].unknown]
    wrong = sum(trial.is_wrong for trial in trials)
    kinds = len({trial.fault for trial in of_faults})
    return [
        f"{sum(trial.is_good for trial in of_faults)} of {len(of_faults)} trials of {kinds} kinds "
        f"have the right name and no other, {wrong} of all {len(trials)} have a wrong one. "
        f"{sum(bool(trial.slow) for trial in of_nothing)} of {len(of_nothing)} without a fault "
        f"found something slow. {sum(trial.is_good for trial in unknown)} of {len(unknown)} of "
        "faults that no cause explains are slow without a name.",
    ]


def judge_trials(trials: Sequence[Trial]) -> int:
    """0 if the trials reach the project's goals, else 1."""
    of_faults = [trial for trial in trials if FAULTS[trial.fault].right]
    rest = [trial for trial in trials if not FAULTS[trial.fault].right]
    named = sum(trial.is_good for trial in of_faults)
    bad = any(trial.is_wrong for trial in trials) or not all(trial.is_good for trial in rest)
    return 1 if bad or not of_faults or named < _LEAST_NAMED * len(of_faults) else 0


def _format_trial(trial: Trial) -> str:
    word = "good" if trial.is_good else "WRONG" if trial.is_wrong else "missed"
    rows = "; ".join(
        f"{probe} {ratio:g} ({low:g}-{high:g})" for probe, (ratio, low, high) in trial.rows.items()
    )
    return (
        f"{trial.fault}: {word}: {_format_names(trial)} [{rows}; {trial.rounds} rounds, "
        f"{trial.seconds:g} s, load {trial.load:g}]"
    )


if __name__ == "__main__":
    sys.exit(main())
