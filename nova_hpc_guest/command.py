# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest``: shows, checks and installs the cloud's promise, and measures the machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from . import (
    cluster_files,
    disks,
    document,
    install,
    machine,
    own_metadata,
    peers,
    pkeys,
    shared_memory,
    show,
    topology,
)
from .compare import KINDS, GuestFinding, GuestWishes, Result, compare_with_machine, locate_devices
from .document import DocumentError, GuestDocument, NoDocumentError
from .files import GuestFileError, Root
from .host_list import WrongHostListError
from .own_metadata import ServiceError

GOOD: Final = 0
#: Exit status: the machine differs from the promise.
WRONG: Final = 1
#: Exit status if unknown: no document, one that cannot be read, bad options.
UNKNOWN: Final = 2

_UNITS: Final = {"K": 1, "M": 1024, "G": 1024 * 1024}


class _GuestOptions(NamedTuple):
    command: str
    root: Root
    as_json: bool
    quiet: bool
    wishes: GuestWishes
    if_present: bool
    profile: bool
    slurm: tuple[str, str, str | None] | None
    shared: bool = False
    #: Of ``pkey``: lines for a shell.
    as_environment: bool = False
    #: Of ``accept``, as its own module has them.
    accept: Any = None
    #: The same for ``gpu``.
    gpu: Any = None
    #: For ``cluster``: URL of the metadata service.
    url: str = own_metadata.URL
    #: Of ``complete``: returns the lines of the shell's script.
    complete: Any = None


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    :returns: 0 good, 1 not as promised, 2 unknown.
    """
    try:
        options = _parse_arguments(sys.argv[1:] if arguments is None else arguments)
        status, lines = _run_subcommand(options)
        text = "".join(f"{line}\n" for line in lines)
    except (DocumentError, GuestFileError, WrongHostListError, ServiceError) as error:
        return _print_failure(str(error))
    except KeyboardInterrupt as error:
        return _print_failure(str(error) or "interrupted")
    except Exception as error:
        # A job prolog must get an answer, whatever the state of this machine.
        return _print_failure(f"this machine cannot be read: {type(error).__name__}: {error}")
    return _write_output(text, status)


def _write_output(text: str, status: int) -> int:
    """Write the output; the status is a failure if the output could not be written completely."""
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
        cause = error.strerror or str(error)
        return _print_failure(f"the output was not read to its end, or cannot be written: {cause}")
    return status


def _print_failure(text: str) -> int:
    line = " ".join(text.split())
    with contextlib.suppress(OSError):
        print(f"nova-hpc-guest: {line}".encode("ascii", "replace").decode(), file=sys.stderr)
    return UNKNOWN


def _run_subcommand(options: _GuestOptions) -> tuple[int, Iterable[str]]:
    """Run the chosen subcommand; return its exit status and the lines to print at the end."""
    if options.complete is not None:
        return GOOD, options.complete()
    if options.command == "gpu":
        from .gpu.command import run_gpu

        return run_gpu(options.gpu)
    if options.command == "accept":
        from .accept.session import run_accept

        return run_accept(options.root, options.accept)
    if options.command == "pkey":
        return _report_pkeys(options)
    if options.command == "cluster":
        return _refresh_cluster(options)
    try:
        data, promise = document.read_guest_document(options.root)
    except NoDocumentError:
        if options.command != "install":
            raise
        install.forget_installed(options.root)
        shared_memory.forget_shared_memory(options.root)
        if not options.if_present:
            raise
        return GOOD, ()
    real = machine.read_machine(options.root, promise.shared_memory)
    if options.command == "install":
        report = install.install_files(options.root, promise, data, real, options.profile)
        if options.shared:
            report += shared_memory.install_shared_memory(options.root, promise, real.segment)
        return GOOD, () if options.quiet else report
    if options.command == "topology":
        return GOOD, _report_topology(options, promise, real)
    if options.command == "peers":
        return GOOD, _report_peers(options, promise, real)
    ports = pkeys.read_ib_ports(options.root, real.functions)
    more = _check_disks(options, promise, real) if options.command == "check" else []
    result = compare_with_machine(promise, real, options.wishes, ports, more)
    status = GOOD if result.good or options.command == "show" else WRONG
    if options.as_json:
        return status, (json.dumps(show.build_report_data(promise, result), indent=2),)
    if options.command == "show":
        return status, show.format_promise_tree(promise, result)
    return status, _report_findings(promise, result, options.quiet)


def _check_disks(
    options: _GuestOptions, promise: GuestDocument, real: machine.GuestMachine
) -> list[GuestFinding]:
    """Read sampled blocks of the promised disks, and report disks not empty or unreadable."""
    places, _ = locate_devices(promise, real)
    found = [
        (device.number, places[device.number])
        for device in promise.devices
        if (device.class_code or "").startswith("0108") and device.number in places
    ]
    if not found or "disk" in options.wishes.skip:
        return []
    return [
        GuestFinding("disk", number, text, wrong)
        for number, function in found
        for text, wrong in disks.check_disk(options.root, function, options.wishes.empty_disks)
    ]


def _refresh_cluster(options: _GuestOptions) -> tuple[int, Iterable[str]]:
    """Write the files of the cluster's members from the metadata."""
    own, current = cluster_files.read_member_metadata(options.root, options.url)
    hosts = cluster_files.read_listed_hosts(own)
    if hosts is None:
        problem = "this machine's metadata have no host list of a cluster"
    elif not current and options.root.exists(cluster_files.HOSTS):
        problem = "the metadata service does not answer, and a list is there already"
    else:
        variables: dict[str, str] = {}
        with contextlib.suppress(DocumentError, GuestFileError):
            variables = pkeys.build_environment(_find_port_keys(options.root)).variables
        report = cluster_files.write_cluster_files(options.root, hosts, own.public_keys, variables)
        return GOOD, () if options.quiet else report
    if not options.if_present:
        raise DocumentError(problem)
    return GOOD, ()


