# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device reserved``: what is reserved in Placement for this node's devices.

It reads the ledger alone, so it works where nova-compute does not run, and after the
driver was switched back to Nova's own: whatever this project has left reserved is found
and named, with the command that lifts it.
"""

from __future__ import annotations

import argparse
from typing import Final

from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.topology.model import address_key
from nova_hpc.wire.reservation import Provider
from nova_hpc_tools import base
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.base import Answer

_COLUMNS: Final = ("Address", "Provider", "Class", "Total", "Withheld", "Operator", "Lift")


class Reserved(base.List):
    """List what this node has reserved in Placement, with the command that lifts it.

    nova-compute lifts by itself what it has reserved, when a device is well again and when
    [pci]device_spec has no hpc_* tags any more. These commands are for a node whose
    nova-compute does not run this project's driver any more.
    """

    acts_with = ()
    errors = (LedgerError, node_config.ConfigError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        node_config.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Read the ledger."""
        options = node_config.read(parsed_args.config, ("ledger_file",))
        ledger = LedgerFile.from_options(options.hpc).known()
        found = sorted(ledger.providers.items(), key=lambda item: address_key(item[0]))
        rows = [_row(address, one) for address, one in found]
        return Answer(_COLUMNS, rows, show=lambda: self._show(rows))

    def _show(self, rows: list[tuple[object, ...]]) -> None:
        for address, _, _, total, ours, operators, lift in rows:
            self.say(f"{address}: of {total}, {ours} withheld, {operators} by an operator")
            if lift:
                self.say(f"  {lift}")
        if not rows:
            self.say("Nothing is reserved in Placement.")


def _row(address: str, one: Provider) -> tuple[object, ...]:
    lift = ""
    if one.reserved > one.operators or one.earlier is not None:
        left = min(one.operators, one.total)
        lift = (
            "openstack resource provider inventory set --amend --resource "
            f"{one.resource_class}:reserved={left} {one.uuid}"
        )
    return address, one.uuid, one.resource_class, one.total, one.ours, one.operators, lift
