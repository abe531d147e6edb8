# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric show``, ``diff`` and ``export``: maps, without changing anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from stevedore import extension

from nova_hpc.fabric.model import FabricLevel, FabricMap, Place
from nova_hpc.outside.text import printable
from nova_hpc.wire import fabric_map
from nova_hpc_tools.adopt import include_files
from nova_hpc_tools.base import Answer, CommandError, List
from nova_hpc_tools.fabric import difference
from nova_hpc_tools.fabric import map_files as fabric_source
from nova_hpc_tools.fabric import nova_aggregates as fabric_cloud
from nova_hpc_tools.fabric.difference import Difference
from nova_hpc_tools.fabric.problems import FabricError
from nova_hpc_tools.fabric.sync import as_in_nova, cloud_map
from nova_hpc_tools.fabric.writers import slurm, svg, text, topograph

_DIFFERENT: Final = 1


class Show(List):
    """Show where hosts are on the fabric, by a map in any form that is read.

    Says on standard error what is damaged or contradicts itself, by line; the exit status
    is then 1. JSON and YAML are the map as export writes it; lists name the hosts.
    """

    acts_with = ()
    errors = (FabricError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        fabric_source.add_maps(parser)
        fabric_source.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Read the map; status 1 if something in it is wrong."""
        reading = fabric_source.read_all(parsed_args.maps, parsed_args)
        fabric_source.tell(reading, parsed_args)
        return Answer(
            columns=tuple(_COLUMNS),
            rows=[
                tuple(say(place) for say in _COLUMNS.values()) for place in reading.fabric.places
            ],
            status=_DIFFERENT if reading.problems else 0,
            show=lambda: _print(text.lines(reading.fabric)),
            document=lambda: fabric_map.dumps(reading.fabric),
        )


#: Column -> what it says of a host.
_COLUMNS: Final[Mapping[str, Callable[[Place], str]]] = {
    "Host": lambda place: place.host,
    "Sub-domain": lambda place: place.sub_domain or "",
    "NVLink Domain": lambda place: place.nvlink_domain or "",
    "Leaf": lambda place: place.leaf or "",
    "Block": lambda place: place.block or "",
    "Spine": lambda place: place.spine or "",
    "Core": lambda place: place.core or "",
    "Rails": lambda place: ", ".join(rail.name for rail in place.rails),
}


class Diff(List):
    """Show what differs between two maps, or between Nova's host aggregates and a map.

    With one map, what Nova knows is compared with it, and clusters (server groups) whose
    members would be further apart are named; nothing is moved. The exit status is 0 when
    nothing differs, else 1.
    """

    acts_with = ()
    errors = (FabricError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("old", metavar="OLD", nargs="?", help="the map as it was")
        parser.add_argument("new", metavar="MAP", help="the map as it is; - is standard input")
        fabric_source.add_arguments(parser)
        fabric_cloud.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Compare; status 1 if anything differs."""
        args = parsed_args
        reading = fabric_source.read(args.new, args)
        fabric_source.tell(reading, args)
        new = reading.fabric
        spreads: tuple[difference.Spread, ...] = ()
        if args.old is not None:
            before = fabric_source.read(args.old, args)
            fabric_source.tell(before, args)
            found = difference.compare(before.fabric, new)
        else:
            cloud = fabric_cloud.connect(args)
            old, problems = cloud_map(cloud.aggregates(), new.name)
            for problem in problems:
                print(f"problem: {printable(problem)}", file=sys.stderr)
            new = as_in_nova(new, cloud.hosts())
            found = difference.compare(old, new, cables=False)
            if not args.no_clusters and found:
                spreads = difference.spreads(cloud.clusters(), old, new)
        for spread in spreads:
            print(f"note: {spread}", file=sys.stderr)
        return Answer(
            columns=("Change", "Name", "Level", "Old", "New"),
            rows=[_row(each) for each in found],
            status=_DIFFERENT if found else 0,
            show=lambda: _print(difference_lines(found)),
        )


def difference_lines(found: Iterable[Difference]) -> Iterable[str]:
    """Differences for people, one a line."""
    nothing = True
    for each in found:
        nothing = False
        level = f" ({each.level.word})" if each.level is not None else ""
        change = f"{each.old or 'nothing'} -> {each.new or 'nothing'}"
        yield printable(f"{each.kind}{level} {each.name}: {change}")
    if nothing:
        yield "nothing differs"


def _row(each: Difference) -> tuple[str, ...]:
    level = "" if each.level is None else each.level.word
    return (each.kind, each.name, level, each.old or "", each.new or "")


class _Words:
    """Stands for a formatter of cliff: export writes its formats itself."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """There is no option of a format's own."""


class Export(List):
    """Write a map in the form that others read.

    A map with problems is not written unless --accept-problems is given, and a file is
    replaced as a whole or not at all: the last good one stays.
    """

    acts_with = ("output",)
    errors = (FabricError, include_files.IncludeError)
    for_people = False

    def _load_formatter_plugins(self) -> extension.ExtensionManager:
        words = [extension.Extension(name, None, _Words, _Words()) for name in _WRITERS]
        return extension.ExtensionManager.make_test_instance(words)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.set_defaults(formatter="json")
        for option, said in (
            ("-f", "what is written (default: json, which nova-hpc itself reads again)"),
            ("-c", argparse.SUPPRESS),
        ):
            parser._option_string_actions[option].help = said
        fabric_source.add_maps(parser)
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="where to (default: standard output)"
        )
        parser.add_argument(
            "--slurm-version",
            type=_release,
            metavar="RELEASE",
            help="the release of Slurm that shall load it, e.g. 24.11: what a block may be, and "
            "whether there are blocks and topology.yaml, depends on it (default: what all load)",
        )
        parser.add_argument(
            "--block-level",
            choices=[level.word for level in FabricLevel],
            help="what a block of Slurm is (default: the NVLink domains where there are any, else "
            "blocks, else leaves)",
        )
        parser.add_argument(
            "--accept-problems",
            action="store_true",
            help="write the map although something in it is wrong; what that concerns is left out",
        )
        fabric_source.add_arguments(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Write it."""
        args = parsed_args
        reading = fabric_source.read_all(args.maps, args)
        fabric_source.tell(reading, args)
        refuse_problems(len(reading.problems), args)
        content = _WRITERS[args.formatter](reading.fabric, args)
        if args.output is None:
            sys.stdout.write(content)
        else:
            old = include_files.read(args.output)
            if old != content:
                include_files.write([include_files.Change(args.output, old, content)])
        return Answer((), ())

    def _emit(self, args: argparse.Namespace, answer: Answer) -> None:
        """It is written already."""


def refuse_problems(count: int, args: argparse.Namespace) -> None:
    """Stop where the map is not whole.

    :raises CommandError: it is not, and nobody said that this is well.
    """
    if count and not args.accept_problems:
        raise CommandError(
            f"the map has {count} problem{'s' if count > 1 else ''}, and the last good one is "
            "kept; --accept-problems takes it without what they concern"
        )


def _release(said: str) -> slurm.Release:
    try:
        return slurm.parse_release(said)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _level(args: argparse.Namespace) -> FabricLevel | None:
    return None if args.block_level is None else FabricLevel.from_word(args.block_level)


def _blocks(fabric: FabricMap, args: argparse.Namespace) -> str:
    return slurm.blocks(fabric, args.slurm_version or slurm.FIRST_BLOCKS, _level(args))


def _document(fabric: FabricMap, args: argparse.Namespace) -> str:
    return slurm.document(fabric, args.slurm_version or slurm.FIRST_YAML, _level(args))


_WRITERS: Final[Mapping[str, Callable[[FabricMap, Any], str]]] = {
    "json": lambda fabric, _: fabric_map.dumps(fabric),
    "slurm-block": _blocks,
    "slurm-tree": lambda fabric, _: slurm.tree(fabric),
    "slurm-yaml": _document,
    "svg": lambda fabric, _: svg.draw(fabric),
    "topograph": lambda fabric, _: topograph.graph(fabric),
}


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
