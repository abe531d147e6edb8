# SPDX-License-Identifier: Apache-2.0
"""Options of ``nova-hpc-guest gpu``, and the work of each verb."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .. import own_metadata
from ..files import Root
from . import (
    announcements,
    attached,
    engines,
    lifeline,
    mps,
    packet_filter,
    port_rule,
    records,
    serving,
    tunnel,
    units,
)
from .engines import EngineError
from .job import run_job
from .lifeline import Hello
from .system import Programs

GOOD: Final = 0
WRONG: Final = 1
UNKNOWN: Final = 2
#: Rounds between two announcements, after the first few: 15 minutes.
_ANNOUNCES: Final = 90
_FIRST: Final = 3
_CONSOLE: Final = "/dev/console"
#: Seconds between two looks. With Nova's 15, a change takes effect within 30.
_INTERVAL: Final = 10.0


class GpuOptions(NamedTuple):
    """The parsed options of ``nova-hpc-guest gpu``."""

    verb: str
    root: Root
    once: bool = False
    url: str = own_metadata.URL
    console: str = _CONSOLE
    job: tuple[str, ...] = ()
    slot: Any = None


def add_gpu_options(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``nova-hpc-guest gpu`` and their options."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    runner = verbs.add_parser(
        "run",
        parents=[common],
        help="run a job on the share that is attached; it ends with status 75 if the share goes",
    )
    runner.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the job")
    verbs.add_parser("show", parents=[common], help="print what is attached, or what is served")
    verbs.add_parser("env", parents=[common], help="print the job's environment, for eval")
    for verb, text in (
        ("serve", "serve the slots of this GPU server, as its metadata say; a service"),
        ("client", "follow this machine's share, as its metadata say; a service"),
    ):
        follower = verbs.add_parser(verb, parents=[common], help=text)
        follower.add_argument("--once", action="store_true", help="look once and end")
        follower.add_argument("--metadata-url", default=own_metadata.URL, help=argparse.SUPPRESS)
        follower.add_argument("--console", default=_CONSOLE, help=argparse.SUPPRESS)
    slot = verbs.add_parser("slot", help="run the engine of one slot; serve writes units for it")
    for word in ("client", "peer", "bind", "engine", "release"):
        slot.add_argument(f"--{word}", required=True)
    slot.add_argument("--port", required=True, type=int)
    slot.add_argument("--ports", default=1, type=int)
    slot.add_argument("--idle", default=lifeline.IDLE, type=float)
    slot.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND")

    verbs.add_parser("filter", help="see whether this unit can send; serve starts a unit for it")


def build_gpu_options(parser: argparse.ArgumentParser, parsed: Any) -> GpuOptions:
    """Convert argparse's result to options; a contradiction ends the command with its usage."""
    job = tuple(getattr(parsed, "job", ()))
    job = job[1:] if job[:1] == ("--",) else job
    if parsed.verb in ("run", "slot") and not job:
        parser.error(f"gpu {parsed.verb} needs a command: -- COMMAND")
    return GpuOptions(
        parsed.verb,
        Root(getattr(parsed, "root", "/")),
        getattr(parsed, "once", False),
        getattr(parsed, "metadata_url", own_metadata.URL),
        getattr(parsed, "console", _CONSOLE),
        job,
        parsed if parsed.verb == "slot" else None,
    )


def run_gpu(options: GpuOptions) -> tuple[int, Iterable[str]]:
    """Run a subcommand of ``gpu``; return its exit status and the lines to print."""
    try:
        if options.verb == "run":
            return _run_job(options), ()
        if options.verb == "env":
            return GOOD, attached.format_exports(attached.read_environment(options.root))
        if options.verb == "show":
            return _show(options.root)
        if options.verb == "slot":
            return _run_slot(options), ()
        if options.verb == "filter":
            return packet_filter.try_to_send(), ()
        return _follow(options, Programs()), ()
    except (attached.NoShareError, lifeline.LifelineError, EngineError) as error:
        print(f"nova-hpc-guest: {error}", file=sys.stderr)
        return UNKNOWN, ()


def _run_job(options: GpuOptions) -> int:
    environment = attached.read_environment(options.root)
    share = environment["NOVA_HPC_GPU_SHARE"]
    address, port = environment["NOVA_HPC_GPU_ADDRESS"], int(environment["NOVA_HPC_GPU_PORT"])
    line, hello = lifeline.open_lifeline(address, port)
    with line:
        _check_hello(environment, hello)
        return run_job(options.job, environment, line, share)


def _check_hello(environment: Mapping[str, str], hello: Hello) -> None:
    """Check that the slot that answers is this client's, and runs this client's engine.

    :raises EngineError: it is another client's slot, or another engine or release of it.
    """
    engine = environment["NOVA_HPC_GPU_ENGINE"]
    if hello.client != environment["NOVA_HPC_GPU_CLIENT"]:
        raise EngineError(f"the slot that answers is that of server {hello.client}")
    if hello.engine != engine:
        raise EngineError(f"the share serves the engine {hello.engine}, and not {engine}")
    match = environment.get("NOVA_HPC_GPU_MATCH", engines.EXACT)
    wrong = engines.explain_release_difference(
        engine, match, hello.release, environment["NOVA_HPC_GPU_RELEASE"]
    )
    if wrong is not None:
        raise EngineError(wrong)


