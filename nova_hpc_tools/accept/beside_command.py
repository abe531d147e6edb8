# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc accept --beside``."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.status import Status

from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_common.output.printing import InertConsole
from nova_hpc_guest.accept.baseline import read_baseline
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.options import BUDGETS
from nova_hpc_guest.accept.probes import QUICK
from nova_hpc_guest.accept.refusal import Refusal, refuse_busy_machine
from nova_hpc_guest.accept.result import AcceptanceResult, write_acceptance
from nova_hpc_guest.accept.sample import AcceptanceError
from nova_hpc_guest.accept.session import end_on_signals, read_floors
from nova_hpc_guest.accept.tools import adopt_orphans
from nova_hpc_guest.accept.views import format_result
from nova_hpc_guest.files import Root
from nova_hpc_tools import base
from nova_hpc_tools.accept.beside_run import (
    PROBES,
    BesideTerms,
    measure_against_file,
    measure_beside,
)
from nova_hpc_tools.accept.guest_place import GuestPlace, GuestPlaceError, read_guest_place
from nova_hpc_tools.accept.host_watch import HostWatch
from nova_hpc_tools.base import CommandAnswer, CommandError
from nova_hpc_tools.doctor import libvirt_domains
from nova_hpc_tools.doctor.libvirt_domains import DomainUnreadError

_COLUMNS: Final = ("Probe", "Unit", "Host", "Guest", "Ratio", "Low", "High", "Floor", "Verdict")
_LONGEST: Final = 1 << 24


class AcceptServer(base.ListCommand):
    """Measure a guest beside its own host, on the same CPUs and memory node, in turns.

    It runs on the compute node. The guest has to be idle while the host is measured. CPU,
    memory, timer and clock are compared; devices are the guest's. Exit status: 0 accepted, 1
    slow or not as promised, 2 refused or not measurable, 3 undecided.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (AcceptanceError, GuestPlaceError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--beside",
            required=True,
            metavar="SERVER",
            help="ID of a server on this node, or libvirt's name of its domain",
        )
        how = parser.add_mutually_exclusive_group(required=True)
        how.add_argument(
            "--guest",
            metavar="COMMAND",
            help="the command that runs nova-hpc-guest in the guest, as in 'ssh root@10.0.0.5 "
            "nova-hpc-guest'. Host and guest are then measured in turns",
        )
        how.add_argument(
            "--rounds",
            metavar="FILE",
            help="the file from the guest's user: rounds that nova-hpc-guest accept "
            "--save-baseline wrote there",
        )
        parser.add_argument(
            "--only",
            type=_read_probes,
            default=PROBES,
            metavar="PROBE,...",
            help=f"measure only these of {', '.join(PROBES)}",
        )
        parser.add_argument(
            "--floors", metavar="FILE", help="JSON object: probe and the ratio below it is slow"
        )
        parser.add_argument(
            "--budget",
            type=base.Count(1),
            default=int(BUDGETS[QUICK]),
            metavar="SECONDS",
            help="time for measuring, at most; default: %(default)s",
        )
        parser.add_argument(
            "--connect",
            default=libvirt_domains.DEFAULT_URI,
            metavar="URI",
            help="of libvirt; default: %(default)s",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Measure the host and the guest, and judge the guest."""
        try:
            text = libvirt_domains.read_domain_xml(parsed_args.connect, parsed_args.beside)
        except DomainUnreadError as error:
            raise CommandError(f"{parsed_args.beside}: {error}") from error
        place = read_guest_place(text)
        terms = BesideTerms(
            only=parsed_args.only,
            floors=read_floors(parsed_args.floors),
            findings=place.findings,
            budget=float(parsed_args.budget),
        )
        try:
            with end_on_signals(), adopt_orphans():
                result = self._measure(parsed_args, place, terms)
        except KeyboardInterrupt as error:
            raise CommandError(f"{error or 'interrupted'}; nothing is left running") from error
        return CommandAnswer(
            _COLUMNS,
            list(_list_rows(result)),
            status=result.status,
            show=lambda: print("\n".join(format_result(result))),
            document=lambda: write_acceptance(result),
            nothing="nothing was measured",
        )

    def _measure(
        self, args: argparse.Namespace, place: GuestPlace, terms: BesideTerms
    ) -> AcceptanceResult:
        refused = place.refusal or refuse_busy_machine(Root("/"), place.host_cpus)
        if refused is not None:
            return _refuse(refused, terms)
        host = RemoteMember(_build_host_command(place), QUICK, more=("--within",))
        with InertConsole(file=sys.stderr).status("") as status:
            progress = _Progress(status)
            if args.guest is not None:
                guest = RemoteMember(_build_guest_command(args.guest), QUICK)
                watch = HostWatch(Path("/"), [cpu for (cpu,) in place.cpus])
                return measure_beside(host, guest, terms, progress, watch)
            rounds = read_baseline(_read_file(args.rounds))
            return measure_against_file(host, rounds, terms, progress)


class _Progress:
    """Display of the running probe in rich's status line."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def __call__(self, text: str) -> None:
        self._status.update(text)


def _refuse(refused: Refusal, terms: BesideTerms) -> AcceptanceResult:
    return AcceptanceResult(
        QUICK, None, GuestFacts(), findings=terms.findings, refused=refused, partial=True
    )


class _CommandWords:
    """argparse action that appends the words of ``nova-hpc-guest`` to another command's words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)

    def __call__(self, words: Sequence[str]) -> list[str]:
        return [*self._words, *words]


def _build_host_command(place: GuestPlace) -> _CommandWords:
    """Build the command that runs ``nova-hpc-guest`` on the host, on the guest's CPUs and memory.

    :raises CommandError: numactl is not installed.
    """
    numactl = shutil.which("numactl")
    if numactl is None:
        raise CommandError("numactl is not on this node: install Debian's package numactl")
    words = [numactl, f"--physcpubind={','.join(map(str, place.host_cpus))}"]
    if place.nodes:
        words.append(f"--membind={','.join(map(str, place.nodes))}")
    else:
        words.append("--localalloc")
    return _CommandWords([*words, sys.executable, "-m", "nova_hpc_guest.command"])


def _build_guest_command(text: str) -> _CommandWords:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CommandError(f"--guest {text!a}: {error}") from error
    if not words:
        raise CommandError("--guest is empty")
    return _CommandWords(words)


def _read_file(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(_LONGEST)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"--rounds {path!a}: {reason}") from error


def _read_probes(text: str) -> tuple[str, ...]:
    words = tuple(word for word in text.split(",") if word)
    for word in words:
        if word not in PROBES:
            raise argparse.ArgumentTypeError(f"{word!a} is not one of {', '.join(PROBES)}")
    return words


def _list_rows(result: AcceptanceResult) -> Iterator[tuple[Any, ...]]:
    for row in result.rows:
        numbers = (row.ratio, row.low, row.high)
        yield (
            *(row.probe, row.unit, f"{row.base:.4g}", f"{row.test:.4g}"),
            *(round(number, 3) for number in numbers),
            *(row.floor, row.verdict),
        )
