# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.acceptance.whole``: does ``--tier cluster`` name the slow part?

``run FILE`` makes the trials that FILE lacks, one line of JSON each; ``show FILE`` prints the
table. Run it as root, where Open MPI, mpi4py and iperf3 are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from benchmarks.acceptance.whole_places import FAULTS, WholeFault, made_cluster
from nova_hpc_client.accept.cluster_run import ClusterMeasuring
from nova_hpc_client.accept.cluster_terms import ClusterTerms
from nova_hpc_guest.accept.probes import CLUSTER
from nova_hpc_guest.accept.ratio import LEAST_PAIRS, SLOW
from nova_hpc_guest.accept.session import end_on_signals
from nova_hpc_guest.accept.tools import adopt_orphans

#: The trials that the documentation shows.
TRIALS: Final = Path(__file__).with_name("whole.jsonl")
_OF_FAULT: Final = 5
_OF_NOTHING: Final = 20
_BUDGET: Final = 900.0


@attrs.frozen
class WholeTrial:
    """The result of one trial.

    :ivar named: the members and links that were named.
    :ivar slow: names of the members with the verdict slow.
    :ivar says: probe -> its figure, verdict and text.
    """

    fault: str
    verdict: str
    named: tuple[str, ...]
    slow: tuple[str, ...]
    says: dict[str, tuple[float, str, str]]
    seconds: float
    load: float

    @property
    def is_good(self) -> bool:
        """Whether the fault was named, and nothing else; nothing is slow without a fault."""
        right = FAULTS[self.fault].right
        if not right:
            return self.verdict != SLOW
        return right[0] in self.named and not self.is_wrong

    @property
    def is_wrong(self) -> bool:
        """Whether a wrong member or link was named."""
        right = FAULTS[self.fault].right
        members = {name.split()[0] for name in right if not name.startswith("the link")}
        return bool(set(self.named) - set(right) or set(self.slow) - members)


def make_trial(name: str, fault: WholeFault, folder: Path) -> WholeTrial:
    """Make one trial with the real command on three members."""
    begun = time.monotonic()
    with made_cluster(folder, fault) as hosts:
        terms = ClusterTerms(CLUSTER, LEAST_PAIRS, _BUDGET, busy=True)
        measured = ClusterMeasuring("train", hosts, terms, lambda *_: None).measure()
    for member in measured.members:
        for reason in member.reasons:
            print(f"  {member.name}: {reason}")
    return WholeTrial(
        *(name, measured.verdict),
        tuple(one.says for one in measured.whole if one.verdict == SLOW),
        tuple(member.name for member in measured.members if member.slow),
        {one.probe: (round(one.figure, 4), one.verdict, one.says) for one in measured.whole},
        round(time.monotonic() - begun, 1),
        os.getloadavg()[0],
    )


def read_trials(file: Path) -> list[WholeTrial]:
    """The trials of a file; none if there is no such file."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lists = ("named", "slow")
    return [WholeTrial(**row | {name: tuple(row[name]) for name in lists}) for row in rows]


def format_table(trials: Sequence[WholeTrial]) -> str:
    """The faults and the names that were found, as a table of the documentation."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 44 12 44", ""]
    rows = [("Made", "Right", "Named")]
    for name, fault in FAULTS.items():
        some = [trial for trial in trials if trial.fault == name]
        if some:
            found = Counter("; ".join(trial.named) or "nothing" for trial in some)
            texts = "; ".join(f"{count} x {text}" for text, count in sorted(found.items()))
            good = f"{sum(trial.is_good for trial in some)} of {len(some)}"
            rows.append((fault.says, good, texts))
    for row in rows:
        lines += [f"   {'* -' if number == 0 else '  -'} {text}" for number, text in enumerate(row)]
    wrong = sum(trial.is_wrong for trial in trials)
    return "\n".join([*lines, "", f"{wrong} of all {len(trials)} trials have a wrong name."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a trial is not good."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("run", "show"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", choices=sorted(FAULTS))
    parser.add_argument("--times", type=int, help=f"of each; default {_OF_FAULT}, {_OF_NOTHING}")
    options = parser.parse_args(argv)
    if options.action == "run":
        try:
            with end_on_signals(), adopt_orphans(), tempfile.TemporaryDirectory() as place:
                _make_trials(options.file, options.only or list(FAULTS), options.times, Path(place))
        except KeyboardInterrupt as error:
            print(f"{error or 'interrupted'}; the same command goes on", file=sys.stderr)
            return 2
    trials = read_trials(options.file)
    print(format_table(trials))
    return 0 if all(trial.is_good for trial in trials) else 1


def _make_trials(file: Path, names: Sequence[str], times: int | None, folder: Path) -> None:
    wanted = {name: times or (_OF_FAULT if FAULTS[name].right else _OF_NOTHING) for name in names}
    for turn in range(max(wanted.values())):
        made = Counter(trial.fault for trial in read_trials(file))
        for name, count in wanted.items():
            if made[name] <= turn < count:
                trial = make_trial(name, FAULTS[name], folder)
                with file.open("a") as stream:
                    stream.write(f"{json.dumps(attrs.asdict(trial))}\n")
                word = "good" if trial.is_good else "WRONG" if trial.is_wrong else "missed"
                print(f"{name}: {word}: {trial}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
