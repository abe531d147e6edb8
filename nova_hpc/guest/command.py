# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest``: show, check and install what the cloud promised this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from . import document, install, machine, show, topology
from .compare import KINDS, Result, Wishes, compare, locate
from .document import Document, DocumentError, NoDocumentError
from .files import FileError, Root

GOOD: Final = 0
#: Something is not as promised.
WRONG: Final = 1
#: It could not be told: no document, one that cannot be read, bad options.
UNKNOWN: Final = 2

_UNITS: Final = {"K": 1, "M": 1024, "G": 1024 * 1024}


class _Options(NamedTuple):
    command: str
    root: Root
    as_json: bool
    quiet: bool
    wishes: Wishes
    if_present: bool
    profile: bool
    slurm: tuple[str, str, str | None] | None


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    :returns: 0 good, 1 not as promised, 2 could not be told.
    """
    try:
        options = _parse(sys.argv[1:] if arguments is None else arguments)
        status, lines = _run(options)
        text = "".join(f"{line}\n" for line in lines)
    except (DocumentError, FileError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted")
    except Exception as error:
        # A job prolog must get an answer, whatever this machine shows.
        return _fail(f"this machine cannot be read: {type(error).__name__}: {error}")
    return _say(text, status)


def _say(text: str, status: int) -> int:
    """Write what was found or done; what nobody reads to its end is no success."""
    if not text:
        return status
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:
            # Python would complain once more when it flushes at exit.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = error.strerror or str(error)
        return _fail(f"the output was not read to its end, or cannot be written: {why}")
    return status


def _fail(text: str) -> int:
    line = " ".join(text.split())
    with contextlib.suppress(OSError):
        print(f"nova-hpc-guest: {line}".encode("ascii", "replace").decode(), file=sys.stderr)
    return UNKNOWN


def _run(options: _Options) -> tuple[int, Iterable[str]]:
    """The exit status, and the lines to say once everything is done."""
    try:
        data, found = document.read(options.root)
    except NoDocumentError:
        if options.command != "install":
            raise
        install.forget(options.root)
        if not options.if_present:
            raise
        return GOOD, ()
    real = machine.read(options.root)
    if options.command == "install":
        said = install.install(options.root, found, data, real, options.profile)
        return GOOD, () if options.quiet else said
    if options.command == "topology":
        return GOOD, _topology(options, found, real)
    result = compare(found, real, options.wishes)
    status = GOOD if result.good or options.command == "show" else WRONG
    if options.as_json:
        return status, (json.dumps(show.as_data(found, result), indent=2),)
    if options.command == "show":
        return status, show.tree(found, result)
    return status, _report(found, result, options.quiet)


def _topology(options: _Options, found: Document, real: machine.Machine) -> Iterable[str]:
    topology.check(found)
    places, _ = locate(found, real)
    if options.as_json:
        return (json.dumps(topology.as_data(found, places), indent=2),)
    if options.slurm is not None:
        return (topology.as_slurm(found, *options.slurm),)
    return topology.as_text(found, places)


def _report(found: Document, result: Result, quiet: bool) -> Iterator[str]:
    for finding in result.findings:
        if finding.wrong or not quiet:
            about = "" if finding.device is None else f"{found.devices[finding.device].name}: "
            mark = "WRONG" if finding.wrong else "note"
            yield f"{mark} {finding.kind}: {about}{finding.text}"
    if result.good and not quiet:
        yield (
            f"As promised: {len(found.devices)} devices, {len(found.cells)} NUMA nodes, "
            f"topology {found.topology}."
        )


def _parse(arguments: list[str]) -> _Options:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--root", default="/", metavar="DIR", help="directory that holds sys (default: /)"
    )
    parser = argparse.ArgumentParser(
        prog="nova-hpc-guest",
        description="What the cloud promised this machine, and what it has.",
        epilog="Exit status: 0 good, 1 not as promised, 2 could not be told.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    shower = commands.add_parser("show", parents=[common], help="print the tree of the devices")
    checker = commands.add_parser("check", parents=[common], help="compare promise and machine")
    installer = commands.add_parser(
        "install", parents=[common], help="tell NCCL about the topology; run it at each boot"
    )
    for each in (shower, checker):
        each.add_argument("--format", choices=("text", "json"), default="text")
    _add_topology(commands.add_parser("topology", parents=[common], help=_TOPOLOGY))
    checker.add_argument(
        "--driver",
        action="append",
        default=[],
        type=_driver,
        metavar="ROLE=NAME",
        help="driver that must be bound to the devices of a role, of vendor:product, or of *; "
        "without it any driver will do; may be repeated",
    )
    checker.add_argument(
        "--hugepages",
        action="append",
        default=[],
        type=_pool,
        metavar="SIZE=COUNT",
        help="pages that a pool must have at least, as in 1G=32; may be repeated",
    )
    checker.add_argument(
        "--skip",
        default=(),
        type=_kinds,
        metavar="KIND,...",
        help=f"leave out what this machine cannot have: {', '.join(KINDS[1:])}",
    )
    for each in (checker, installer):
        each.add_argument("--quiet", action="store_true", help="print only what is wrong")
    installer.add_argument(
        "--if-present",
        action="store_true",
        help="a machine that was promised nothing is no error",
    )
    installer.add_argument(
        "--profile", action="store_true", help=f"also write {install.PROFILE} for login shells"
    )
    known: Any = parser.parse_args(arguments)
    folder: str = known.root
    form: str = getattr(known, "format", "text")
    if not os.path.isdir(folder):  # noqa: PTH112
        parser.error(f"--root {folder!a}: no such directory")
    return _Options(
        command=known.command,
        root=Root(folder),
        as_json=form == "json",
        quiet=getattr(known, "quiet", False),
        wishes=Wishes(
            dict(getattr(known, "driver", ())),
            dict(getattr(known, "hugepages", ())),
            getattr(known, "skip", ()),
        ),
        if_present=getattr(known, "if_present", False),
        profile=getattr(known, "profile", False),
        slurm=(known.level, known.topology, known.below) if form == "slurm" else None,
    )


_TOPOLOGY: Final = "print where this machine is on the fabric, in names of the project's own"


def _add_topology(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("text", "slurm", "json"),
        default="text",
        help="slurm: what slurmd -Z --conf takes (Slurm 26.05)",
    )
    parser.add_argument(
        "--level",
        choices=document.LEVELS,
        default="leaf",
        help="with --format slurm: the level whose domains are Slurm's switches or blocks",
    )
    parser.add_argument(
        "--topology",
        type=_word,
        default=topology.DEFAULT,
        metavar="NAME",
        help=f"with --format slurm: name of Slurm's topology (default: {topology.DEFAULT})",
    )
    parser.add_argument(
        "--below",
        type=_word,
        metavar="SWITCH",
        help="with --format slurm: print the path from this switch of Slurm's, which makes what "
        "it has not of it",
    )


def _word(text: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,80}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!a} is no word of letters, digits and -_.")
    return text


def _driver(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\w.:*-]+)=([\w.-]+)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!a} is not like gpu=nvidia")
    return match[1], match[2]


def _pool(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})([KMG])=(\d{1,9})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!a} is not like 1G=32")
    return int(match[1]) * _UNITS[match[2]], int(match[3])


def _kinds(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in KINDS[1:]:
            raise argparse.ArgumentTypeError(f"{word!a} is not one of {', '.join(KINDS[1:])}")
    return words


if __name__ == "__main__":
    sys.exit(main())
