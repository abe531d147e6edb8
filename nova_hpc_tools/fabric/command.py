# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric show``, ``diff`` and ``export``: maps, without changing anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from stevedore import extension

from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.fabric import difference, map_files, nova_aggregates
from nova_hpc_tools.fabric.difference import FabricDifference
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.fabric.sync import map_as_in_nova, map_of_aggregates
from nova_hpc_tools.fabric.writers import slurm, svg, text, topograph
from nova_hpc_tools.site import include_files
from nova_hpc_tools.wire import fabric_map

_DIFFERENT: Final = 1


class ShowFabric(ListCommand):
    """Show where hosts are on the fabric, by a map in any form that is read.

    Lines that are damaged or contradict others are named on standard error; the exit status
    is then 1. JSON and YAML are the map as export writes it; lists name the hosts.
    """

    acts_with = ()
    errors = (FabricMapError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        map_files.add_map_files_argument(parser)
        map_files.add_map_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Read the fabric map and print its hosts; status 1 if a part of it is wrong."""
        reading = map_files.read_fabric_files(parsed_args.maps, parsed_args)
        map_files.report_map_problems(reading, parsed_args)
        return CommandAnswer(
            columns=tuple(_COLUMNS),
            rows=[
                tuple(say(place) for say in _COLUMNS.values()) for place in reading.fabric.places
            ],
            status=_DIFFERENT if reading.problems else 0,
            show=lambda: _print_lines(text.draw_fabric_tree(reading.fabric)),
            document=lambda: fabric_map.write_fabric_map(reading.fabric),
        )


#: Column -> its text for a host.
_COLUMNS: Final[Mapping[str, Callable[[FabricPlace], str]]] = {
    "Host": lambda place: place.host,
    "Sub-domain": lambda place: place.sub_domain or "",
    "NVLink Domain": lambda place: place.nvlink_domain or "",
    "Leaf": lambda place: place.leaf or "",
    "Block": lambda place: place.block or "",
    "Spine": lambda place: place.spine or "",
    "Core": lambda place: place.core or "",
    "Rails": lambda place: ", ".join(rail.name for rail in place.rails),
}


class DiffFabric(ListCommand):
    """Show the differences between two maps, or between Nova's host aggregates and a map.

    With one map, Nova's host aggregates are compared with it, and clusters (server groups)
    whose members would be further apart are named; nothing is moved. The exit status is 0 if
    nothing differs, else 1.
    """

    acts_with = ()
    errors = (FabricMapError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("old", metavar="OLD", nargs="?", help="the map as it was")
        parser.add_argument("new", metavar="MAP", help="the map as it is; - is standard input")
        map_files.add_map_arguments(parser)
        nova_aggregates.add_cloud_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Compare two maps, or a map with Nova's aggregates; status 1 if they differ."""
        args = parsed_args
        reading = map_files.read_fabric_file(args.new, args)
        map_files.report_map_problems(reading, args)
        new = reading.fabric
        spreads: tuple[difference.ClusterSpread, ...] = ()
        if args.old is not None:
            before = map_files.read_fabric_file(args.old, args)
            map_files.report_map_problems(before, args)
            differences = difference.compare_fabric_maps(before.fabric, new)
        else:
            cloud = nova_aggregates.connect_fabric_cloud(args)
            old, problems = map_of_aggregates(cloud.aggregates(), new.name)
            for problem in problems:
                print(f"problem: {printable_text(problem)}", file=sys.stderr)
            new = map_as_in_nova(new, cloud.hosts())
            differences = difference.compare_fabric_maps(old, new, cables=False)
            if not args.no_clusters and differences:
                spreads = difference.spread_changes_of(cloud.clusters(), old, new)
        for spread in spreads:
            print(f"note: {spread}", file=sys.stderr)
        return CommandAnswer(
            columns=("Change", "Name", "Level", "Old", "New"),
            rows=[_format_difference_row(map_change) for map_change in differences],
            status=_DIFFERENT if differences else 0,
            show=lambda: _print_lines(format_differences(differences)),
        )


def format_differences(differences: Iterable[FabricDifference]) -> Iterable[str]:
    """Yield the differences as lines for people; "nothing differs" if there are none."""
    nothing = True
    for map_change in differences:
        nothing = False
        level = f" ({map_change.level.word})" if map_change.level is not None else ""
        change = f"{map_change.old or 'nothing'} -> {map_change.new or 'nothing'}"
        yield printable_text(f"{map_change.kind}{level} {map_change.name}: {change}")
    if nothing:
        yield "nothing differs"


def _format_difference_row(map_change: FabricDifference) -> tuple[str, ...]:
    level = "" if map_change.level is None else map_change.level.word
    return (map_change.kind, map_change.name, level, map_change.old or "", map_change.new or "")


class _FormatterStub:
    """A formatter of cliff without output: export writes its formats itself."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: the formats have no options of their own."""


class ExportFabric(ListCommand):
    """Write a map in the form that others read.

    A map with problems is not written unless --accept-problems is given, and a file is
    replaced as a whole or not at all: the last good one stays.
    """

    acts_with = ("output",)
    errors = (FabricMapError, include_files.IncludeError)
    for_people = False

    def _load_formatter_plugins(self) -> extension.ExtensionManager:
        words = [
            extension.Extension(name, None, _FormatterStub, _FormatterStub()) for name in _WRITERS
        ]
        return extension.ExtensionManager.make_test_instance(words)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.set_defaults(formatter="json")
        for option, help_text in (
            ("-f", "format of the output (default: json, which nova-hpc itself reads again)"),
            ("-c", argparse.SUPPRESS),
        ):
            parser._option_string_actions[option].help = help_text
        map_files.add_map_files_argument(parser)
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="where to (default: standard output)"
        )
        parser.add_argument(
            "--slurm-version",
            type=_parse_slurm_release,
            metavar="RELEASE",
            help="the release of Slurm that shall load it, e.g. 24.11: blocks and topology.yaml "
            "depend on it (default: a form that all releases load)",
        )
        parser.add_argument(
            "--block-level",
            choices=[level.word for level in FabricLevel],
            help="the fabric level of Slurm's blocks (default: NVLink domains if there are any, "
            "else blocks, else leaves)",
        )
        parser.add_argument(
            "--accept-problems",
            action="store_true",
            help="write the map in spite of its problems, without the parts that they concern",
        )
        map_files.add_map_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Write the map to the output, unless the file has the same content already."""
        args = parsed_args
        reading = map_files.read_fabric_files(args.maps, args)
        map_files.report_map_problems(reading, args)
        refuse_problems(len(reading.problems), args)
        content = _WRITERS[args.formatter](reading.fabric, args)
        if args.output is None:
            sys.stdout.write(content)
        else:
            old = include_files.read_plain_file(args.output)
            if old != content:
                include_files.write_file_changes(
                    [include_files.FileChange(args.output, old, content)]
                )
        return CommandAnswer((), ())

    def _emit(self, args: argparse.Namespace, answer: CommandAnswer) -> None:
        """Print nothing: :meth:`take_action` has written the map."""


def refuse_problems(count: int, args: argparse.Namespace) -> None:
    """Stop if the map has problems.

    :param count: number of problems.
    :raises CommandError: there are problems, and --accept-problems is not given.
    """
    if count and not args.accept_problems:
        raise CommandError(
            f"the map has {count} problem{'s' if count > 1 else ''}, and the last good one is "
            "kept; --accept-problems takes it without the parts that they concern"
        )


def _parse_slurm_release(release: str) -> slurm.Release:
    try:
        return slurm.parse_release(release)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _block_level_of(args: argparse.Namespace) -> FabricLevel | None:
    return None if args.block_level is None else FabricLevel.from_word(args.block_level)


def _write_slurm_blocks(fabric: FabricMap, args: argparse.Namespace) -> str:
    return slurm.format_slurm_blocks(
        fabric, args.slurm_version or slurm.FIRST_BLOCKS, _block_level_of(args)
    )


def _write_slurm_yaml(fabric: FabricMap, args: argparse.Namespace) -> str:
    return slurm.format_topology_yaml(
        fabric, args.slurm_version or slurm.FIRST_YAML, _block_level_of(args)
    )


_WRITERS: Final[Mapping[str, Callable[[FabricMap, Any], str]]] = {
    "json": lambda fabric, _: fabric_map.write_fabric_map(fabric),
    "slurm-block": _write_slurm_blocks,
    "slurm-tree": lambda fabric, _: slurm.format_slurm_tree(fabric),
    "slurm-yaml": _write_slurm_yaml,
    "svg": lambda fabric, _: svg.draw_fabric_svg(fabric),
    "topograph": lambda fabric, _: topograph.format_topograph_json(fabric),
}


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
