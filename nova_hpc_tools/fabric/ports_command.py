# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric ports``: the inventory from which Neutron's driver reads a device's GUID."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from nova_hpc.fabric.partitions.keys import format_guid, parse_guid
from nova_hpc.fabric.partitions.port_inventory import (
    PhysicalPort,
    PortInventoryError,
    parse_inventory,
    render_inventory,
)
from nova_hpc.topology import sysfs
from nova_hpc.topology.files import describe_file_error
from nova_hpc.topology.model import InventoryError, Node, PciFunction
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.site import include_files

#: Exit status if a port of this machine could not be listed.
_INCOMPLETE: Final = 1
#: Class of an InfiniBand controller (PCI Code and ID Assignment Specification).
_INFINIBAND: Final = "0207"


class ListFabricPorts(ListCommand):
    """Write the inventory of InfiniBand ports that Neutron's driver reads.

    Without --merge it lists the ports of this machine: of each physical function its port GUID
    and its virtual functions, as sysfs has them while the kernel's own driver has the function
    (not vfio-pci). With --merge it puts the files of several hosts together: one file for
    [hpc_partitions]port_inventory. Two hosts with one GUID, and one device twice, are refused.
    The exit status is 0, 1 when a port of this machine has no GUID that can be read (it is
    named, and left out), 2 when nothing can be written.
    """

    acts_with = ("output",)
    errors = (InventoryError, PortInventoryError, include_files.IncludeError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source = parser.add_mutually_exclusive_group()
        source.add_argument(
            "--root",
            type=Path,
            default=Path("/"),
            metavar="DIR",
            help="directory that holds sys and proc of the host (default: /)",
        )
        source.add_argument(
            "--merge",
            type=Path,
            nargs="+",
            metavar="FILE",
            help="put these files together, each of which this command has written",
        )
        parser.add_argument(
            "--host",
            metavar="NAME",
            help="the host as Nova and Neutron call it: [DEFAULT]host of its nova-compute "
            "(default: its hostname)",
        )
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="where to (default: standard output)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Read the InfiniBand ports of this host, or merge files of ports, write the inventory."""
        args = parsed_args
        problems: list[str] = []
        if args.merge:
            if args.host:
                raise CommandError("--host is for one host; each of --merge has its own")
            ports = merge_ports(port for path in args.merge for port in _read_ports_file(path))
        else:
            node = _read_node(args.root)
            host = args.host or node.hostname
            if not host:
                raise CommandError("the host has no name that can be read: give --host")
            ports = merge_ports(list_node_ports(node, host, problems))
        for problem in problems:
            print(f"Left out: {printable_text(problem)}", file=sys.stderr)
        text = render_inventory(ports)
        if args.output is not None:
            old = include_files.read_plain_file(args.output)
            if old != text:
                include_files.write_file_changes([include_files.FileChange(args.output, old, text)])
        return CommandAnswer(
            columns=("Host", "Address", "GUID", "Functions"),
            rows=[
                (port.host, port.address, format_guid(port.guid), " ".join(port.functions))
                for port in ports
            ],
            status=_INCOMPLETE if problems else 0,
            show=lambda: self._show(text, ports, args.output),
        )

    def _show(self, text: str, ports: Sequence[PhysicalPort], output: Path | None) -> None:
        if output is None:
            sys.stdout.write(text)
        else:
            self.say(f"{len(ports)} ports of {len({port.host for port in ports})} host(s).")


def list_node_ports(node: Node, host: str, problems: list[str]) -> Iterator[PhysicalPort]:
    """List the InfiniBand ports of a node. *problems* gets a text for each port that is left
    out.
    """
    for function in node.functions:
        if function.physical_function is not None:
            continue
        ports = [
            port
            for device in function.rdma
            for port in device.ports
            if port.link_layer == "InfiniBand"
        ]
        is_adapter = (function.class_code or "").startswith(_INFINIBAND)
        if not ports and not (is_adapter and not _is_other_layer(function)):
            continue
        reason = function.unknown or _explain_missing_guid(function, len(ports))
        guids = [port.guid for port in ports if port.guid is not None]
        if reason is not None or len(guids) != 1:
            problems.append(f"{function.address}: {reason or 'its port has no GUID'}")
            continue
        functions = tuple(function.virtual_functions)
        yield PhysicalPort(host, function.address, parse_guid(guids[0]), functions)


def _is_other_layer(function: PciFunction) -> bool:
    """Whether all ports of an adapter are switched to Ethernet."""
    layers = {port.link_layer for device in function.rdma for port in device.ports}
    return bool(layers) and layers == {"Ethernet"}


def _explain_missing_guid(function: PciFunction, ports: int) -> str | None:
    if ports == 1:
        return None
    if ports > 1:
        return f"it has {ports} ports on one function, and one address cannot name one of them"
    if function.driver == "vfio-pci":
        return "vfio-pci has it, so its GUID cannot be read: list it before it is given to guests"
    return "no InfiniBand port of it is in sysfs: is its driver loaded?"


def merge_ports(ports: Iterable[PhysicalPort]) -> tuple[PhysicalPort, ...]:
    """Merge the InfiniBand ports of several hosts, sorted, each once.

    :raises PortInventoryError: two ports have the same GUID, or the same function.
    """
    return parse_inventory(render_inventory(dict.fromkeys(ports))).ports


def _read_ports_file(path: Path) -> tuple[PhysicalPort, ...]:
    """Read the ports in a file that this command has written.

    :raises CommandError: the file cannot be read.
    """
    try:
        return parse_inventory(path.read_text(encoding="utf-8")).ports
    except OSError as error:
        raise CommandError(f"{path}: {describe_file_error(error)}") from error
    except ValueError as error:
        raise CommandError(f"{path}: {printable_text(str(error))}") from error


def _read_node(root: Path) -> Node:
    if not root.is_dir():
        raise CommandError(f"--root {root}: no such directory")
    return sysfs.read_sysfs_node(root)
