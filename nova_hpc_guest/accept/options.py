# SPDX-License-Identifier: Apache-2.0
"""Options of ``nova-hpc-guest accept``."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final, NamedTuple

from ..compare import KINDS
from .causes import CAUSES
from .probes import FULL, PROBE_OF, PROBES, QUICK

FORMATS: Final = ("text", "json", "svg", "junit")
#: Settings that need no rights: settings of causes, and halves of ``cpus=half``.
SETTINGS: Final = tuple(
    sorted(
        {cause.setting for cause in CAUSES if cause.setting and cause.setting != "cpus=half"}
        | {"cpus=even", "cpus=first"}
    )
)
#: Probes that another machine can answer.
SERVED: Final = tuple(probe.name for probe in PROBES if probe.server)
#: Seconds that measuring may take.
BUDGETS: Final = {QUICK: 240.0, FULL: 7200.0}
#: Pairs that each probe gets before it is judged.
PAIRS: Final = {QUICK: 6, FULL: 25}


class AcceptOptions(NamedTuple):
    """The parsed options of ``nova-hpc-guest accept``."""

    tier: str = QUICK
    only: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    save: str | None = None
    beside: str | None = None
    peer: str | None = None
    folder: str | None = None
    budget: float = BUDGETS[QUICK]
    pairs: int = PAIRS[QUICK]
    form: str = "text"
    floors: str | None = None
    skip: tuple[str, ...] = ()
    busy: bool = False
    sample: bool = False
    gate: bool = False
    published: bool = False
    #: Part of the work for CPU and memory; None to derive it from the machine's speed.
    scale: float | None = None
    #: With a sample: also the data that the next rounds need.
    first: bool = False
    #: With a sample: the setting to change, as ``pages=large``.
    setting: str | None = None
    #: The probe of another machine that is answered.
    serve: str | None = None
    #: CPUs that this process may use are all that the machine has.
    within: bool = False
    #: End when standard input ends.
    hold: bool = False


def add_accept_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the subcommand."""
    parser.add_argument("--tier", choices=(QUICK, FULL), default=QUICK)
    parser.add_argument(
        "--yes", action="store_true", help="with --tier full: it takes up to two hours"
    )
    parser.add_argument(
        "--only",
        type=_read_probes,
        default=(),
        metavar="PROBE,...",
        help=f"measure only these: {', '.join(PROBE_OF)}",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="FILE",
        help="compare with what --save-baseline wrote on a machine of the same kind; may be "
        "repeated; without it the machine is compared with itself, one thing changed",
    )
    parser.add_argument(
        "--beside",
        metavar="COMMAND",
        help="compare in turns with another machine: COMMAND prints its sample, as in "
        "'ssh node2 nova-hpc-guest accept --sample'",
    )
    parser.add_argument(
        "--save-baseline", metavar="FILE", help="keep this machine's rounds as a baseline"
    )
    parser.add_argument(
        "--peer",
        type=_read_address,
        metavar="HOST",
        help="machine where iperf3 -s and the like answer (default: this one, over loopback)",
    )
    parser.add_argument("--dir", metavar="DIR", help="where the disk is read")
    parser.add_argument(
        "--budget", type=_read_seconds, metavar="SECONDS", help="time for measuring, at most"
    )
    parser.add_argument(
        "--scale",
        type=_read_scale,
        metavar="PART",
        help="part of the work that probes of CPU and memory are given, from 0.01 to 1 (default: "
        "less on a machine that would take too long)",
    )
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument(
        "--floors", metavar="FILE", help="JSON object: probe and the ratio below which it is slow"
    )
    parser.add_argument(
        "--skip",
        default=(),
        type=_read_kinds,
        metavar="KIND,...",
        help=f"promises that are not checked: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="measure also while other processes keep CPUs busy or use GPUs",
    )
    parser.add_argument(
        "--compare",
        choices=("published",),
        help="also print what was published of virtual machines beside real ones",
    )
    parser.add_argument(
        "--sample", action="store_true", help="measure one round, print it as JSON, judge nothing"
    )
    parser.add_argument(
        "--first",
        action="store_true",
        help="with --sample: also what check finds, whether the machine is busy, and how much "
        "work suits it",
    )
    parser.add_argument(
        "--setting",
        type=_read_setting,
        metavar="NAME=VALUE",
        help=f"with --sample: change one thing: {', '.join(SETTINGS)}",
    )
    parser.add_argument(
        "--within",
        action="store_true",
        help="with --sample: the CPUs that this process may use are taken for all of the machine's",
    )
    parser.add_argument(
        "--serve",
        choices=SERVED,
        metavar="PROBE",
        help=f"measure nothing: answer another machine's probe, one of {', '.join(SERVED)}",
    )
    parser.add_argument(
        "--hold",
        action="store_true",
        help="end when standard input ends, as it does when an ssh that holds it is ended",
    )
    parser.add_argument(
        "--gate",
        action="store_true",
        help="measure nothing: the status of what was measured since this machine was started",
    )


