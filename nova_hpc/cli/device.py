"""``nova-hpc device``: which devices may be given, and what is wrong with the others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from nova_hpc.cli import node_config
from nova_hpc.cli.device_place import DeviceError, Place
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.topology.model import AddressError, normalise_address

_FAILED: Final = 1
#: Exit status of bad input; argparse uses the same for bad options.
_BAD_INPUT: Final = 2


def _one(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("address", metavar="ADDRESS", help="PCI address like 0000:41:00.0")
    node_config.add_options(parser)
    return parser


class _Tidy(Command):
    """Ends with one line when something is wrong."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; 0, 1 when a check has failed, 2 for bad input."""
        try:
            if hasattr(parsed_args, "address"):
                parsed_args.address = normalise_address(parsed_args.address)
            return int(super().run(parsed_args) or 0)
        except (DeviceError, AddressError, LedgerError) as error:
            print(f"nova-hpc {self.cmd_name}: {error}", file=sys.stderr)
            return _BAD_INPUT


class List(_Tidy, Lister):
    """List the devices of this node: free, in use, withheld or quarantined."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        node_config.add_options(parser)
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[tuple[str, ...], Iterator[tuple[str, ...]]]:
        """Columns and rows."""
        place = Place.read(parsed_args.config)
        for problem in place.ledger.problems:
            print(f"Problem: {problem}", file=sys.stderr)
        ill = place.ill()
        rows = (
            (
                address,
                place.role(address) or "",
                *place.condition(address, ill),
                place.ledger.device(address).server or "",
            )
            for address in place.addresses()
        )
        return ("Address", "Role", "State", "Reason", "Server"), rows


class Show(_Tidy, ShowOne):
    """Show one device: its state, its baseline, and how it differs from that."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        return _one(super().get_parser(prog_name))

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names and values."""
        address = parsed_args.address
        place = Place.read(parsed_args.config)
        candidate = place.candidate(address)
        function, step = candidate.function, place.step()
        state, reason = place.condition(address, place.ill())
        known = step.describe(address)
        values = {
            "Address": address,
            "Role": place.role(address) or "",
            "State": state,
            "Reason": reason,
            "Server": known["Server"],
            "Driver": function.driver or "",
            "Reset methods": " ".join(function.reset_methods or ()),
            "Differences": "; ".join(step.check(candidate)),
            "Baseline": known["Baseline"],
        }
        return tuple(values), tuple(values.values())


class Check(_Tidy):
    """Compare one device with its baseline; nothing is reset or changed.

    Exit status 1 when it differs. With --accept the device is recorded as it
    is now, e.g. after a card was replaced; a server must not have it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = _one(super().get_parser(prog_name))
        parser.add_argument(
            "--accept", action="store_true", help="make what the device is now its baseline"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print what differs."""
        address = parsed_args.address
        place = Place.read(parsed_args.config)
        candidate = place.candidate(address)
        if parsed_args.accept:
            place.step().accept(candidate)
            print(f"{address}: recorded as it is now")
            return 0
        ill = place.ill()
        found = [ill[address]] if address in ill else []
        found += place.step().check(candidate)
        for text in found:
            print(f"{address}: {text}")
        if found:
            return _FAILED
        known = place.ledger.device(address).baseline is not None
        print(f"{address}: {'as its baseline says' if known else 'well; it has no baseline yet'}")
        return 0


class Quarantine(_Tidy):
    """Take one device out of service; a server that has it keeps it.

    nova-compute hears of it at its next periodic update, and before the next
    server starts.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = _one(super().get_parser(prog_name))
        parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for colleagues")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write it down."""
        address, reason = parsed_args.address, " ".join(parsed_args.reason.split())
        if not reason:
            raise DeviceError("--reason: say why")
        place = Place.read(parsed_args.config)
        place.candidate(address)
        place.file.quarantine({address: reason})
        print(f"{address}: in quarantine")
        return 0


class Release(_Tidy):
    """Clean and check one device, and put it back into service if it passes.

    The device is reset, so no server may have it. Exit status 1 when it does
    not pass; it stays in quarantine then.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        return _one(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Clean, check, release."""
        address = parsed_args.address
        place = Place.read(parsed_args.config)
        candidate = place.candidate(address)
        if address not in place.ledger.quarantined:
            why = place.ledger.why(address, candidate.function.physical_function)
            raise DeviceError(f"{address} is not in quarantine itself{f': {why}' if why else ''}")
        ill = place.ill()
        why = ill.get(address) or place.step().release(candidate)
        if why is not None:
            print(f"{address}: stays in quarantine: {why}", file=sys.stderr)
            return _FAILED
        print(f"{address}: clean, and back in service at nova-compute's next periodic update")
        return 0
