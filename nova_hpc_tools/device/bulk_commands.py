# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device``: many devices at once, and changes that are expected."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.tenancy.ledger import LedgerError, expect_whole
from nova_hpc.topology.model import address_key, normalise_address
from nova_hpc.wire.announcements import Maintenance
from nova_hpc.wire.ledger import DeviceState, Ledger
from nova_hpc_tools import base
from nova_hpc_tools.base import CommandAnswer, CommandError
from nova_hpc_tools.device.command import ERRORS, ManagedNode, format_ledger_time
from nova_hpc_tools.planned_time import parse_planned_time
from nova_hpc_tools.site import source_options

_FAILED: Final = 1
_MODEL: Final = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){1,3}", re.ASCII)
_AGO: Final = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _parse_model(text: str) -> str:
    if not _MODEL.fullmatch(text.lower()):
        raise argparse.ArgumentTypeError(f"{text!r} is no model like 10de:2330")
    return text.lower()


def _parse_duration(text: str) -> float:
    match = _AGO.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 90m, 2h or 1d")
    return int(match[1]) * _SECONDS[match[2]]


def _parse_time(text: str) -> float:
    """A time of day, or how long ago."""
    if _AGO.fullmatch(text):
        return time.time() - _parse_duration(text)
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time like 2026-11-22T23:00 or 2h (ago)"
        ) from error


@attrs.frozen
class _SelectedDevice:
    """A device that the options of a command selected."""

    address: str
    state: str
    reason: str


class _BulkDeviceCommand(base.ListCommand):
    """A command on several devices: shows them and waits for a confirmation."""

    errors = ERRORS
    question = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "addresses", metavar="ADDRESS", nargs="*", help="PCI addresses like 0000:41:00.0"
        )
        which = parser.add_argument_group("which devices")
        which.add_argument("--all", action="store_true", help="all of this node")
        which.add_argument(
            "--model",
            type=_parse_model,
            metavar="VENDOR:PRODUCT",
            help="those of a model; the subsystem's ids may follow",
        )
        which.add_argument(
            "--since",
            type=_parse_time,
            metavar="TIME",
            help="those whose state began at that time or later: 2026-11-22T23:00, or 2h for "
            "two hours ago",
        )
        parser.add_argument(
            "--yes", action="store_true", help="no question; needed with -f and without a terminal"
        )
        source_options.add_config_options(parser)
        self._parser = parser
        return parser

    def selected(
        self, args: argparse.Namespace, place: ManagedNode, reasons: Mapping[str, str]
    ) -> list[_SelectedDevice]:
        """The entries of *reasons* (address -> reason) that the options select.

        :raises CommandError: *reasons* lacks an address of the options.
        """
        named = [normalise_address(address) for address in args.addresses]
        many = args.all or args.model is not None or args.since is not None
        if bool(named) == many:
            self._parser.error("name addresses, or --all, --model or --since")
        for address in named:
            if address not in reasons:
                place.candidate(address)
                raise CommandError(self.nothing(address, place))
        rows = []
        for address in sorted(reasons, key=address_key):
            trial = place.ledger.device(address).trial
            model = place.model(address)
            if named and address not in named:
                continue
            if args.model is not None and not f"{model}:".startswith(f"{args.model}:"):
                continue
            if args.since is not None and (trial is None or trial.since < args.since):
                continue
            state = place.ledger.device(address).state
            rows.append(_SelectedDevice(address, state.value, reasons[address]))
        return rows

    def nothing(self, address: str, place: ManagedNode) -> str:
        """The reason why the command has nothing to do for a device that the user named."""
        raise NotImplementedError

    def confirm(
        self, args: argparse.Namespace, rows: Sequence[_SelectedDevice], place: ManagedNode
    ) -> bool:
        """Show the devices and wait for a confirmation, unless --yes is given.

        :raises CommandError: standard input is not a terminal, so the question has no answer.
        """
        for row in rows:
            self.say(f"{row.address}  {place.model(row.address):20}  {row.state:11}  {row.reason}")
        if args.yes or (len(rows) == 1 and args.addresses):
            return True
        if not self._people or not sys.stdin.isatty():
            raise CommandError(
                f"{len(rows)} devices, and no terminal for a question: look at them without -f, "
                "and give --yes"
            )
        answer = input(f"{self.question.format(len(rows))} [y/N] ")
        return answer.strip().lower() in ("y", "yes")


