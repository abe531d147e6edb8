# SPDX-License-Identifier: Apache-2.0
"""The sources of a map, for the ``nova-hpc fabric`` commands."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from nova_hpc.fabric.model import FabricLevel, FabricMap
from nova_hpc_common.outside.name_lists import cut_after
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire.version import WireError
from nova_hpc_tools.fabric.exclusions import Exclusions, exclude_places
from nova_hpc_tools.fabric.map_outline import find_crossed_leaves
from nova_hpc_tools.fabric.merge import merge_readings
from nova_hpc_tools.fabric.problems import (
    FabricMapError,
    FabricReading,
    ProblemCollector,
    SourceProblem,
)
from nova_hpc_tools.fabric.readers import reader_choice as readers
from nova_hpc_tools.wire import fabric_map
from nova_hpc_tools.wire.documents import FABRIC_MAP

_LONGEST: Final = 1 << 28
_MOST_NOTES: Final = 10
#: Levels that a block of Slurm can be.
_BLOCKS: Final = ("nvlink_domain", "leaf", "block")


def add_map_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading a map to *parser*."""
    group = parser.add_argument_group("how a map is read")
    group.add_argument(
        "--from",
        dest="form",
        choices=(*readers.FORMS, "json"),
        help="format of the file (default: recognised): topograph's graph JSON or model, Slurm's "
        "topology.conf or topology.yaml, the output of ibnetdiscover, the plain YAML of the "
        "operator guide, or the output of nova-hpc fabric export --format json",
    )
    group.add_argument(
        "--name",
        metavar="NAME",
        help="name of the map (default: the name in the file, or fabric). A cloud with two "
        "fabrics has two maps of different names",
    )
    group.add_argument(
        "--topology",
        metavar="NAME",
        help="topology.yaml of Slurm: which one of its topologies (default: the cluster's default)",
    )
    group.add_argument(
        "--slurm-blocks",
        choices=_BLOCKS,
        default="block",
        help="the level of Slurm's blocks; on machines like NVL72 nvlink_domain (default: block)",
    )
    group.add_argument(
        "--ignore",
        type=_compile_pattern_option,
        metavar="REGEX",
        help="hosts that are no compute nodes (managers, storage)",
    )
    group.add_argument(
        "--ignore-switches",
        type=_compile_pattern_option,
        metavar="REGEX",
        help="switches of other networks (storage, management), with all of their ports",
    )
    group.add_argument(
        "--ignore-rails",
        type=_compile_pattern_option,
        metavar="REGEX",
        help="ports of hosts on other networks, by their names, e.g. '^mlx5_[89]$'",
    )
    group.add_argument(
        "--unknown",
        type=_compile_pattern_option,
        metavar="REGEX",
        help='whole names that stand for "not known" and are no domain, beside those that every '
        "source has (no-topology, unknown, none)",
    )
    group.add_argument(
        "--all-notes", action="store_true", help=f"show all notes, not the first {_MOST_NOTES}"
    )


def add_map_files_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for several map files that are read as one."""
    parser.add_argument(
        "maps",
        metavar="MAP",
        nargs="+",
        help="a file; - is standard input. Several are read as one: the cables from one source, "
        "NVLink domains from another",
    )


def exclusions_of(args: argparse.Namespace) -> Exclusions:
    """Collect the patterns of names that the command's options leave out."""
    return Exclusions(args.ignore, args.ignore_switches, args.ignore_rails, args.unknown)


def read_fabric_file(path: str, args: argparse.Namespace) -> FabricReading:
    """Read the map in a file, or on standard input if *path* is ``-``.

    :raises FabricMapError: it contains no map; the text names the file.
    """
    where = "standard input" if path == "-" else printable_text(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_LONGEST + 1)
        else:
            with open(path, "rb") as file:  # noqa: PTH123  a pipe of the shell is fine, too
                data = file.read(_LONGEST + 1)
    except OSError as error:
        raise FabricMapError(f"{where}: {error.strerror or error}") from error
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    try:
        return _parse_fabric_text(text, where, args)
    except (FabricMapError, WireError) as error:
        raise FabricMapError(f"{where}: {printable_text(str(error))}") from error


def read_fabric_files(paths: Sequence[str], args: argparse.Namespace) -> FabricReading:
    """Read several map files as one map.

    :raises FabricMapError: one of them contains no map; the text names it.
    """
    return merge_readings([read_fabric_file(path, args) for path in paths], args.name)


def read_reported_map(path: str, args: argparse.Namespace) -> FabricMap:
    """Read a map, and print its problems on standard error.

    :raises FabricMapError: the file contains no map.
    """
    reading = read_fabric_file(path, args)
    report_map_problems(reading, args)
    return reading.fabric


def report_map_problems(reading: FabricReading, args: argparse.Namespace) -> None:
    """Print the problems and notes of a map on standard error, the notes up to a limit."""
    _print_problems(reading.problems, "problem: ")
    limit = len(reading.notes) if args.all_notes else _MOST_NOTES
    notes = cut_after(
        reading.notes, limit, lambda rest: SourceProblem(f"and {rest} more; --all-notes shows them")
    )
    _print_problems(notes, "note: ")


def _print_problems(problems: Iterable[SourceProblem], word: str) -> None:
    for problem in problems:
        print(f"{word}{printable_text(str(problem))}", file=sys.stderr)


def _parse_fabric_text(text: str, where: str, args: argparse.Namespace) -> FabricReading:
    ours = args.form is None and text.lstrip().startswith("{") and _is_own_map(text)
    if args.form == "json" or ours:
        fabric = fabric_map.read_fabric_map(text)
        if args.name is not None:
            fabric = _rename_fabric(fabric, args.name)
        collector = ProblemCollector()
        for text in find_crossed_leaves(fabric):
            collector.note(text)
        return collector.reading(exclude_places(fabric, exclusions_of(args), collector))
    try:
        options = readers.ReaderOptions(
            name=None if args.name is None else FabricMap(name=args.name).name,
            form=args.form,
            topology=args.topology,
            block_level=FabricLevel.from_word(args.slurm_blocks),
            exclusions=exclusions_of(args),
        )
    except ValueError as error:
        raise FabricMapError(f"--name: {error}") from error
    return readers.read_fabric_text(text, where, options)


def _is_own_map(text: str) -> bool:
    return f'"{FABRIC_MAP.schema}"' in text[:400]


def _rename_fabric(fabric: FabricMap, name: str) -> FabricMap:
    try:
        return FabricMap(fabric.places, fabric.switches, fabric.links, name, fabric.source)
    except ValueError as error:
        raise FabricMapError(f"--name: {error}") from error


def _compile_pattern_option(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