def _run_slot(options: GpuOptions) -> int:
    slot = options.slot
    hello = lifeline.parse_hello(
        lifeline.format_hello(Hello(slot.client, slot.engine, slot.release))
    )
    place = lifeline.SlotPlace(slot.peer, slot.bind, slot.port, slot.ports)
    return lifeline.run_slot(hello, place, options.job, slot.idle)


def _show(root: Root) -> tuple[int, list[str]]:
    """Return status and lines about the attached share, its answer, or the served clients."""
    try:
        environment = attached.read_environment(root)
    except attached.NoShareError:
        names = root.names(units.FOLDER)
        clients = [client for client in map(units.client_of_unit, names) if client]
        if not clients:
            raise
        return GOOD, [f"serves server {client}" for client in clients]
    address, port = environment["NOVA_HPC_GPU_ADDRESS"], int(environment["NOVA_HPC_GPU_PORT"])
    lines = [
        f"attached to share {environment['NOVA_HPC_GPU_SHARE']} at {address} port {port}, "
        f"engine {environment['NOVA_HPC_GPU_ENGINE']} {environment['NOVA_HPC_GPU_RELEASE']}"
    ]
    try:
        line, hello = lifeline.open_lifeline(address, port)
    except lifeline.LifelineError as error:
        lines.append(str(error))
        if address == port_rule.SHARE_INSIDE:
            lines.append(
                "Each reboot of the share or of this machine makes a new key. If one of them was "
                "rebooted, attach it again: openstack hpc gpu attach SHARE SERVER --encrypt"
            )
        return WRONG, lines
    with line:
        _check_hello(environment, hello)
    return GOOD, [*lines, "the share answers"]


class _Follower:
    """The work of a round, and the lines of the rounds before."""

    def __init__(self, options: GpuOptions, programs: Programs) -> None:
        self.options, self.programs = options, programs
        self.rounds = 0
        self.said: Sequence[str] = ()
        self.key = self.public = ""
        self.memory = 0
        self.closed = packet_filter.PacketFilter()
        with contextlib.suppress(tunnel.TunnelError):
            self.key, self.public = tunnel.make_own_key(options.root, programs)
        if options.verb == "serve":
            self.memory = _read_gpu_memory(programs)

    def look(self) -> bool:
        """Follow this server's metadata for one round; return whether it went well."""
        options = self.options
        try:
            own = own_metadata.read_own_metadata(options.url)
        except own_metadata.ServiceError as error:
            return self._say([str(error)])
        if self.rounds < _FIRST or self.rounds % _ANNOUNCES == 0:
            self._announce(own.items)
        self.rounds += 1
        if options.verb == "serve":
            lines = serving.serve_once(
                *(options.root, self.programs, own.items, self.memory, self.key, self.closed)
            )
        else:
            lines = attached.follow_once(options.root, self.programs, own.id, own.items, self.key)
        return self._say(lines)

    def _say(self, lines: Sequence[str]) -> bool:
        if list(lines) != list(self.said):
            for line in lines:
                text = "".join(char if char.isprintable() else "?" for char in line)
                print(f"nova-hpc-guest: {text}", file=sys.stderr, flush=True)
        self.said = lines
        return not lines

    def _announce(self, items: Mapping[str, str]) -> None:
        concerns = records.CLIENT_KEY in items or records.SHARE_KEY in items
        if not concerns and self.rounds >= _FIRST:
            return
        releases, unlimited = _find_engines(self.options.root)
        lines = announcements.format_announcements(
            self.options.root.text(announcements.BOOT_ID) or "",
            *(self.public, releases, self.memory, unlimited),
        )
        with contextlib.suppress(OSError):
            console = os.open(self.options.console, os.O_WRONLY | os.O_NOCTTY | os.O_APPEND)
            try:
                # The blank line ends the line that a login prompt has begun.
                os.write(console, ("\r\n" + "".join(f"{one}\r\n" for one in lines)).encode())
            finally:
                os.close(console)


def _follow(options: GpuOptions, programs: Programs) -> int:
    follower = _Follower(options, programs)
    if options.once:
        return GOOD if follower.look() else WRONG
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _, __: told.set())
    while not told.is_set():
        follower.look()
        told.wait(_INTERVAL)
    return GOOD


def _find_engines(root: Root) -> tuple[dict[str, str], list[str]]:
    """Map engine of this image to release, and engines that cannot limit the memory of a slot."""
    names = {*engines.SHIPPED}
    for name in root.names(engines.FOLDER):
        if name.endswith(".ini"):
            names.add(name[: -len(".ini")])
    found, unlimited = {}, []
    for name in sorted(names):
        with contextlib.suppress(ValueError):
            engine = engines.load_engine(root, name)
            found[name] = engines.find_release(root, engine)
            if mps.explain_no_limit(root, engine) is not None:
                unlimited.append(name)
    return found, unlimited


def _read_gpu_memory(programs: Programs) -> int:
    """Read the MiB of the smallest GPU, by NVIDIA's own tool; 0 if unknown."""
    words = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    text = programs.try_run("nvidia-smi", *words) or ""
    sizes = [int(line) for line in text.split("\n") if re.fullmatch(r" *[1-9][0-9]{1,7} *", line)]
    return min(sizes, default=0)
