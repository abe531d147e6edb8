# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device``: the devices that servers can get, and the faults of the others."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from cliff.columns import FormattableColumn

from nova_hpc.tenancy import forbidden, health, holders, reserve, storage
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.hygiene import clean_nvme, cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign
from nova_hpc.tenancy.stage import device_stage, erasers
from nova_hpc.tenancy.stage.device_stage import DeviceStage, StagePhase
from nova_hpc.tenancy.step import DeviceCandidate, NodeView
from nova_hpc.tenancy.storage import Erasers
from nova_hpc.tenancy.watch import owner_report, record
from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.model import AddressError, Node, address_key, normalise_address
from nova_hpc.wire.ledger import DeviceState, Ledger
from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_tools import base
from nova_hpc_tools.base import CommandAnswer, CommandError
from nova_hpc_tools.device.upkeep import DeviceUpkeep
from nova_hpc_tools.doctor import libvirt_domains
from nova_hpc_tools.site import device_spec, service_settings, source_options
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.device_spec import DeviceSpec

#: Options that are used here.
_NEEDED: Final = (
    *("ledger_file", "reset_timeout", "sysfs_root", "offer_anyway", "clean_timeout"),
    "watch_interval",
    *erasers.OPTIONS,
)

#: Only nova-compute's device_spec shows how libvirt may bind a device.
_SIGNS: Final = health.FRESH - {HealthSign.DRIVER, HealthSign.UNIT}

_FAILED: Final = 1

#: Columns of the result for one device.
_STATE: Final = ("Address", "State", "Reason")

#: Errors that end a command with one line.
ERRORS: Final = (AddressError, LedgerError, service_settings.ConfigError, cleaner.CleanerError)


