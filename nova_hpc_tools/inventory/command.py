# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc inventory``: what a node has and where it sits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.highlighter import RegexHighlighter
from rich.theme import Theme

from nova_hpc.topology import lstopo, nccl, sysfs
from nova_hpc.topology.files import Tree, show
from nova_hpc.topology.model import Function, InventoryError, Node
from nova_hpc.topology.peer_wish import Wish
from nova_hpc.wire import inventory
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.base import Answer, List
from nova_hpc_tools.inventory import node_archive as save_node
from nova_hpc_tools.inventory import peer_text, text
from nova_hpc_tools.printing import InertConsole

_THEME: Final = Theme(
    {
        "node.numa": "bold",
        "node.root": "bold cyan",
        "node.address": "cyan",
        "node.bad": "bold red",
        "node.mark": "yellow",
        "node.guide": "dim",
    }
)


class _Colours(RegexHighlighter):
    base_style = "node."
    highlights = [
        r"(?P<guide>^[│├└─ ]+)",
        r"(?P<numa>NUMA node \d+)",
        r"(?P<root>\bpci[0-9a-f]+:[0-9a-f]{2})",
        r"(?P<address>\b[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])",
        r"(?P<bad>UNKNOWN: .*|^problem: .*)",
        r"(?P<mark>(?<=[0-9a-z])[*!~](?= ·|$)|^[*!~])",
    ]