def build_accept_options(parser: argparse.ArgumentParser, parsed: Any) -> AcceptOptions:
    """Convert argparse's result to options; a contradiction ends the command with its usage."""
    tier: str = parsed.tier
    if tier == FULL and not (parsed.yes or parsed.gate):
        parser.error("--tier full takes up to two hours and all CPUs: say --yes")
    if parsed.baseline and parsed.beside:
        parser.error("--baseline and --beside are two baselines: choose one")
    if parsed.save_baseline and (parsed.baseline or parsed.beside or parsed.only):
        parser.error("--save-baseline does not go with --baseline, --beside or --only")
    if (parsed.first or parsed.setting or parsed.within) and not parsed.sample:
        parser.error("--first, --setting and --within go with --sample")
    only: tuple[str, ...] = parsed.only
    if tier == QUICK:
        foreign = [name for name in only if PROBE_OF[name].tier == FULL]
        if foreign:
            parser.error(f"--only {','.join(foreign)} needs --tier full --yes")
    return AcceptOptions(
        tier=tier,
        only=only,
        baselines=tuple(parsed.baseline),
        save=parsed.save_baseline,
        beside=parsed.beside,
        peer=parsed.peer,
        folder=parsed.dir,
        budget=parsed.budget if parsed.budget is not None else BUDGETS[tier],
        pairs=PAIRS[tier],
        form=parsed.format,
        floors=parsed.floors,
        skip=parsed.skip,
        busy=parsed.busy,
        sample=parsed.sample,
        gate=parsed.gate,
        published=parsed.compare == "published",
        scale=parsed.scale,
        first=parsed.first,
        setting=parsed.setting,
        serve=parsed.serve,
        within=parsed.within,
        hold=parsed.hold,
    )


def _read_probes(text: str) -> tuple[str, ...]:
    words = tuple(word for word in text.split(",") if word)
    for word in words:
        if word not in PROBE_OF:
            raise argparse.ArgumentTypeError(f"{word!a} is not one of {', '.join(PROBE_OF)}")
    return words


def _read_kinds(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in KINDS:
            raise argparse.ArgumentTypeError(f"{word!a} is not one of {', '.join(KINDS)}")
    return words


def _read_setting(text: str) -> str:
    if text not in SETTINGS:
        raise argparse.ArgumentTypeError(f"{text!a} is not one of {', '.join(SETTINGS)}")
    return text


def _read_address(text: str) -> str:
    # It becomes a word of a command line.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!a} is no name or address of a host")
    return text


def _read_scale(text: str) -> float:
    if not re.fullmatch(r"[01](?:\.\d{1,4})?", text, re.ASCII) or not 0.01 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!a} is no part from 0.01 to 1")
    return float(text)


def _read_seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(?:\.\d{1,3})?", text, re.ASCII) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text!a} is no number of seconds above 0")
    return float(text)