@attrs.frozen
class ManagedNode:
    """This node, with the configuration and the ledger of its nova-compute."""

    options: Any
    node: Node
    table: roles.Roles
    file: LedgerFile
    ledger: Ledger

    @classmethod
    def read_existing(cls, config: Sequence[str], lost: bool = False) -> ManagedNode:
        """Like :meth:`read`, but the ledger must exist. Prints its path and problems.

        :param lost: the ledger may be lost.
        :raises LedgerError: the ledger does not exist, or is lost.
        """
        place = cls.read(config)
        if not (lost and place.ledger.lost):
            place.file.existing()
        print(f"Ledger: {place.file.path}", file=sys.stderr)
        for problem in place.ledger.problems:
            print(f"Problem: {problem}", file=sys.stderr)
        return place

    @classmethod
    def read(cls, config: Sequence[str]) -> ManagedNode:
        """Read the configuration, the node and its ledger; a missing ledger counts as empty.

        :raises node_config.ConfigError: the configuration cannot be read.
        :raises CommandError: the roles in it cannot be used.
        """
        options = service_settings.read_node_options(config, _NEEDED)
        file = LedgerFile.from_options(options.hpc)
        busy = hygiene_reset.list_busy_resets(file.locks)
        node = sysfs.read_sysfs_node(Path(options.hpc.sysfs_root), busy)
        try:
            table = service_settings.role_table_of(
                options.hpc.device_role, node, options.pci.device_spec
            )
        except roles.RoleError as error:
            raise CommandError(f"[hpc]device_role cannot be used: {error}") from error
        return cls(options=options, node=node, table=table, file=file, ledger=file.read())

    def role(self, address: str) -> str | None:
        """The role of the device at *address*."""
        function = self.node.function(address)
        return None if function is None else self.table.role_of(function, self.node)

    def is_there(self, address: str) -> bool:
        """Whether there is a device that can be given at *address*."""
        function = self.node.function(address)
        return function is not None and not function.is_bridge

    def model(self, address: str) -> str:
        """``vendor:product``, and the subsystem's ids if it has them."""
        function = self.node.function(address)
        if function is None:
            return ""
        words = (
            function.vendor_id,
            function.product_id,
            function.subsystem_vendor_id,
            function.subsystem_id,
        )
        return ":".join(word for word in words if word is not None)

    def faults(self, address: str) -> str:
        """The faults of a device that a server has, as nova-compute's watch found them, or ""."""
        entry = record.load_record(self.ledger.device(address).watch)
        return "" if entry is None else entry.text(format_ledger_time)

    def planned(self, address: str) -> str:
        """The time at which work on a device or on its physical function begins, or ""."""
        function = self.node.function(address)
        parent = None if function is None else function.physical_function
        planned, server = self.ledger.planned, self.ledger.device(address).server
        times = (planned.devices.get(key or "", "") for key in (address, parent))
        time = min(filter(None, times), default="")
        if not time:
            return ""
        present = format_planned_time(datetime.datetime.now(datetime.UTC))
        waits = server is not None and time > present and planned.announced.get(server) != time
        return f"{time}, not reported to its owner yet" if waits else time

    def reported(self, address: str, server: str | None = None) -> str:
        """The report of a device by the owner of a server; "" if there is none.

        :param server: the server; None for any.
        """
        report = owner_report.load_owner_report(self.ledger.device(address).report)
        if report is None or server not in (None, report.server):
            return ""
        return report.text(format_ledger_time)

    def since(self, address: str) -> str:
        """The time at which the state of a device began; "" if it never had a fault."""
        trial = self.ledger.device(address).trial
        return format_ledger_time(trial.since) if trial is not None and trial.since else ""

    def cleaned_in(self, address: str) -> str:
        """Seconds of the last stage that a device passed; "" if it passed none."""
        entry = device_stage.load_stage(self.ledger.device(address).stage)
        return "" if entry is None or entry.seconds is None else f"{entry.seconds:g}"

    def erasers(self) -> Erasers:
        """The roles whose cleaner proves that it erases storage."""
        return erasers.find_erasers(self.options.hpc)

    def spec(self) -> DeviceSpec:
        """The devices that the node offers by their roles, without a declaration."""
        wishes = Declaration(erasers=self.erasers())
        return device_spec.build_device_spec(self.node, self.table, wishes)

    def addresses(self) -> list[str]:
        """Addresses of all offered devices, and of all devices in the ledger."""
        spec = self.spec()
        addresses = {address for offer in spec.offers for address in offer.functions}
        addresses |= self.ledger.devices.keys()
        return sorted(addresses, key=address_key)

    def condition(self, address: str, ill: Mapping[str, str]) -> tuple[str, str]:
        """The state of a device as one word, and the reason."""
        function = self.node.function(address)
        parent = function.physical_function if function else None
        reason, server = self.ledger.why(address, parent), self.ledger.device(address).server
        if reason is not None:
            return "quarantined", reason
        device = self.ledger.device(address)
        entry = device_stage.load_stage(device.stage)
        if (
            entry is not None
            and entry.pending
            and device.state is DeviceState.OFFERED
            and server in (None, entry.holder)
        ):
            texts = (self.progress(address, entry), self.reported(address, entry.server))
            return "cleaning", "; ".join(filter(None, texts))
        faults = self.faults(address)
        if (server is not None and device.state is not DeviceState.SUSPECT) or (
            device.differs or faults
        ):
            report = self.reported(address, server or "")
            reasons = (faults, report, device.differs, ill.get(address, ""))
            return "in use", "; ".join(filter(None, reasons))
        if address in self.ledger.suspect:
            return "suspect", self.ledger.suspect[address]
        if address in ill:
            return "withheld", ill[address]
        told = self.ledger.providers.get(parent or address)
        if told is not None and told.operators >= told.total:
            return "withheld", reserve.BY_OPERATOR
        if self.options.hpc.clean_devices and device.proof is None:
            return ("withheld", "the ledger does not record it as clean: the next update cleans it")
        return "free", ""

    def progress(self, address: str, entry: DeviceStage) -> str:
        """A text about the progress of a device's stage, with its time limit."""
        words = device_stage.word_waiting_stage(entry)
        if entry.phase is not StagePhase.BEGUN:
            return words
        seconds = max(0.0, time.time() - entry.since)
        words += f", for {seconds:.0f} of at most {self.options.hpc.clean_timeout:g} s"
        folder = Path(f"{self.options.hpc.sysfs_root.rstrip('/')}{DEVICES}/{address}")
        percent = clean_nvme.read_erase_progress(folder)
        return words if percent is None else f"{words}; {percent} % are erased"

    def ill(self) -> dict[str, str]:
        """Address -> fault, for faulty devices; no device is touched."""
        addresses = self.addresses()
        offers = [OfferedFunction(address) for address in addresses]
        anyway = {word.strip().lower() for word in self.options.hpc.offer_anyway}
        of_role = {address: self.role(address) for address in addresses}
        # Only nova-compute reads the VPD of adapters, once a boot.
        cache = forbidden.answers_beside(self.file.path)
        answers = forbidden.load_answers(Path(self.options.hpc.sysfs_root), cache)
        resets = cleaner.OwnResets.from_options(self.options.hpc).judge(self.node, of_role)
        symptoms = {
            **forbidden.find_forbidden_devices(
                self.node, addresses, lambda key: answers.get(key, forbidden.UNREAD), anyway
            ),
            **health.judge_offered_functions(self.node, offers, signs=_SIGNS, own_resets=resets),
            **storage.find_unerased_storage(self.node, addresses, of_role, self.erasers()),
        }
        return {address: symptom.reason for address, symptom in symptoms.items()}

    def step(self) -> DeviceUpkeep:
        """The step of nova-compute that cleans and checks devices, for use by an operator.

        :raises cleaner.CleanerError: ``[hpc]cleaners`` cannot be used.
        """
        hpc = self.options.hpc
        root = Path(hpc.sysfs_root)
        tools = cleaner.CleanerTools(
            root=root,
            timeout=hpc.reset_timeout,
            reset=hygiene_reset.reset_call(root, hpc.reset_timeout, self.file.locks),
            need_reset=HealthSign.RESET.value in hpc.health_checks,
        )
        cleaners = cleaner.load_cleaners(hpc.cleaners, tools)
        records = HygieneRecords(root, self.file, rules=HealthRules.from_options(hpc))
        return DeviceUpkeep(records, cleaners, hpc.reset_timeout)

    def owners(self) -> DeviceOwners:
        """The sources for the owners of devices; the ledger's marks replace Nova's records.

        :raises CommandError: the ledger is new, so its marks are not complete.
        """
        if not self.ledger.compared:
            raise CommandError(
                f"the ledger {self.file.path} is new, or of another release: nova-compute has "
                "not compared it with Nova's records yet, so the devices that servers have are "
                "unknown; start nova-compute of this node and wait for its next periodic update"
            )
        return DeviceOwners(
            records=lambda: frozenset(self.file.known().marked),
            domains=libvirt_domains.guest_domain_reader(self.options),
            holders=functools.partial(
                holders.find_kernel_holders, Path(self.options.hpc.sysfs_root)
            ),
        )

    def candidate(self, address: str) -> DeviceCandidate:
        """The device at *address*, in the form that cleaning and checking use.

        :raises CommandError: there is none.
        """
        candidate = NodeView(self.node, {address: self.role(address)}).candidate(address)
        if candidate is None or candidate.function.is_bridge:
            raise CommandError(f"{address}: this node has no such device")
        return candidate