class AcceptDevices(_BulkDeviceCommand):
    """Record devices as they are now: their changes are right.

    For changes of firmware, drivers or boards. The differences are shown first. The
    same change at other devices of the model, which servers have now, is accepted when
    they are cleaned. A device that is withheld for its change is cleaned and offered at
    nova-compute's next periodic update; other reasons stay.
    """

    question = "Record these {} devices as they are now?"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for colleagues")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Show the devices, wait for a confirmation, and record them."""
        reason = " ".join(parsed_args.reason.split())
        if not reason:
            raise CommandError("--reason: give a reason")
        place = ManagedNode.read_existing(parsed_args.config)
        step = place.step()
        devices = [
            place.candidate(address) for address in place.addresses() if place.is_there(address)
        ]
        differences, self._uncompared = step.changes(devices)
        rows = self.selected(parsed_args, place, differences)
        columns = ("Address", "Differences", "Result")
        uncompared = {} if parsed_args.addresses else self._uncompared
        others = self.selected(parsed_args, place, uncompared) if uncompared else []
        free = [row for row in others if place.ledger.device(row.address).server is None]
        for row in free:
            print(f"{row.address}: {row.reason}", file=sys.stderr)
        if held := len(others) - len(free):
            self.say(f"not compared before they are cleaned: {held} devices of servers")
        status = _FAILED if free else 0
        if not rows:
            which = "such " * (not parsed_args.all) + "other " * bool(others)
            self.say(f"no {which}device differs from its baseline")
            return CommandAnswer(columns, [], status)
        if not self.confirm(parsed_args, rows, place):
            return CommandAnswer(columns, [], _FAILED)
        owners = place.owners()
        done = []
        for row in rows:
            try:
                result = step.accept(place.candidate(row.address), owners, reason)
            except LedgerError as error:
                result, status = str(error), _FAILED
            self.say(f"{row.address}: {result}")
            done.append((row.address, row.reason, result))
        return CommandAnswer(columns, done, status)

    def nothing(self, address: str, place: ManagedNode) -> str:
        """The text for a device without a change to accept."""
        server = place.ledger.device(address).server
        if server is not None:
            return f"{address} is with server {server}: its changes are judged when it is cleaned"
        if address in self._uncompared:
            return f"{address}: {self._uncompared[address]}"
        return f"{address} does not differ from its baseline"


