# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device``: which devices may be given, and what is wrong with the others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.cli import base, node_config
from nova_hpc.cli.base import Answer, CommandError
from nova_hpc.offer import device_spec, roles
from nova_hpc.tenancy import health
from nova_hpc.tenancy.health import Kind, Offer
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.step import Hygiene
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.policy import Rules
from nova_hpc.tenancy.step import Candidate, Step, View
from nova_hpc.topology import sysfs
from nova_hpc.topology.model import AddressError, Node, address_key, normalise_address
from nova_hpc.wire.ledger import Ledger

#: Options that are used here.
_NEEDED: Final = ("ledger_file", "reset_timeout", "cleaners", "sysfs_root")

#: How libvirt may bind a device only nova-compute's device_spec says.
_KINDS: Final = health.FRESH - {Kind.DRIVER, Kind.UNIT}

_FAILED: Final = 1

#: Columns of what has happened to one device.
_STATE: Final = ("Address", "State", "Reason")

_ERRORS: Final = (AddressError, LedgerError, node_config.ConfigError, cleaner.CleanerError)


@attrs.frozen
class Place:
    """The node, as its nova-compute knows it."""

    options: Any
    node: Node
    table: roles.Roles
    file: LedgerFile
    ledger: Ledger

    @classmethod
    def read(cls, config: Sequence[str]) -> Place:
        """Read the configuration, the node and its files.

        :raises node_config.ConfigError: the configuration cannot be read.
        :raises CommandError: the roles in it cannot be used.
        """
        options = node_config.read(config, _NEEDED)
        try:
            table = roles.strict(options.hpc.device_role)
        except roles.RoleError as error:
            raise CommandError(f"[hpc]device_role cannot be used: {error}") from error
        file = LedgerFile.from_options(options.hpc)
        busy = hygiene_reset.busy(*file.all_locks)
        return cls(
            options=options,
            node=sysfs.read(Path(options.hpc.sysfs_root), busy),
            table=table,
            file=file,
            ledger=file.read(),
        )

    def role(self, address: str) -> str | None:
        """The role of the device at *address*."""
        function = self.node.function(address)
        return None if function is None else self.table.role_of(function)

    def addresses(self) -> list[str]:
        """Everything that is offered, or that somebody has put into a file."""
        spec = device_spec.build(self.node, self.table)
        found = {each for offer in spec.offers for each in offer.functions}
        found |= self.ledger.devices.keys()
        return sorted(found, key=address_key)

    def condition(self, address: str, ill: Mapping[str, str]) -> tuple[str, str]:
        """One word for the state of a device, and the reason."""
        function = self.node.function(address)
        parent = function.physical_function if function else None
        why, server = self.ledger.why(address, parent), self.ledger.device(address).server
        if why is not None:
            return "quarantined", why
        if server is not None:
            return "in use", ill.get(address, "")
        if address in ill:
            return "withheld", ill[address]
        return "free", ""

    def ill(self) -> dict[str, str]:
        """Address -> what is wrong with a device, without touching it."""
        offers = [Offer(each) for each in self.addresses()]
        return {
            address: finding.reason
            for address, finding in health.judge(self.node, offers, kinds=_KINDS).items()
        }

    def step(self) -> Step:
        """What cleans and checks devices.

        :raises cleaner.CleanerError: ``[hpc]cleaners`` cannot be used.
        """
        hpc = self.options.hpc
        root = Path(hpc.sysfs_root)
        tools = cleaner.Tools(
            root=root,
            timeout=hpc.reset_timeout,
            reset=lambda each: hygiene_reset.reset(root, each, hpc.reset_timeout, self.file.locks),
            need_reset=Kind.RESET.value in hpc.health_checks,
        )
        cleaners = cleaner.load(hpc.cleaners, tools)
        rules = Rules.from_options(hpc)
        return Hygiene(root, self.file, cleaners, hpc.reset_timeout, rules=rules)

    def candidate(self, address: str) -> Candidate:
        """The device at *address*.

        :raises CommandError: there is none.
        """
        found = View(self.node, {address: self.role(address)}).candidate(address)
        if found is None or found.function.is_bridge:
            raise CommandError(f"{address}: this node has no such device")
        return found


class _One(base.Record):
    """About the device at one address."""

    errors = _ERRORS

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        # A bad one is refused like everything that is wrong with the device.
        parser.add_argument("address", metavar="ADDRESS", help="PCI address like 0000:41:00.0")
        node_config.add_options(parser)
        return parser


class List(base.List):
    """List the devices of this node: free, in use, withheld or quarantined."""

    errors = _ERRORS
    for_people = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        node_config.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
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
        return Answer(("Address", "Role", "State", "Reason", "Server"), rows)


class Show(_One):
    """Show one device: its state, its baseline, and how it differs from that."""

    for_people = False

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Names and values."""
        address = normalise_address(parsed_args.address)
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
        return Answer(tuple(values), tuple(values.values()))


class Check(_One):
    """Compare one device with its baseline; nothing is reset or changed.

    Exit status 1 when it differs. With --accept the device is recorded as it
    is now, e.g. after a card was replaced; a server must not have it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--accept", action="store_true", help="make what the device is now its baseline"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Print what differs."""
        address = normalise_address(parsed_args.address)
        place = Place.read(parsed_args.config)
        candidate = place.candidate(address)
        if parsed_args.accept:
            place.step().accept(candidate)
            return self._answer(address, "recorded as it is now")
        ill = place.ill()
        found = [ill[address]] if address in ill else []
        found += place.step().check(candidate)
        if found:
            return self._answer(address, "differs", found, _FAILED)
        known = place.ledger.device(address).baseline is not None
        said = "as its baseline says" if known else "well; it has no baseline yet"
        return self._answer(address, said)

    def _answer(
        self, address: str, result: str, found: Sequence[str] = (), status: int = 0
    ) -> Answer:
        for text in found or [result]:
            self.say(f"{address}: {text}")
        return Answer(
            ("Address", "Result", "Differences"), (address, result, "; ".join(found)), status
        )


class Quarantine(_One):
    """Take one device out of service; a server that has it keeps it.

    nova-compute hears of it at its next periodic update, and before the next
    server starts.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for colleagues")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Write it down."""
        address = normalise_address(parsed_args.address)
        reason = " ".join(parsed_args.reason.split())
        if not reason:
            raise CommandError("--reason: say why")
        place = Place.read(parsed_args.config)
        place.candidate(address)
        place.file.quarantine({address: reason})
        self.say(f"{address}: in quarantine")
        return Answer(_STATE, (address, "quarantined", reason))


class Release(_One):
    """Clean and check one device, and put it back into service if it passes.

    The device is reset, so no server may have it. Exit status 1 when it does
    not pass; it stays in quarantine then.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Clean, check, release."""
        address = normalise_address(parsed_args.address)
        place = Place.read(parsed_args.config)
        candidate = place.candidate(address)
        if address not in place.ledger.quarantined:
            why = place.ledger.why(address, candidate.function.physical_function)
            raise CommandError(f"{address} is not in quarantine itself{f': {why}' if why else ''}")
        ill = place.ill()
        why = ill.get(address) or place.step().release(candidate)
        if why is not None:
            print(f"{address}: stays in quarantine: {why}", file=sys.stderr)
            return Answer(_STATE, (address, "quarantined", why), _FAILED)
        self.say(f"{address}: clean, and back in service at nova-compute's next periodic update")
        return Answer(_STATE, (address, "free", ""))