def format_ledger_time(moment: float) -> str:
    """A time in the ledger as text (ISO 8601, UTC)."""
    try:
        date_time = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return "?"
    return date_time.isoformat(timespec="seconds").replace("+00:00", "Z")


class _DeviceCommand(base.RecordCommand):
    """Base class of commands about the device at one address."""

    errors = ERRORS

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        # A bad one is refused like everything that is wrong with the device.
        parser.add_argument("address", metavar="ADDRESS", help="PCI address like 0000:41:00.0")
        source_options.add_config_options(parser)
        return parser


class ShowDevice(_DeviceCommand):
    """Show one device: its state, its baseline, and how it differs from that."""

    acts_with = ()
    for_people = False

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Names and values."""
        address = normalise_address(parsed_args.address)
        place = ManagedNode.read_existing(parsed_args.config, lost=True)
        candidate = place.candidate(address)
        function, step = candidate.function, place.step()
        state, reason = place.condition(address, place.ill())
        description = step.describe(address)
        differences, unknown = step.check(candidate)
        values = {
            "Address": address,
            "Role": place.role(address) or "",
            "State": state,
            "Reason": reason,
            "Server": description["Server"],
            "Faults": place.faults(address),
            "Planned": place.planned(address),
            "Reported": place.reported(address),
            "Driver": function.driver or "",
            "Reset methods": " ".join(function.reset_methods or ()),
            "Differences": "; ".join([*differences, *unknown]),
            "Baseline": _Baseline(json.loads(description["Baseline"] or "{}")),
            "Since": place.since(address),
            "Last server": description["Last server"],
            "Hardware": description["Hardware"],
            "Stage": description["Stage"],
        }
        return CommandAnswer(tuple(values), tuple(values.values()))


class _Baseline(FormattableColumn):
    """The baseline of a device: JSON for programs, one line for each kind of it for people."""

    def machine_readable(self) -> str:
        """The ledger's value as JSON; "" without one."""
        return json.dumps(self._value, sort_keys=True) if self._value else ""

    def human_readable(self) -> str:
        """The baseline as several short lines."""
        lines = []
        for kind, value in self._value.items():
            if isinstance(value, dict):
                value = ", ".join(f"{name} {value}" for name, value in value.items())
            elif isinstance(value, list):
                value = ", ".join(str(entry) for entry in value)
            lines.append(f"{kind}: {value}")
        return "\n".join(lines)