class ReleaseDevices(_BulkDeviceCommand):
    """Clean and check devices, and put those that pass back into service.

    Devices are reset, so no server may have them. Exit status 1 when one does not
    pass; it stays as it is then.
    """

    question = "Reset and release these {} devices?"

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Show the devices, wait for a confirmation, and clean, check and release them."""
        place = ManagedNode.read_existing(parsed_args.config)
        withheld = {**place.ledger.suspect, **place.ledger.quarantined}
        rows = self.selected(parsed_args, place, withheld)
        columns = ("Address", "State", "Reason")
        if not rows:
            expect_whole(place.ledger)
            which = "" if parsed_args.all else "such "
            self.say(f"no {which}device is suspect or in quarantine")
            return CommandAnswer(columns, [])
        alone = len(rows) == 1 and bool(parsed_args.addresses)
        if not alone and not self.confirm(parsed_args, rows, place):
            return CommandAnswer(columns, [], _FAILED)
        ill, step, owners = place.ill(), place.step(), place.owners()
        done, status = [], 0
        for row in rows:
            address = row.address
            try:
                reason = ill.get(address) or step.release(place.candidate(address), owners)
            except (LedgerError, CommandError) as error:
                if len(rows) == 1:
                    raise
                reason = str(error)
            if reason is not None:
                state = "in quarantine" if row.state == DeviceState.QUARANTINED.value else row.state
                print(f"{address}: stays {state}: {reason}", file=sys.stderr)
                done.append((address, row.state, reason))
                status = _FAILED
                continue
            self.say(
                f"{address}: clean, and back in service at nova-compute's next periodic update"
            )
            done.append((address, "free", ""))
        return CommandAnswer(columns, done, status)

    def nothing(self, address: str, place: ManagedNode) -> str:
        """The text for a device that is not withheld for its own faults."""
        function = place.node.function(address)
        parent = None if function is None else function.physical_function
        reason = place.ledger.why(address, parent)
        return (
            f"{address} is neither suspect nor in quarantine "
            f"itself{f': {reason}' if reason else ''}"
        )


class MaintenanceWindow(base.RecordCommand):
    """Announce a time in which devices may change, or work on devices to owners.

    --start: a change of identity, BARs, capabilities or the number of virtual functions that
    is seen in that time becomes the new baseline, with a line in the log. Use it around
    updates of firmware and drivers, and end it when they are done.

    --at: the servers that have the devices get a tag and an instance action from nova-compute, so
    their owners learn when work on the devices begins, and no more. Without options, the
    announced times are shown.
    """

    errors = ERRORS

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "addresses",
            metavar="ADDRESS",
            nargs="*",
            help="with --at and --stop: PCI addresses like 0000:41:00.0; that of a physical "
            "function stands for its virtual functions, too",
        )
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--at",
            type=parse_planned_time,
            metavar="TIME",
            help="work on these devices begins at TIME, like 2026-12-04T08:00Z; announce it",
        )
        what.add_argument(
            "--start",
            nargs="?",
            const=None,
            default=False,
            type=_parse_time,
            metavar="TIME",
            help="begin at TIME, like 2026-11-22T23:00 (default: now)",
        )
        what.add_argument(
            "--stop",
            action="store_true",
            help="nothing is expected or planned any more; with ADDRESS, no work on that device",
        )
        end = parser.add_mutually_exclusive_group()
        end.add_argument("--end", type=_parse_time, metavar="TIME", help="until TIME")
        end.add_argument(
            "--for",
            dest="lasts",
            type=_parse_duration,
            metavar="DURATION",
            help="for 90m, 2h or 1d",
        )
        parser.add_argument(
            "--model",
            type=_parse_model,
            action="append",
            default=[],
            metavar="VENDOR:PRODUCT",
            help="only devices of this model; may be repeated",
        )
        parser.add_argument("--reason", metavar="TEXT", help="why, for colleagues")
        source_options.add_config_options(parser)
        self._parser = parser
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Announce, end, or show."""
        args = parsed_args
        # Time for maintenance can be announced before nova-compute has run.
        starts = args.start is not False and not args.stop
        if args.addresses and not (args.at or args.stop):
            self._parser.error("ADDRESS needs --at or --stop")
        if args.at and not args.addresses:
            self._parser.error("--at needs the ADDRESS of a device")
        if args.start is False and (args.end or args.lasts or args.reason or args.model):
            self._parser.error("--end, --for, --model and --reason need --start")
        place = (ManagedNode.read if starts else ManagedNode.read_existing)(args.config)
        ledger = place.ledger
        if args.stop:
            ledger = self._end(place, args.addresses)
        elif starts:
            announced = self._announced(args)
            ledger = place.file.change(lambda ledger: attrs.evolve(ledger, maintenance=announced))
        elif args.at:
            ledger = self._plan(place, args.addresses, args.at)
        window = ledger.maintenance
        planned = [f"{address} {time}" for address, time in sorted(ledger.planned.devices.items())]
        values = ("", "", "", "")
        if window is not None:
            values = (
                format_ledger_time(window.start),
                format_ledger_time(window.end),
                " ".join(window.models),
                window.reason,
            )
            models = values[2] or "all models"
            self.say(f"from {values[0]} to {values[1]}, {models}: {values[3]}")
        elif not planned:
            if not args.stop:
                expect_whole(ledger)
            self.say("no maintenance is announced")
        for line in planned:
            self.say(f"planned work: {line}")
        return CommandAnswer(_COLUMNS, (*values, "; ".join(planned)))

    def _plan(self, place: ManagedNode, texts: Sequence[str], time: str) -> Ledger:
        """Write the time at which work on devices begins.

        :raises CommandError: the node has no such device, or its watch is off.
        """
        if not place.options.hpc.watch_interval:
            raise CommandError(
                "[hpc]watch_interval is 0, so nova-compute of this node announces nothing: set it, "
                "or announce work on the whole host with nova-hpc drain --at"
            )
        addresses = [normalise_address(text) for text in texts]
        for address in addresses:
            place.candidate(address)
        return self._put_planned(
            place, lambda devices: {**devices, **dict.fromkeys(addresses, time)}
        )

    def _end(self, place: ManagedNode, texts: Sequence[str]) -> Ledger:
        """End the window and all planned work, or the planned work on some devices alone.

        :raises CommandError: no work is planned on one of them.
        """
        addresses = {normalise_address(text) for text in texts}
        for address in sorted(addresses - place.ledger.planned.devices.keys()):
            raise CommandError(f"no work is planned on {address}")
        if not addresses:
            place.file.change(lambda ledger: attrs.evolve(ledger, maintenance=None))
        return self._put_planned(
            place,
            lambda devices: {
                address: time
                for address, time in devices.items()
                if addresses and address not in addresses
            },
        )

    @staticmethod
    def _put_planned(
        place: ManagedNode, change: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> Ledger:
        def edit(ledger: Ledger) -> Ledger:
            planned = attrs.evolve(ledger.planned, devices=change(ledger.planned.devices))
            return attrs.evolve(ledger, planned=planned)

        return place.file.change(edit)

    def _announced(self, args: argparse.Namespace) -> Maintenance:
        reason = " ".join((args.reason or "").split())
        if not reason:
            self._parser.error("--start needs --reason")
        if args.end is None and args.lasts is None:
            self._parser.error("--start needs --end or --for")
        start = time.time() if args.start is None else args.start
        end = args.end if args.lasts is None else start + args.lasts
        if end <= start:
            raise CommandError("it would end before it begins")
        return Maintenance(start, end, reason, tuple(args.model))


_COLUMNS: Final = ("Start", "End", "Models", "Reason", "Planned")
