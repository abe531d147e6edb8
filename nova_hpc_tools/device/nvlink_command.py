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
from nova_hpc.tenancy.nvlink import nvlink_sets as sets
from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.backend import BackendError
from nova_hpc.tenancy.nvlink.partitions import FabricError
from nova_hpc.tenancy.nvlink.step import Links
from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.model import address_key
from nova_hpc_tools import base
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.base import Answer

#: Options that are used here.
_NEEDED: Final = ("nvlink_gpus", "nvlink_timeout", "ledger_file", "nvlink_set")

_DIFFERENT: Final = 1


class _List(base.List):
    """About the partitions of this node."""

    errors = (
        *(BackendError, FabricError, LedgerError),
        *(node_config.ConfigError, sets.NvlinkError, roles.RoleError),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        node_config.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Find the manager of the fabric, and do what the command is for."""
        self.options = node_config.read(parsed_args.config, _NEEDED).hpc
        links = Links.from_options(self.options, LedgerFile.from_options(self.options))
        if links is None:
            raise BackendError("[hpc]nvlink_backend is none: this node has no partitions")
        self.links = links
        return self.act()

    def act(self) -> Answer:
        """What the command is for."""
        raise NotImplementedError


class List(_List):
    """List the partitions, which of them are active, and whose they are.

    Only asks: a manager of the fabric that was restarted is told nothing.
    """

    acts_with = ()
    for_people = False

    def act(self) -> Answer:
        """Columns and rows."""
        state = self.links.state()
        if state.lost is not None:
            print(f"Problem: {state.lost}", file=sys.stderr)
        partitions = self.links.backend.partitions()
        rows = (
            (
                one.id,
                " ".join(_sorted(one.gpus)),
                one.links,
                one.active,
                state.tenancies[one.id].server if one.id in state.tenancies else "",
            )
            for one in partitions
        )
        columns = ("Partition", "GPUs", "NVLinks", "Active", "Server")
        return Answer(columns, rows, nothing="The manager of the fabric has no partition.")


class Check(_List):
    """Compare the partitions with the NVLink sets of this node.

    Prints what is to be written into the configuration. Exit status 1 when
    they differ: servers that get a set that is no partition are refused.
    """

    acts_with = ()

    def act(self) -> Answer:
        """Print the differences."""
        node = sysfs.read(Path(self.options.sysfs_root))
        table = roles.strict(self.options.device_role)
        given = sets.strict(self.options.nvlink_set) or sets.default(node, table)
        names = {one.devices: one.name for one in given}
        partitions = self.links.backend.partitions()
        missing, wrong = nvlink.differences(partitions, names)
        for one in wrong:
            self.say(f"NVLink set {names[one]!r} is no partition: remove it from [hpc]nvlink_set")
        rows = [(names[one], " ".join(_sorted(one)), "remove") for one in wrong]
        ids = {one.gpus: one.id for one in partitions}
        for one in missing:
            entry = {"name": f"partition-{ids[one]}", "devices": _sorted(one)}
            self.say(f"nvlink_set = {json.dumps(entry)}")
            rows.append((f"partition-{ids[one]}", " ".join(_sorted(one)), "add"))
        if not rows:
            self.say("The NVLink sets of this node are the partitions.")
        return Answer(("Set", "Devices", "Change"), rows, _DIFFERENT if rows else 0)


class Restore(_List):
    """Tell a manager of the fabric that was restarted which partitions servers have.

    nova-compute does the same at its next periodic update and before the next
    server starts; NVIDIA's Fabric Manager waits for 60 seconds only.
    """

    def act(self) -> Answer:
        """Send the list."""
        found = self.links.restore()
        self.say(f"Active partitions: {', '.join(map(str, found)) or 'none'}")
        return Answer(("Partition",), [(each,) for each in found])


def _sorted(gpus: Iterable[str]) -> list[str]:
    return sorted(gpus, key=address_key)