def _report_pkeys(options: _GuestOptions) -> tuple[int, Iterable[str]]:
    keys = _find_port_keys(options.root)
    status = WRONG if any(key.missing for key in keys) else GOOD
    if status == GOOD and any(key.problem for key in keys):
        status = UNKNOWN
    if options.as_json:
        return status, (pkeys.format_port_keys_json(keys),)
    if options.as_environment:
        return status, pkeys.format_environment(keys)
    return status, pkeys.format_port_keys(keys)


def _find_port_keys(root: Root) -> tuple[pkeys.PortKey, ...]:
    """Find the P_Keys of the ports; without a document only as far as their tables show them.

    :raises DocumentError: the machine has no port.
    """
    functions = machine.read_machine(root).functions
    ports = pkeys.read_ib_ports(root, functions)
    if not ports:
        raise DocumentError("this machine has no InfiniBand port: is its driver loaded?")
    devices: tuple[document.GuestDevice, ...] = ()
    places: dict[int, machine.GuestFunction] = {}
    with contextlib.suppress(NoDocumentError):
        _, promise = document.read_guest_document(root)
        devices = promise.devices
        places, _ = locate_devices(promise, machine.GuestMachine(functions, (), {}))
    return pkeys.find_port_keys(ports, devices, places)


def _report_topology(
    options: _GuestOptions, promise: GuestDocument, real: machine.GuestMachine
) -> Iterable[str]:
    topology.check_place_known(promise)
    places, _ = locate_devices(promise, real)
    if options.as_json:
        return (json.dumps(topology.build_place_data(promise, places), indent=2),)
    if options.slurm is not None:
        return (topology.format_slurm_place(promise, *options.slurm),)
    return topology.format_place_lines(promise, places)


def _report_peers(
    options: _GuestOptions, promise: GuestDocument, real: machine.GuestMachine
) -> Iterable[str]:
    segment = peers.require_segment(promise, real.segment)
    if options.as_json:
        return (json.dumps(peers.build_peers_data(*segment), indent=2),)
    return peers.format_peers(*segment)


