"""The node as ``nova-hpc device`` sees it: its devices, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.cli import node_config
from nova_hpc.offer import device_spec, roles
from nova_hpc.tenancy import health
from nova_hpc.tenancy.health import Kind, Offer
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.step import Hygiene
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.step import Candidate, Step, View
from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node, address_key
from nova_hpc.wire.ledger import Ledger

#: Options that are used here.
_NEEDED: Final = ("ledger_file", "reset_timeout", "cleaners", "sysfs_root")

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
    file: LedgerFile
    ledger: Ledger

    @classmethod
    def read(cls, config: Sequence[str]) -> Place:
        """Read the configuration, the node and its files.

        :raises DeviceError: the configuration cannot be used.
        """
        try:
            options = node_config.read(config, _NEEDED)
        except node_config.ConfigError as error:
            raise DeviceError(str(error)) from error
        try:
            table = roles.strict(options.hpc.device_role)
        except roles.RoleError as error:
            raise DeviceError(f"[hpc]device_role cannot be used: {error}") from error
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

        :raises DeviceError: ``[hpc]cleaners`` cannot be used.
        """
        hpc = self.options.hpc
        root = Path(hpc.sysfs_root)
        tools = cleaner.Tools(
            root=root,
            timeout=hpc.reset_timeout,
            reset=lambda each: hygiene_reset.reset(root, each, hpc.reset_timeout, self.file.locks),
            need_reset=Kind.RESET.value in hpc.health_checks,
        )
        try:
            cleaners = cleaner.load(hpc.cleaners, tools)
        except cleaner.CleanerError as error:
            raise DeviceError(str(error)) from error
        return Hygiene(root, self.file, cleaners, hpc.reset_timeout)

    def candidate(self, address: str) -> Candidate:
        """The device at *address*.

        :raises DeviceError: there is none.
        """
        found = View(self.node, {address: self.role(address)}).candidate(address)
        if found is None or found.function.is_bridge:
            raise DeviceError(f"{address}: this node has no such device")
        return found
