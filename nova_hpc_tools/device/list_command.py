# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device list``: the devices of this node, or one of the other lists about them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from nova_hpc.tenancy.ledger import expect_whole
from nova_hpc.wire.ledger import Ledger
from nova_hpc_tools import base
from nova_hpc_tools.base import CommandAnswer
from nova_hpc_tools.device import reservations
from nova_hpc_tools.device.command import ERRORS, ManagedNode, format_ledger_time
from nova_hpc_tools.doctor import nvlink_partitions
from nova_hpc_tools.site import source_options
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot.cloud_readers import read_health


class ListDevices(base.ListCommand):
    """List the devices of this node: free, in use, withheld, suspect or quarantined.

    With --absent, the hardware that was in this node and is missing now, with its last
    record. With --nvlink, the partitions of the NVLink fabric, and the server of each. With
    --reserved, the reservations of this node in Placement, with the commands that lift
    them. With --all-nodes, the devices that each node of the cloud withholds. Run that on a
    host of Nova's scheduler, because it reads the cloud as nova-hpc explain does.
    """

    acts_with = ()
    errors = (*ERRORS, *nvlink_partitions.ERRORS, SnapshotError)
    for_people = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--absent", action="store_true", help="hardware that is not in this node any more"
        )
        which.add_argument(
            "--nvlink",
            action="store_true",
            help="NVLink partitions: which are active, and which server has each",
        )
        which.add_argument(
            "--reserved",
            action="store_true",
            help="list the reservations in Placement, with the commands that lift them. Use it "
            "on a node whose nova-compute runs another driver",
        )
        which.add_argument(
            "--all-nodes", action="store_true", help="list the withheld devices of all nodes"
        )
        source_options.add_config_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Columns and rows."""
        if parsed_args.all_nodes:
            return _list_withheld_of_cloud(parsed_args.config)
        if parsed_args.nvlink:
            return nvlink_partitions.list_partitions(parsed_args.config)
        if parsed_args.reserved:
            return reservations.list_reserved(parsed_args.config)
        place = ManagedNode.read_existing(parsed_args.config, lost=not parsed_args.absent)
        if parsed_args.absent:
            return _list_absent_hardware(place.ledger)
        ill = place.ill()
        rows = (
            (
                address,
                place.role(address) or "",
                *place.condition(address, ill),
                place.ledger.device(address).server or "",
                place.since(address),
                place.cleaned_in(address),
                place.planned(address),
            )
            for address in place.addresses()
        )
        columns = (
            *("Address", "Role", "State", "Reason", "Server", "Since", "Cleaned in s"),
            "Planned",
        )
        nothing = "; ".join(place.node.problems) or "This node offers no device."
        if not place.options.pci.device_spec:
            nothing = (
                "This machine is not set up: [pci]device_spec of its nova-compute names no device. "
                "nova-hpc configure sets it up."
            )
        return CommandAnswer(columns, rows, nothing=nothing)


def _list_absent_hardware(ledger: Ledger) -> CommandAnswer:
    rows = [
        (
            hardware,
            device.state.value,
            device.reason,
            device.server or device.last_server or "",
            f"{device.cleaned} clean, {device.failed} not",
        )
        for hardware, device in sorted(ledger.absent.items())
    ]
    if not rows:
        expect_whole(ledger)
    columns = ("Hardware", "State", "Reason", "Server", "Cleaned")
    return CommandAnswer(columns, rows, nothing="No hardware of this node is missing.")


def _list_withheld_of_cloud(config: Sequence[str]) -> CommandAnswer:
    rows = []
    for node in read_health(config):
        for kind, reasons in (("", node.withheld), ("in use", node.in_use)):
            for address, reason in reasons.items():
                state, since = node.states.get(address, ("withheld", 0.0))
                rows.append(
                    (
                        node.host,
                        address,
                        kind or state,
                        reason,
                        format_ledger_time(since) if since else "",
                    )
                )
        rows += [(node.host, "", "note", note, "") for note in node.remarks]
    columns = ("Host", "Address", "State", "Reason", "Since")
    return CommandAnswer(columns, rows, nothing="No node withholds a device.")
