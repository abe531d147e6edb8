# SPDX-License-Identifier: Apache-2.0
"""Options of ``nova-hpc-guest accept``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..compare import KINDS
from .causes import CAUSES
from .own_probes import DATA_OPTION, OwnProbes, decode_probes, join_probes, read_probe_file
from .probes import CLUSTER, FULL, PROBE_OF, PROBES, QUICK, Probe
from .sample import AcceptanceError

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
#: Seconds that measuring may take; of the tier ``cluster`` for each member.
BUDGETS: Final = {QUICK: 240.0, FULL: 7200.0, CLUSTER: 300.0}
#: Pairs that each probe gets before it is judged.
PAIRS: Final = {QUICK: 6, FULL: 25, CLUSTER: 6}
#: Most machines of a set: their addresses fit into one word of a command line.
_MOST_HOSTS: Final = 4096


class AcceptOptions(NamedTuple):
    """The parsed options of ``nova-hpc-guest accept``."""

    tier: str = QUICK
    only: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    save: str | None = None
    beside: str | None = None
    peer: str | None = None
    #: Addresses of the machines over which one run goes; empty for none.
    hosts: tuple[str, ...] = ()
    folder: str | None = None
    #: Seconds for measuring; 0.0 until :func:`complete_options` derives it.
    budget: float = 0.0
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
    #: Paths of files with probes of the user, and the files that have been read.
    probes: tuple[str, ...] = ()
    own: tuple[OwnProbes, ...] = ()


def add_accept_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the subcommand."""
    parser.add_argument(
        "--tier",
        choices=(QUICK, FULL, CLUSTER),
        default=QUICK,
        metavar=f"{{{QUICK},{FULL}}}",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --tier full: it takes up to two hours"
    )
    parser.add_argument(
        "--only",
        type=split_names,
        default=(),
        metavar="PROBE,...",
        help=f"measure only these: {', '.join(PROBE_OF)}, and those of --probe",
    )
    add_probe_option(parser)
    parser.add_argument(
        DATA_OPTION,
        dest="own",
        action="append",
        default=[],
        type=decode_probes,
        help=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="FILE",
        help="compare with what --save-baseline wrote on a machine of the same kind (default: with "
        "this machine itself, one thing changed); may be repeated",
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
    parser.add_argument(
        "--hosts",
        type=_read_hosts,
        default=(),
        metavar="HOST,...",
        help="machines over which a probe of scope whole runs, as openstack hpc cluster accept "
        "gives them",
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
    # The next five are for commands that measure this machine from another one.
    for name in ("--first", "--within", "--hold"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--setting", type=_read_setting, help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices=SERVED, help=argparse.SUPPRESS)
    parser.add_argument(
        "--gate",
        action="store_true",
        help="measure nothing: the status of what was measured since this machine was started",
    )


def add_probe_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option for files with probes of the user, also for commands of a cluster."""
    parser.add_argument(
        "--probe",
        action="append",
        default=[],
        metavar="FILE",
        help="measure also the programs that an INI file describes; may be repeated",
    )


def build_accept_options(parser: argparse.ArgumentParser, parsed: Any) -> AcceptOptions:
    """Convert argparse's result to options; a contradiction ends the command with its usage."""
    tier: str = parsed.tier
    if tier == FULL and not (parsed.yes or parsed.gate):
        parser.error("--tier full takes up to two hours and all CPUs: say --yes")
    if tier == CLUSTER and not (parsed.sample or parsed.serve):
        parser.error("--tier cluster is for all members: run openstack hpc cluster accept")
    if parsed.baseline and parsed.beside:
        parser.error("--baseline and --beside are two baselines: choose one")
    if parsed.save_baseline and (parsed.baseline or parsed.beside or parsed.only):
        parser.error("--save-baseline does not go with --baseline, --beside or --only")
    if (parsed.first or parsed.setting or parsed.within) and not parsed.sample:
        parser.error("--first, --setting and --within go with --sample")
    only: tuple[str, ...] = parsed.only
    try:
        if not parsed.probe:
            join_probes(parsed.own, only)
    except AcceptanceError as error:
        parser.error(str(error))
    if tier == QUICK:
        foreign = [name for name in only if name in PROBE_OF and PROBE_OF[name].tier == FULL]
        if foreign:
            parser.error(f"--only {','.join(foreign)} needs --tier full --yes")
    return AcceptOptions(
        tier=tier,
        only=only,
        baselines=tuple(parsed.baseline),
        save=parsed.save_baseline,
        beside=parsed.beside,
        peer=parsed.peer,
        hosts=parsed.hosts,
        folder=parsed.dir,
        budget=parsed.budget or 0.0,
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
        probes=tuple(parsed.probe),
        own=tuple(parsed.own),
    )


def complete_options(options: AcceptOptions) -> AcceptOptions:
    """Read the files of the user's probes, and derive the budget if none is given.

    :raises AcceptanceError: a file cannot be used, or ``--only`` names no probe.
    """
    own = (*options.own, *map(read_probe_file, options.probes))
    budget = options.budget or find_budget(options.tier, join_probes(own, options.only))
    return options._replace(own=own, budget=budget)


def find_budget(tier: str, own: Sequence[Probe]) -> float:
    """Return the seconds that measuring one machine may take, with the user's own probes.

    Both sides may run each program as often as a judgement needs, each time up to its limit.
    """
    return BUDGETS[tier] + 2 * PAIRS[tier] * sum(probe.limit for probe in own if not probe.of)


def split_names(text: str) -> tuple[str, ...]:
    """Split names of probes at commas; :func:`join_probes` checks them."""
    return tuple(word for word in text.split(",") if word)


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
    if not re.fullmatch(r"(?:::)?[A-Za-z0-9][A-Za-z0-9_.:-]{0,250}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!a} is no name or address of a host")
    return text


def _read_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(map(_read_address, text.split(",")))
    if len(set(hosts)) < len(hosts) or len(hosts) > _MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"it names a host twice, or more than {_MOST_HOSTS}")
    return hosts


def _read_scale(text: str) -> float:
    if not re.fullmatch(r"[01](?:\.\d{1,4})?", text, re.ASCII) or not 0.01 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!a} is no part from 0.01 to 1")
    return float(text)


def _read_seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(?:\.\d{1,3})?", text, re.ASCII) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text!a} is no number of seconds above 0")
    return float(text)
