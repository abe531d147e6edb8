# SPDX-License-Identifier: Apache-2.0
"""The kinds of nodes in a fleet, and the odd ones out: ``nova-hpc doctor --fleet``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.progress import track

from nova_hpc.topology import sysfs
from nova_hpc.topology.files import show_path
from nova_hpc.topology.model import InventoryError, Node
from nova_hpc_common.output.printing import InertConsole
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.base import CommandAnswer, CommandError
from nova_hpc_tools.inventory import fleet_document as report
from nova_hpc_tools.inventory import kinds, node_archive

_SUFFIX: Final = ".tar.xz"
#: Exit status if an archive could not be read; the report covers the others.
_SOME: Final = 1
#: The most names of nodes in a line of the report.
_NAMES: Final = 12


def compare_fleet(paths: Sequence[Path], command: str) -> CommandAnswer:
    """Compare archives of nodes; each node has the name of its file.

    :param paths: archives that ``nova-hpc inventory --save`` wrote, or directories of them.
    :param command: the name that precedes the errors of archives on standard error.
    :returns: status 1 if an archive could not be read; the report is of the others.
    :raises CommandError: no archive could be read, or a directory contains none.
    """
    nodes: dict[str, Node] = {}
    wrong: dict[str, str] = {}
    for name, path in _show_reading_progress(_name_archives(_collect_archives(paths))):
        try:
            nodes[name] = sysfs.read_tree(node_archive.load_node_archive(path), show_path(path))
        except InventoryError as error:
            wrong[name] = str(error)
    for text in wrong.values():
        print(f"{command}: {text}", file=sys.stderr)
    if not nodes:
        raise CommandError("no archive of a node could be read; nova-hpc inventory --save")
    fleet = kinds.compare_nodes(nodes)
    return CommandAnswer(
        columns=("Node", "Kind", "Place", "Fact", "Value", "Usual", "Nodes with it"),
        rows=list(_rows_of_differences(fleet)),
        status=_SOME if wrong else 0,
        show=lambda: _print_fleet(fleet),
        document=lambda: report.write_node_fleet(fleet, wrong),
    )


def _collect_archives(given: Sequence[Path]) -> list[Path]:
    archives = []
    for path in given:
        if path.is_dir():
            below = sorted(archive for archive in path.iterdir() if archive.name.endswith(_SUFFIX))
            if not below:
                raise CommandError(f"{show_path(path)}: no file in it ends with {_SUFFIX}")
            archives += below
        else:
            archives.append(path)
    return list(dict.fromkeys(archives))


def _name_archives(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Pair each file with the name of its node, with directories if two names are equal."""
    short = [path.name.removesuffix(_SUFFIX) for path in paths]
    return [
        (name if short.count(name) == 1 else show_path(path).removesuffix(_SUFFIX), path)
        for name, path in zip(short, paths, strict=True)
    ]


def _show_reading_progress(named: Sequence[tuple[str, Path]]) -> Iterable[tuple[str, Path]]:
    console = InertConsole(stderr=True)
    return track(
        named, "Reading nodes", console=console, transient=True, disable=not console.is_terminal
    )


def _rows_of_differences(
    fleet: kinds.NodeFleet,
) -> Iterable[tuple[str, int, str, str, str, str, int]]:
    for difference in fleet.differences:
        usual = difference.usual
        for odd_value in difference.odd:
            for node in odd_value.nodes:
                words = (
                    odd_value.value,
                    usual.value if usual else "",
                    len(usual.nodes) if usual else 0,
                )
                yield node, difference.kind, difference.place, difference.fact, *words


def _print_fleet(fleet: kinds.NodeFleet) -> None:
    for kind in fleet.kinds:
        count = f"{len(kind.nodes)} node{'s' if len(kind.nodes) != 1 else ''}"
        print(f"Kind {kind.number}: {count}: {join_first(kind.nodes, _NAMES)}")
        print(f"  {kind.processors}")
        for product, number in kind.devices.items():
            print(f"  {number} x {product}")
        _print_odd(difference for difference in fleet.differences if difference.kind == kind.number)
        print()
    nodes = {
        node
        for difference in fleet.differences
        if difference.usual
        for v in difference.odd
        for node in v.nodes
    }
    print(f"Odd ones out: {join_first(sorted(nodes), _NAMES) or 'none'}")


def _print_odd(differences: Iterable[kinds.KindDifference]) -> None:
    for difference in differences:
        if difference.usual:
            for odd_value in difference.odd:
                print(
                    f"  {join_first(odd_value.nodes, _NAMES)}: {difference.place}: "
                    f"{difference.fact} {odd_value.value}, "
                    f"{len(difference.usual.nodes)} others {difference.usual.value}"
                )
        else:
            values = "; ".join(
                f"{node_value.value} on {join_first(node_value.nodes, _NAMES)}"
                for node_value in difference.values
            )
            print(f"  not the same: {difference.place}: {difference.fact} {values}")
