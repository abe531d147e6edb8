"""``nova-hpc nvlink``: the partitions of this node's NVLink fabric."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from cliff.command import Command
from cliff.lister import Lister

from nova_hpc.cli import node_config
from nova_hpc.offer import nvlink_sets as sets
from nova_hpc.offer import roles
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.backend import BackendError
from nova_hpc.tenancy.nvlink.partitions import FabricError
from nova_hpc.tenancy.nvlink.step import Links
from nova_hpc.topology import sysfs
from nova_hpc.topology.model import address_key

#: Options that are used here.
_NEEDED: Final = ("nvlink_gpus", "nvlink_timeout", "ledger_file", "nvlink_set")

_DIFFERENT: Final = 1
#: Exit status of bad input; argparse uses the same for bad options.
_BAD_INPUT: Final = 2


class _Tidy(Command):
    """Ends with one line when something is wrong."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        node_config.add_options(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; 0, 1 when something differs, 2 when it cannot be done."""
        try:
            self.options = node_config.read(parsed_args.config, _NEEDED).hpc
            links = Links.from_options(self.options)
            if links is None:
                raise BackendError("[hpc]nvlink_backend is none: this node has no partitions")
            self.links = links
            return int(super().run(parsed_args) or 0)
        except (
            *(BackendError, FabricError, LedgerError),
            *(node_config.ConfigError, sets.NvlinkError, roles.RoleError),
        ) as error:
            print(f"nova-hpc {self.cmd_name}: {error}", file=sys.stderr)
            return _BAD_INPUT


class List(_Tidy, Lister):
    """List the partitions, which of them are active, and whose they are.

    Only asks: a manager of the fabric that was restarted is told nothing.
    """

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
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
        return ("Partition", "GPUs", "NVLinks", "Active", "Server"), rows


class Check(_Tidy):
    """Compare the partitions with the NVLink sets of this node.

    Prints what is to be written into the configuration. Exit status 1 when
    they differ: servers that get a set that is no partition are refused.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the differences."""
        node = sysfs.read(Path(self.options.sysfs_root))
        table = roles.strict(self.options.device_role)
        given = sets.strict(self.options.nvlink_set) or sets.default(node, table)
        names = {one.devices: one.name for one in given}
        partitions = self.links.backend.partitions()
        missing, wrong = nvlink.differences(partitions, names)
        for one in wrong:
            print(f"NVLink set {names[one]!r} is no partition: remove it from [hpc]nvlink_set")
        ids = {one.gpus: one.id for one in partitions}
        for one in missing:
            entry = {"name": f"partition-{ids[one]}", "devices": _sorted(one)}
            print(f"nvlink_set = {json.dumps(entry)}")
        if missing or wrong:
            return _DIFFERENT
        print("The NVLink sets of this node are the partitions.")
        return 0


class Restore(_Tidy):
    """Tell a manager of the fabric that was restarted which partitions servers have.

    nova-compute does the same at its next periodic update and before the next
    server starts; NVIDIA's Fabric Manager waits for 60 seconds only.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Send the list."""
        found = self.links.restore()
        print(f"Active partitions: {', '.join(map(str, found)) or 'none'}")
        return 0


def _sorted(gpus: Iterable[str]) -> list[str]:
    return sorted(gpus, key=address_key)