class CheckDevice(_DeviceCommand):
    """Compare one device with its baseline; nothing is reset or changed.

    Exit status 1 when it differs, 2 when it is not compared. With --accept the device
    is recorded as it is now, e.g. after a card was replaced; a server must not have it.
    """

    acts_with = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--accept", action="store_true", help="take the present state as the baseline"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Print the differences."""
        address = normalise_address(parsed_args.address)
        place = ManagedNode.read_existing(parsed_args.config)
        candidate = place.candidate(address)
        if parsed_args.accept:
            return self._answer(address, place.step().accept(candidate, place.owners()))
        ill = place.ill()
        differences = [ill[address]] if address in ill else []
        differing, unknown = place.step().check(candidate)
        differences += differing
        if differences:
            return self._answer(address, "differs", [*differences, *unknown], _FAILED)
        if unknown:
            raise CommandError(f"{address}: {unknown[0]}")
        return self._answer(address, "as in its baseline")

    def _answer(
        self, address: str, result: str, differences: Sequence[str] = (), status: int = 0
    ) -> CommandAnswer:
        for text in differences or [result]:
            self.say(f"{address}: {text}")
        return CommandAnswer(
            ("Address", "Result", "Differences"), (address, result, "; ".join(differences)), status
        )


class QuarantineDevice(_DeviceCommand):
    """Take one device out of service; a server that has it keeps it.

    nova-compute hears of it at its next periodic update, and before the next
    server starts.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for colleagues")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Write it down."""
        address = normalise_address(parsed_args.address)
        reason = " ".join(parsed_args.reason.split())
        if not reason:
            raise CommandError("--reason: give a reason")
        place = ManagedNode.read(parsed_args.config)
        place.candidate(address)
        place.file.quarantine({address: reason})
        self.say(f"{address}: in quarantine")
        return CommandAnswer(_STATE, (address, "quarantined", reason))
