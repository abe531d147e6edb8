# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc inventory``: the devices of a node and their places."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.highlighter import RegexHighlighter
from rich.theme import Theme

from nova_hpc.topology import nccl, sysfs
from nova_hpc.topology.files import FileTree, show_path
from nova_hpc.topology.model import InventoryError, Node, PciFunction
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_common.output.printing import InertConsole
from nova_hpc_tools.base import PICTURES, CommandAnswer, ListCommand
from nova_hpc_tools.inventory import (
    device_names,
    distance_matrix,
    nccl_node,
    node_archive,
    peer_text,
    text,
)
from nova_hpc_tools.site import lstopo, service_settings, source_options
from nova_hpc_tools.wire import inventory

if TYPE_CHECKING:
    from nova_hpc_tools.inventory.standing import NodeSettings

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


class Inventory(ListCommand):
    """Show the parts of a node: NUMA nodes, PCIe trees, devices, IOMMU groups.

    Reads this machine, the captured sys and proc of another one, or the XML of lstopo, and needs no
    privileges; root sees more (ACS, link registers). JSON and YAML contain the whole inventory,
    with a version; lists name the devices; HTML and SVG draw the node.
    """

    acts_with = ("save",)
    draws = True
    errors = (InventoryError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
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
            help="write the reading of the node into an archive, for a bug report, and print "
            "nothing else. Serial numbers, MACs, GUIDs and the host's name are replaced",
        )
        parser.add_argument(
            "--keep-names", action="store_true", help="--save: keep the name of the host"
        )
        parser.add_argument(
            "--keep-serials",
            action="store_true",
            help="--save: keep the serial numbers of PCI functions, by which a declaration "
            "recognises a device in any slot (nova-hpc configure --root)",
        )
        parser.add_argument(
            "--show",
            choices=("tree", "device-spec", "nccl"),
            default="tree",
            help="without -f: a tree, the entries of [pci]device_spec, or a topology file of NCCL "
            "(default: tree)",
        )
        parser.add_argument(
            "--matrix",
            action="store_true",
            help="show how far GPUs and adapters are from each other (PIX, PXB, PHB, NODE, SYS), "
            "and which CPUs are near, as nvidia-smi topo -m does on a host with drivers",
        )
        parser.add_argument(
            "--all",
            action="store_true",
            help="tree: also draw chipset functions, ports of switches and virtual functions; "
            "--matrix: also virtual functions",
        )
        source_options.add_config_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Read the node from sysfs, XML or an archive; then list, draw or save it."""
        if parsed_args.save is not None:
            if parsed_args.xml is not None or parsed_args.archive is not None:
                raise InventoryError("--save reads sysfs; give --root, not --xml or --from")
            keep = parsed_args.keep_names, parsed_args.keep_serials
            self.say(node_archive.save_node_archive(parsed_args.root, parsed_args.save, *keep))
            return CommandAnswer(("File",), [(str(parsed_args.save),)])
        node = _read_inventory_node(parsed_args)
        if parsed_args.matrix:
            if parsed_args.show != "tree":
                raise InventoryError(f"--matrix and --show {parsed_args.show} exclude each other")
            return _answer_matrix(node, parsed_args.all)
        return CommandAnswer(
            columns=(*_COLUMNS, *_OF_SERVERS),
            rows=_list_inventory_rows(node, parsed_args),
            show=lambda: _print_inventory(node, parsed_args),
            document=lambda: inventory.write_inventory(
                node, _peer_wish_of(parsed_args), _judge_for_servers(node, parsed_args)
            ),
            pictures={
                form: functools.partial(_draw_inventory, form, node, parsed_args)
                for form in PICTURES
            },
        )


def _list_inventory_rows(node: Node, args: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a list, one for each function; judge devices at the first one."""
    servers = _judge_for_servers(node, args)
    for function in node.functions:
        part = servers.get(function.address, inventory.ServersPart())
        yield (
            *(say(function) for say in _COLUMNS.values()),
            *(part.role, part.offer, part.reason),
        )


def _judge_for_servers(node: Node, args: argparse.Namespace) -> Mapping[str, inventory.ServersPart]:
    from nova_hpc_tools.inventory import standing

    judged = standing.judge_functions(node, _settings_of_node(node, args))
    return {
        address: inventory.ServersPart(each.role, each.offer.value, each.reason)
        for address, each in judged.items()
    }


def _draw_inventory(form: str, node: Node, args: argparse.Namespace) -> str:
    from nova_hpc_tools.inventory import picture_view, standing
    from nova_hpc_tools.pictures import page

    settings = _settings_of_node(node, args)
    picture = picture_view.view_inventory_node(
        node, standing.judge_functions(node, settings), settings.spec
    )
    return page.draw_node_page(picture) if form == "html" else page.draw_node_svg(picture)