class Inventory(List):
    """Show what a node has: NUMA nodes, PCIe trees, devices, IOMMU groups.

    Reads this machine, the captured sys and proc of another one, or the XML
    of lstopo, and needs no privileges; root sees more (ACS, link registers).
    JSON and YAML say all that is known, with a version; lists name the devices.
    """

    acts_with = ("save",)
    errors = (InventoryError,)
    old_formats = {each: f"--show {each}" for each in ("tree", "device-spec", "nccl")}

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source = parser.add_mutually_exclusive_group()
        source.add_argument(
            "--root",
            type=Path,
            default=Path("/"),
            metavar="DIR",
            help="directory that holds sys and proc of the node (default: /)",
        )
        source.add_argument("--xml", type=Path, metavar="FILE", help="XML that lstopo wrote")
        source.add_argument(
            "--from", dest="archive", type=Path, metavar="FILE", help="archive that --save wrote"
        )
        parser.add_argument(
            "--save",
            type=Path,
            metavar="FILE.tar.xz",
            help="write what is read of the node into an archive, for a report of a bug, and "
            "print nothing else; serial numbers, MACs, GUIDs and the host's name are replaced",
        )
        parser.add_argument(
            "--keep-names", action="store_true", help="--save: keep the name of the host"
        )
        parser.add_argument(
            "--keep-serials",
            action="store_true",
            help="--save: keep the serial numbers of PCI functions, by which a declaration knows "
            "a device wherever it is plugged in (nova-hpc configure --root)",
        )
        parser.add_argument(
            "--show",
            choices=("tree", "device-spec", "nccl"),
            default="tree",
            help="without -f: a tree, the entries of [pci]device_spec, or a topology file of NCCL "
            "(default: tree)",
        )
        parser.add_argument(
            "--all",
            action="store_true",
            help="tree: also draw chipset functions, ports of switches and virtual functions",
        )
        node_config.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Read the node, or save it."""
        if parsed_args.save is not None:
            if parsed_args.xml is not None or parsed_args.archive is not None:
                raise InventoryError("--save reads sysfs; give --root, not --xml or --from")
            keep = parsed_args.keep_names, parsed_args.keep_serials
            self.say(save_node.save(parsed_args.root, parsed_args.save, *keep))
            return Answer(("File",), [(str(parsed_args.save),)])
        node = _read(parsed_args)
        return Answer(
            columns=tuple(_COLUMNS),
            rows=[tuple(say(one) for say in _COLUMNS.values()) for one in node.functions],
            show=lambda: _show(node, parsed_args),
            document=lambda: inventory.dumps(node, _wish(parsed_args)),
        )


#: Column of a list -> what it says of a function.
_COLUMNS: Final[Mapping[str, Callable[[Function], object]]] = {
    "Address": lambda one: one.address,
    "Class": lambda one: (one.class_code or "")[:4],
    "Vendor": lambda one: one.vendor_id or "",
    "Product": lambda one: one.product_id or "",
    "Type": lambda one: one.dev_type,
    "NUMA node": lambda one: "" if one.numa_node is None else one.numa_node,
    "Root": lambda one: one.root or "",
    "IOMMU group": lambda one: "" if one.iommu_group is None else one.iommu_group,
    "Driver": lambda one: one.driver or "",
    "Unknown": lambda one: one.unknown or "",
}


def _show(node: Node, args: argparse.Namespace) -> None:
    if args.show == "tree":
        _draw(node, args.all, _wish(args))
    elif args.show == "nccl":
        sys.stdout.write(nccl.from_node(node, _processor(args)))
    else:
        for line in _device_spec(node, args.config):
            print(line)


def _read(args: argparse.Namespace) -> Node:
    if args.xml is not None:
        return lstopo.read(args.xml)
    if args.archive is not None:
        return sysfs.read_tree(save_node.load(args.archive), show(args.archive))
    root: Path = args.root
    try:
        there = root.is_dir()
    except (OSError, ValueError):
        there = False
    if not there:
        raise InventoryError(f"--root {root}: no such directory")
    node = sysfs.read(root)
    if not node.functions and not node.cpus:
        raise InventoryError(
            f"--root {root}: neither CPUs nor PCI functions below it; "
            "give the directory that holds sys and proc of a node"
        )
    return sysfs.with_names(node) if root.resolve() == Path("/") else node


def _processor(args: argparse.Namespace) -> nccl.Processor | None:
    if args.archive is not None:
        return nccl.processor(save_node.load(args.archive))
    return nccl.processor(Tree(args.root)) if args.xml is None else None


def _wish(args: argparse.Namespace) -> Wish:
    """What the node is to be like: of another machine only where its files are named."""
    here = args.xml is None and args.archive is None and args.root.resolve() == Path("/")
    if not here and not args.config:
        return Wish.KEEP
    try:
        return Wish(node_config.read(args.config, ("peer_to_peer",)).hpc.peer_to_peer)
    except node_config.ConfigError as error:
        if args.config:
            raise InventoryError(str(error)) from error
        return Wish.KEEP  # everybody may look at a node, and few may read its configuration


def _draw(node: Node, everything: bool, wish: Wish) -> None:
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    plain = not encoding.startswith("utf")
    console = InertConsole(theme=_THEME, highlighter=_Colours(), soft_wrap=True)
    drawn = text.lines(node, everything=everything, plain=plain)
    pairs = list(peer_text.lines(node, wish))
    for line in (*drawn, *([""] if pairs else []), *pairs):
        if console.is_terminal:
            console.print(line)
        else:
            print(line)


def _device_spec(node: Node, config: Sequence[str]) -> Iterator[str]:
    from nova_hpc.tenancy.nvlink import nvlink_sets
    from nova_hpc.topology import roles
    from nova_hpc_tools.adopt import configured, device_spec
    from nova_hpc_tools.adopt.declaration import Declaration

    try:
        everything = node_config.read(config, ("device_role", "nvlink_set"))
        options, lines = everything.hpc, tuple(everything.pci.device_spec or ())
        table = node_config.table(options.device_role, node, lines)
    except (roles.RoleError, node_config.ConfigError) as error:
        raise InventoryError(f"[hpc]device_role cannot be used: {error}") from error
    try:
        links = nvlink_sets.strict(options.nvlink_set)
        nvlink_sets.check(links, node, table)
    except nvlink_sets.NvlinkError as error:
        raise InventoryError(str(error)) from error
    now = configured.Configured(device_spec=lines, aliases=tuple(everything.pci.alias or ()))
    identity = configured.forms(now, node, table, {})
    spec = device_spec.build(node, table, Declaration(nvlink=links or None, identity=identity))
    for item in spec.omitted:
        print(f"Not offered: {item.address} ({item.role}): {item.reason}", file=sys.stderr)
    for line in spec.lines():
        yield f"device_spec = {line}"
