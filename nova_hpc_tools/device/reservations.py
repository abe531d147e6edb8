# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device reserved``: reservations in Placement for this node's devices.

It reads only the ledger, so it works if nova-compute does not run, and after the driver was
switched back to Nova's own. It lists every reservation that this project has left, with the
command that lifts it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from nova_hpc.tenancy.ledger import LedgerError, LedgerFile, expect_whole
from nova_hpc.topology.model import address_key
from nova_hpc.wire.reservation import ReservedProvider
from nova_hpc_tools import base
from nova_hpc_tools.adopt import service_settings, source_options
from nova_hpc_tools.base import CommandAnswer

_COLUMNS: Final = ("Address", "Provider", "Class", "Total", "Withheld", "Operator", "Lift")


class ListReserved(base.ListCommand):
    """List what this node has reserved in Placement, with the command that lifts it.

    nova-compute lifts by itself what it has reserved, when a device is well again and when
    [pci]device_spec has no hpc_* tags any more. These commands are for a node whose
    nova-compute does not run this project's driver any more.
    """

    acts_with = ()
    errors = (LedgerError, service_settings.ConfigError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_config_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Read the ledger."""
        options = service_settings.read_node_options(parsed_args.config, ("ledger_file",))
        file = LedgerFile.from_options(options.hpc)
        ledger = file.existing()
        providers = sorted(ledger.providers.items(), key=lambda item: address_key(item[0]))
        rows = [_format_reservation_row(address, provider) for address, provider in providers]
        print(f"Ledger: {file.path}", file=sys.stderr)
        for problem in ledger.problems:
            print(f"Problem: {problem}", file=sys.stderr)
        if not rows:
            expect_whole(ledger)
        return CommandAnswer(_COLUMNS, rows, show=lambda: self._show(rows))

    def _show(self, rows: list[tuple[object, ...]]) -> None:
        for address, _, _, total, ours, operators, lift in rows:
            self.say(f"{address}: of {total}, {ours} withheld, {operators} by an operator")
            if lift:
                self.say(f"  {lift}")
        if not rows:
            self.say("Nothing is reserved in Placement.")


def _format_reservation_row(address: str, provider: ReservedProvider) -> tuple[object, ...]:
    lift = ""
    if provider.reserved > provider.operators or provider.earlier is not None:
        left = min(provider.operators, provider.total)
        lift = (
            "openstack resource provider inventory set --amend --resource "
            f"{provider.resource_class}:reserved={left} {provider.uuid}"
        )
    return (
        address,
        provider.uuid,
        provider.resource_class,
        provider.total,
        provider.ours,
        provider.operators,
        lift,
    )