def _settings_of_node(node: Node, args: argparse.Namespace) -> NodeSettings:
    """Read the settings for the node; of another machine only if its files are named.

    Default settings count if they cannot be read.
    """
    from nova_hpc_tools.inventory import standing

    if not _is_this_machine(args) and not args.config:
        return standing.make_default_settings(node)
    try:
        return standing.read_node_settings(node, args.config)
    except InventoryError:
        if args.config:
            raise
        # All users may list the devices of a node, but only some may read its configuration.
        return standing.make_default_settings(node)


def _answer_matrix(node: Node, everything: bool) -> CommandAnswer:
    matrix = distance_matrix.build_distance_matrix(node, everything)
    return CommandAnswer(
        columns=distance_matrix.list_matrix_columns(matrix),
        rows=distance_matrix.list_matrix_rows(matrix),
        show=lambda: print("\n".join(distance_matrix.format_matrix_lines(matrix))),
        document=lambda: distance_matrix.dump_matrix_document(node, matrix),
    )


#: The columns on the use of a function by servers.
_OF_SERVERS: Final = ("Role", "Offer", "Reason")
#: Column of a list -> its value for a function.
_COLUMNS: Final[Mapping[str, Callable[[PciFunction], object]]] = {
    "Address": lambda function: function.address,
    "Class": lambda function: (function.class_code or "")[:4],
    "Vendor": lambda function: function.vendor_id or "",
    "Product": lambda function: function.product_id or "",
    "Type": lambda function: function.dev_type,
    "NUMA node": lambda function: "" if function.numa_node is None else function.numa_node,
    "Root": lambda function: function.root or "",
    "IOMMU group": lambda function: "" if function.iommu_group is None else function.iommu_group,
    "Driver": lambda function: function.driver or "",
    "Unknown": lambda function: function.unknown or "",
}


def _print_inventory(node: Node, args: argparse.Namespace) -> None:
    if args.show == "tree":
        _draw_inventory_tree(node, args)
    elif args.show == "nccl":
        sys.stdout.write(nccl_node.from_node(node, _read_processor(args)))
    else:
        for line in _format_device_spec(node, args.config):
            print(line)


def _read_inventory_node(args: argparse.Namespace) -> Node:
    if args.xml is not None:
        return lstopo.read_lstopo_file(args.xml)
    if args.archive is not None:
        return sysfs.read_tree(
            node_archive.load_node_archive(args.archive), show_path(args.archive)
        )
    root: Path = args.root
    try:
        there = root.is_dir()
    except (OSError, ValueError):
        there = False
    if not there:
        raise InventoryError(f"--root {root}: no such directory")
    node = sysfs.read_sysfs_node(root)
    if not node.functions and not node.cpus:
        raise InventoryError(
            f"--root {root}: neither CPUs nor PCI functions below it; "
            "give the directory that holds sys and proc of a node"
        )
    return device_names.with_names(node) if root.resolve() == Path("/") else node


def _read_processor(args: argparse.Namespace) -> nccl.Processor | None:
    if args.archive is not None:
        return nccl_node.read_nccl_processor(node_archive.load_node_archive(args.archive))
    return nccl_node.read_nccl_processor(FileTree(args.root)) if args.xml is None else None


def _is_this_machine(args: argparse.Namespace) -> bool:
    return args.xml is None and args.archive is None and args.root.resolve() == Path("/")


def _peer_wish_of(args: argparse.Namespace) -> PeerWish:
    """Return the node's peer-to-peer option; KEEP for other machines without --config."""
    if not _is_this_machine(args) and not args.config:
        return PeerWish.KEEP
    try:
        return PeerWish(
            service_settings.read_node_options(args.config, ("peer_to_peer",)).hpc.peer_to_peer
        )
    except service_settings.ConfigError as error:
        if args.config:
            raise InventoryError(str(error)) from error
        return PeerWish.KEEP  # only some users may read the configuration


def _draw_inventory_tree(node: Node, args: argparse.Namespace) -> None:
    from nova_hpc_tools.inventory import standing

    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    plain = not encoding.startswith("utf")
    console = InertConsole(theme=_THEME, highlighter=_Colours(), soft_wrap=True)
    standings = standing.judge_functions(node, _settings_of_node(node, args))
    drawn = text.draw_node_lines(node, args.all, plain, standings)
    pairs = list(peer_text.format_peer_lines(node, _peer_wish_of(args)))
    for line in (*drawn, *([""] if pairs else []), *pairs):
        if console.is_terminal:
            console.print(line)
        else:
            print(line)


def _format_device_spec(node: Node, config: Sequence[str]) -> Iterator[str]:
    from nova_hpc_tools.inventory import standing
    from nova_hpc_tools.site import device_spec

    spec = standing.read_node_settings(node, config).spec
    for line in device_spec.format_omitted_lines(spec.omitted):
        print(line, file=sys.stderr)
    for line in spec.lines():
        yield f"device_spec = {line}"
