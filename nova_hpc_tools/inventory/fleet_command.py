# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc inventory fleet``: kinds of nodes, and the odd ones out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.progress import track

from nova_hpc.topology import sysfs
from nova_hpc.topology.files import show
from nova_hpc.topology.model import InventoryError, Node
from nova_hpc_tools.base import Answer, CommandError, List
from nova_hpc_tools.inventory import fleet_document as report
from nova_hpc_tools.inventory import kinds
from nova_hpc_tools.inventory import node_archive as save_node
from nova_hpc_tools.printing import InertConsole

_SUFFIX: Final = ".tar.xz"
#: Exit status when an archive could not be read: the report is of the others.
_SOME: Final = 1
#: Names of nodes in a line for people.
_NAMES: Final = 12


class Fleet(List):
    """Compare many nodes: kinds of nodes, and what is odd about one of them.

    Reads archives that ``nova-hpc inventory --save`` wrote. A node is called as its
    file is. Exit status 1: an archive could not be read, and the report is of the others.
    """

    acts_with = ()
    errors = (InventoryError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "archives",
            type=Path,
            nargs="+",
            metavar="FILE",
            help="archive of a node, or a directory of such archives",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Read the archives and compare."""
        nodes: dict[str, Node] = {}
        wrong: dict[str, str] = {}
        for name, path in _progress(_named(_files(parsed_args.archives))):
            try:
                nodes[name] = sysfs.read_tree(save_node.load(path), show(path))
            except InventoryError as error:
                wrong[name] = str(error)
        for text in wrong.values():
            print(f"{self._name}: {text}", file=sys.stderr)
        if not nodes:
            raise CommandError("no archive of a node could be read; nova-hpc inventory --save")
        fleet = kinds.compare(nodes)
        return Answer(
            columns=("Node", "Kind", "Place", "Fact", "Value", "Usual", "Nodes with it"),
            rows=list(_rows(fleet)),
            status=_SOME if wrong else 0,
            show=lambda: _print(fleet),
            document=lambda: report.dumps(fleet, wrong),
        )


def _files(given: Sequence[Path]) -> list[Path]:
    found = []
    for path in given:
        if path.is_dir():
            below = sorted(each for each in path.iterdir() if each.name.endswith(_SUFFIX))
            if not below:
                raise CommandError(f"{show(path)}: no file in it ends with {_SUFFIX}")
            found += below
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _named(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each file with the name of its node: with its directories where two have the same."""
    short = [path.name.removesuffix(_SUFFIX) for path in paths]
    return [
        (name if short.count(name) == 1 else show(path).removesuffix(_SUFFIX), path)
        for name, path in zip(short, paths, strict=True)
    ]


def _progress(named: Sequence[tuple[str, Path]]) -> Iterable[tuple[str, Path]]:
    console = InertConsole(stderr=True)
    return track(
        named, "Reading nodes", console=console, transient=True, disable=not console.is_terminal
    )


def _rows(fleet: kinds.Fleet) -> Iterable[tuple[str, int, str, str, str, str, int]]:
    for one in fleet.differences:
        usual = one.usual
        for each in one.odd:
            for node in each.nodes:
                words = (each.value, usual.value if usual else "", len(usual.nodes) if usual else 0)
                yield node, one.kind, one.place, one.fact, *words


def _print(fleet: kinds.Fleet) -> None:
    for kind in fleet.kinds:
        count = f"{len(kind.nodes)} node{'s' if len(kind.nodes) != 1 else ''}"
        print(f"Kind {kind.number}: {count}: {_list(kind.nodes)}")
        print(f"  {kind.processors}")
        for product, number in kind.devices.items():
            print(f"  {number} x {product}")
        _print_odd(one for one in fleet.differences if one.kind == kind.number)
        print()
    nodes = {node for one in fleet.differences if one.usual for v in one.odd for node in v.nodes}
    print(f"Odd ones out: {_list(sorted(nodes)) or 'none'}")


def _print_odd(differences: Iterable[kinds.Difference]) -> None:
    for one in differences:
        if one.usual:
            for each in one.odd:
                print(
                    f"  {_list(each.nodes)}: {one.place}: {one.fact} {each.value}, "
                    f"{len(one.usual.nodes)} others {one.usual.value}"
                )
        else:
            values = "; ".join(f"{each.value} on {_list(each.nodes)}" for each in one.values)
            print(f"  not the same: {one.place}: {one.fact} {values}")


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
