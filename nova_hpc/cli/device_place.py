"""The node as ``nova-hpc device`` sees it: its devices, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.cli import node_config
from nova_hpc.offer import device_spec, roles
from nova_hpc.tenancy import health, locked_file, quarantine
from nova_hpc.tenancy.health import Kind, Offer
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import operator as hygiene_operator
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene import state as hygiene_state
from nova_hpc.tenancy.hygiene.bench import Bench, Candidate
from nova_hpc.tenancy.hygiene.state import State
from nova_hpc.tenancy.quarantine import Quarantine
from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node, address_key

#: Options that are used here.
_NEEDED: Final = ("hygiene_file", "quarantine_file", "reset_timeout", "cleaners", "sysfs_root")

#: How libvirt may bind a device only nova-compute's device_spec says.
_KINDS: Final = health.ALL - {Kind.QUARANTINE, Kind.DRIVER, Kind.UNIT}


class DeviceError(Exception):
    """What was asked for cannot be done; the text is for the operator."""


@attrs.frozen
class Place:
    """The node, as its nova-compute knows it."""

    options: Any
    node: Node
    table: roles.Roles
    held: Quarantine
    state: State

    @classmethod
    def read(cls, files: Sequence[Path] | None) -> Place:
        """Read the configuration, the node and its files.

        :raises DeviceError: the configuration cannot be used.
        """
        try:
            options = node_config.read(files, _NEEDED)
        except node_config.ConfigError as error:
            raise DeviceError(str(error)) from error
        try:
            table = roles.strict(options.hpc.device_role)
        except roles.RoleError as error:
            raise DeviceError(f"[hpc]device_role cannot be used: {error}") from error
        state_file = Path(options.hpc.hygiene_file)
        busy = hygiene_reset.busy(locked_file.locks_of(state_file))
        return cls(
            options=options,
            node=sysfs.read(Path(options.hpc.sysfs_root), busy),
            table=table,
            held=quarantine.read(Path(options.hpc.quarantine_file)),
            state=hygiene_state.read(state_file),
        )

    def role(self, address: str) -> str | None:
        """The role of the device at *address*."""
        function = self.node.function(address)
        return None if function is None else self.table.role_of(function)

    def addresses(self) -> list[str]:
        """Everything that is offered, or that somebody has put into a file."""
        spec = device_spec.build(self.node, self.table)
        found = {each for offer in spec.offers for each in offer.functions}
        found |= self.held.reasons.keys() | self.state.records.keys()
        return sorted(found, key=address_key)

    def condition(self, address: str, ill: Mapping[str, str]) -> tuple[str, str]:
        """One word for the state of a device, and the reason."""
        function = self.node.function(address)
        parent = function.physical_function if function else None
        why, server = self.held.why(address, parent), self.state.record(address).server
        if why is not None:
            return "quarantined", why
        if self.state.lost:
            return "withheld", self.state.problems[0]
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

    def bench(self) -> Bench:
        """What cleans and checks devices.

        :raises DeviceError: ``[hpc]cleaners`` cannot be used.
        """
        hpc = self.options.hpc
        root, state_file = Path(hpc.sysfs_root), Path(hpc.hygiene_file)
        locks = locked_file.locks_of(state_file)
        tools = cleaner.Tools(
            root=root,
            timeout=hpc.reset_timeout,
            reset=lambda each: hygiene_reset.reset(root, each, hpc.reset_timeout, locks),
            need_reset=Kind.RESET.value in hpc.health_checks,
        )
        try:
            cleaners = cleaner.load(hpc.cleaners, tools)
        except cleaner.CleanerError as error:
            raise DeviceError(str(error)) from error
        return Bench(
            root=root,
            state_file=state_file,
            quarantine_file=Path(hpc.quarantine_file),
            cleaners=cleaners,
            timeout=hpc.reset_timeout,
        )

    def candidate(self, address: str) -> Candidate:
        """The device at *address*.

        :raises DeviceError: there is none.
        """
        found = Candidate.of(self.node, address, self.role(address))
        if found is None or found.function.is_bridge:
            raise DeviceError(f"{address}: this node has no such device")
        return found

    def differences(self, candidate: Candidate) -> list[str]:
        """How a device differs from its baseline; nothing of one that a server has."""
        if self.state.lost:
            return [self.state.problems[0]]
        if self.state.record(candidate.function.address).server is not None:
            return []  # a server may do with it what it likes
        return [each.text for each in hygiene_operator.check(self.bench(), candidate)]