def _report_findings(promise: GuestDocument, result: Result, quiet: bool) -> Iterator[str]:
    for finding in result.findings:
        if finding.wrong or not quiet:
            about = "" if finding.device is None else f"{promise.devices[finding.device].name}: "
            mark = "WRONG" if finding.wrong else "note"
            yield f"{mark} {finding.kind}: {about}{finding.text}"
    if result.good and not quiet:
        yield (
            f"As promised: {len(promise.devices)} devices, {len(promise.cells)} NUMA nodes, "
            f"topology {promise.topology}."
        )


class _GuestParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Name the mistake and the help, and end the command."""
        self.exit(UNKNOWN, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def build_parser() -> tuple[
    argparse.ArgumentParser, argparse.ArgumentParser | None, argparse.ArgumentParser | None
]:
    """Return the parser of the command, that of ``accept`` and that of ``gpu``.

    The last two are None in user data, which lack these subcommands.
    """
    common = _GuestParser(add_help=False)
    common.add_argument(
        "--root", default="/", metavar="DIR", help="directory that holds sys (default: /)"
    )
    parser = _GuestParser(
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
    peer_shower = commands.add_parser(
        "peers", parents=[common], help="print which servers share this machine's memory"
    )
    for subparser in (shower, checker, peer_shower):
        subparser.add_argument("--format", choices=("text", "json"), default="text")
    _add_topology(commands.add_parser("topology", parents=[common], help=_TOPOLOGY))
    pkey_shower = commands.add_parser(
        "pkey",
        parents=[common],
        help="print the P_Keys of InfiniBand networks, and the environment of NCCL, UCX and MPI",
    )
    pkey_shower.add_argument(
        "--format",
        choices=("text", "json", "env"),
        default="text",
        help="env: lines that a shell evaluates",
    )
    refresher = commands.add_parser(
        "cluster", parents=[common], help="make the members of this machine's cluster known to it"
    )
    refresher.add_argument("verb", choices=("refresh",), help="refresh: from the metadata")
    refresher.add_argument(
        "--metadata-url", default=own_metadata.URL, metavar="URL", help=argparse.SUPPRESS
    )
    accepter = _add_accept(commands, common)
    sharer = _add_gpu(commands, common)
    with contextlib.suppress(ImportError):  # not in user data
        from .completion import add_completion

        add_completion(commands, parser)
    checker.add_argument(
        "--driver",
        action="append",
        default=[],
        type=_read_driver_rule,
        metavar="ROLE=NAME",
        help="driver that must be bound to the devices of a role, of vendor:product, or of * "
        "(default: any driver will do); may be repeated",
    )
    checker.add_argument(
        "--hugepages",
        action="append",
        default=[],
        type=_read_page_pool,
        metavar="SIZE=COUNT",
        help="pages that a pool must have at least, as in 1G=32; may be repeated",
    )
    checker.add_argument(
        "--skip",
        default=(),
        type=_read_skipped_kinds,
        metavar="KIND,...",
        help=f"leave out what this machine cannot have: {', '.join(KINDS[1:])}",
    )
    checker.add_argument(
        "--empty-disks",
        action="store_true",
        help="no disk was used yet, so data on one are wrong",
    )
    for subparser in (checker, installer, refresher):
        subparser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    for subparser in (installer, refresher):
        subparser.add_argument(
            "--if-present",
            action="store_true",
            help="a machine that was promised nothing is no error",
        )
    installer.add_argument(
        "--profile", action="store_true", help=f"also write {install.PROFILE} for login shells"
    )
    installer.add_argument(
        "--shared-memory",
        action="store_true",
        help="also make the memory usable that this machine shares with others of its server group",
    )
    return parser, accepter, sharer


def _parse_arguments(arguments: list[str]) -> _GuestOptions:
    parser, accepter, sharer = build_parser()
    parsed: Any = parser.parse_args(arguments)
    folder: str = getattr(parsed, "root", "/")
    form: str = getattr(parsed, "format", "text")
    if not os.path.isdir(folder):  # noqa: PTH112
        parser.error(f"--root {folder!a}: no such directory")
    return _GuestOptions(
        command=parsed.command,
        root=Root(folder),
        as_json=form == "json",
        quiet=getattr(parsed, "quiet", False),
        wishes=GuestWishes(
            dict(getattr(parsed, "driver", ())),
            dict(getattr(parsed, "hugepages", ())),
            getattr(parsed, "skip", ()),
            getattr(parsed, "empty_disks", False),
        ),
        if_present=getattr(parsed, "if_present", False),
        profile=getattr(parsed, "profile", False),
        slurm=(parsed.level, parsed.topology, parsed.below) if form == "slurm" else None,
        shared=getattr(parsed, "shared_memory", False),
        as_environment=form == "env",
        accept=_build_accept(accepter, parsed),
        gpu=_build_gpu(sharer, parsed),
        url=getattr(parsed, "metadata_url", own_metadata.URL),
        complete=getattr(parsed, "complete", None),
    )


def _add_accept(commands: Any, common: argparse.ArgumentParser) -> argparse.ArgumentParser | None:
    """Add the subcommand ``accept``, and return its parser; None in user data, which lacks it."""
    try:
        from .accept.options import add_accept_options
    except ImportError:
        return None
    accepter: argparse.ArgumentParser = commands.add_parser(
        "accept",
        parents=[common],
        help="measure whether this machine is as fast as it should be",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure whether this machine is as fast as it should be, and name the causes "
        "if it is not.\nThe baseline is another machine (--beside), a file of one (--baseline), or "
        "this machine itself\nwith one thing changed. Tools and programs run in turns; a verdict "
        "needs six pairs of runs.",
        epilog="exit status:\n  0  accepted\n  1  slow, or not as promised\n  2  refused, or not "
        "measurable\n  3  undecided\n\nexample:\n  nova-hpc-guest accept --probe lammps.ini "
        "\\\n      --beside 'ssh node2 nova-hpc-guest accept --sample'",
    )
    add_accept_options(accepter)
    return accepter


def _build_accept(accepter: argparse.ArgumentParser | None, parsed: Any) -> Any:
    if accepter is None or parsed.command != "accept":
        return None
    from .accept.options import build_accept_options

    return build_accept_options(accepter, parsed)


def _add_gpu(commands: Any, common: argparse.ArgumentParser) -> argparse.ArgumentParser | None:
    """Add the subcommand ``gpu``, and return its parser; None in user data, which lacks it."""
    try:
        from .gpu.command import add_gpu_options
    except ImportError:
        return None
    sharer: argparse.ArgumentParser = commands.add_parser(
        "gpu",
        help="use a GPU of another server, or serve this one's",
        epilog="Exit status of run: the job's own; 75 if the share went away, 2 if there is none.",
    )
    add_gpu_options(sharer, common)
    return sharer


def _build_gpu(sharer: argparse.ArgumentParser | None, parsed: Any) -> Any:
    if sharer is None or parsed.command != "gpu":
        return None
    from .gpu.command import build_gpu_options

    return build_gpu_options(sharer, parsed)


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
        type=_read_slurm_word,
        default=topology.DEFAULT,
        metavar="NAME",
        help=f"with --format slurm: name of Slurm's topology (default: {topology.DEFAULT})",
    )
    parser.add_argument(
        "--below",
        type=_read_slurm_word,
        metavar="SWITCH",
        help="with --format slurm: print the path from this switch of Slurm's, which makes what "
        "it has not of it",
    )


def _read_slurm_word(text: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,80}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!a} is no word of letters, digits and -_.")
    return text


def _read_driver_rule(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\w.:*-]+)=([\w.-]+)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!a} is not like gpu=nvidia")
    return match[1], match[2]


def _read_page_pool(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})([KMG])=(\d{1,9})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!a} is not like 1G=32")
    return int(match[1]) * _UNITS[match[2]], int(match[3])


def _read_skipped_kinds(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in KINDS[1:]:
            raise argparse.ArgumentTypeError(f"{word!a} is not one of {', '.join(KINDS[1:])}")
    return words


if __name__ == "__main__":
    sys.exit(main())
