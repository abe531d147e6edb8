# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc nvlink``: the partitions of this node's NVLink fabric."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.backend import BackendError
from nova_hpc.tenancy.nvlink.partitions import NvlinkFabricError
from nova_hpc.tenancy.nvlink.step import NvlinkStep
from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.model import address_key
from nova_hpc_tools import base
from nova_hpc_tools.adopt import nvlink_sets as sets
from nova_hpc_tools.adopt import service_settings, source_options
from nova_hpc_tools.base import CommandAnswer

#: Options that are used here.
_NEEDED: Final = ("nvlink_gpus", "nvlink_timeout", "ledger_file", "nvlink_set")

_DIFFERENT: Final = 1


class _PartitionCommand(base.ListCommand):
    """About the partitions of this node."""

    errors = (
        *(BackendError, NvlinkFabricError, LedgerError),
        *(service_settings.ConfigError, sets.NvlinkError, roles.RoleError),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_config_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Find the manager of the fabric, and run the command."""
        self.options = service_settings.read_node_options(parsed_args.config, _NEEDED).hpc
        links = NvlinkStep.from_options(self.options, LedgerFile.from_options(self.options))
        if links is None:
            raise BackendError("[hpc]nvlink_backend is none: this node has no partitions")
        self.links = links
        return self.act()

    def act(self) -> CommandAnswer:
        """Run the command."""
        raise NotImplementedError

    def expect_ledger(self) -> None:
        """Print the path of the ledger that contains the servers' partitions.

        :raises LedgerError: the ledger does not exist.
        """
        file = LedgerFile.from_options(self.options)
        file.existing()
        print(f"Ledger: {file.path}", file=sys.stderr)


class ListPartitions(_PartitionCommand):
    """List the partitions, which of them are active, and whose they are.

    Only asks: a manager of the fabric that was restarted is told nothing.
    """

    acts_with = ()
    for_people = False

    def act(self) -> CommandAnswer:
        """Columns and rows."""
        self.expect_ledger()
        state = self.links.state()
        if state.lost is not None:
            print(f"Problem: {state.lost}", file=sys.stderr)
        partitions = self.links.backend.partitions()
        rows = (
            (
                partition.id,
                " ".join(_sort_gpu_addresses(partition.gpus)),
                partition.links,
                partition.active,
                state.tenancies[partition.id].server if partition.id in state.tenancies else "",
            )
            for partition in partitions
        )
        columns = ("Partition", "GPUs", "NVLinks", "Active", "Server")
        return CommandAnswer(columns, rows, nothing="The manager of the fabric has no partition.")


class CheckPartitions(_PartitionCommand):
    """Compare the partitions with the NVLink sets of this node.

    Prints what is to be written into the configuration. Exit status 1 when
    they differ: servers that get a set that is no partition are refused.
    """

    acts_with = ()

    def act(self) -> CommandAnswer:
        """Print the differences."""
        node = sysfs.read_sysfs_node(Path(self.options.sysfs_root))
        table = roles.parse_roles(self.options.device_role)
        given = sets.parse_nvlink_sets(self.options.nvlink_set) or sets.default_nvlink_sets(
            node, table
        )
        names = {nvlink_set.devices: nvlink_set.name for nvlink_set in given}
        partitions = self.links.backend.partitions()
        missing, wrong = nvlink.compare_with_nvlink_sets(partitions, names)
        for devices in wrong:
            self.say(
                f"NVLink set {names[devices]!r} is no partition: remove it from [hpc]nvlink_set"
            )
        rows = [
            (names[devices], " ".join(_sort_gpu_addresses(devices)), "remove") for devices in wrong
        ]
        ids = {partition.gpus: partition.id for partition in partitions}
        for devices in missing:
            entry = {"name": f"partition-{ids[devices]}", "devices": _sort_gpu_addresses(devices)}
            self.say(f"nvlink_set = {json.dumps(entry)}")
            rows.append(
                (f"partition-{ids[devices]}", " ".join(_sort_gpu_addresses(devices)), "add")
            )
        if not rows:
            self.say("The NVLink sets of this node are the partitions.")
        return CommandAnswer(("Set", "Devices", "Change"), rows, _DIFFERENT if rows else 0)


class RestorePartitions(_PartitionCommand):
    """Tell a manager of the fabric that was restarted which partitions servers have.

    nova-compute does the same at its next periodic update and before the next
    server starts; NVIDIA's Fabric Manager waits for 60 seconds only.
    """

    def act(self) -> CommandAnswer:
        """Send the list; without a ledger it would end the partitions of all servers."""
        self.expect_ledger()
        active_ids = self.links.restore()
        self.say(f"Active partitions: {', '.join(map(str, active_ids)) or 'none'}")
        return CommandAnswer(("Partition",), [(partition_id,) for partition_id in active_ids])


def _sort_gpu_addresses(gpus: Iterable[str]) -> list[str]:
    return sorted(gpus, key=address_key)
