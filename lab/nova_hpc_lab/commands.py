# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc lab``: a real cloud with virtual HPC nodes on one machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from cliff.command import Command

from nova_hpc_common.outside.text import printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from nova_hpc_lab.cloud import Cloud

# The commands import the lab's own modules only when they run: these load the clients of a whole
# cloud, which "nova-hpc --help" does not need.

_PIPE_WIDTH = 160


def _number(least: int, most: int) -> _Number:
    return _Number(least, most)


class _Number:
    """An argparse type: a whole number within limits."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def __call__(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and self._least <= int(text) <= self._most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self._least} to {self._most}"
            )
        return int(text)


class _LabCommand(Command):
    """The common part of the lab's commands."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; a missing Python module gives an error with the cure."""
        try:
            return int(super().run(parsed_args) or 0)
        except ModuleNotFoundError as err:
            if (err.name or "").startswith("nova_hpc"):
                raise
            raise RuntimeError(
                f"the Python module {err.name} is not installed; install all that the lab"
                " needs: pip install nova_hpc*.whl"
            ) from err

    def existing(self) -> Cloud:
        """Open the lab that exists.

        :raises LabError: there is none.
        """
        from nova_hpc_lab import cloud
        from nova_hpc_lab.state import Paths

        return cloud.existing(Paths.from_environment())

    def console(self) -> Console:
        """Return the console for tables; for a pipe, it is wide enough for all of them."""
        from nova_hpc_common.output.printing import InertConsole

        # The lab's texts have markup; texts of others are escaped when they are inserted.
        found = InertConsole(file=self.app.stdout, markup=True)
        if found.is_terminal:
            return found
        return InertConsole(file=self.app.stdout, markup=True, width=_PIPE_WIDTH)


class Up(_LabCommand):
    """Start a real OpenStack cloud with virtual HPC nodes on this machine.

    Keystone, Placement, Glance, Neutron and Nova listen on the loopback only,
    with random passwords. What runs already is left alone, and what an earlier
    attempt left unfinished is finished. The first start builds the image of
    the nodes, which takes some minutes; later ones find it in the cache.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--nodes",
            type=_number(0, 99),
            metavar="N",
            help="number of virtual nodes (default: 1, or as before)",
        )
        parser.add_argument(
            "--shape",
            metavar="FILE",
            help="what the nodes are made of: a YAML file, or the name of a sample"
            " (default: two-socket, or as before)",
        )
        parser.add_argument(
            "--base-port",
            type=_number(1, 65535),
            metavar="PORT",
            help="first of the loopback ports of the services (default: 18700, or as before)",
        )
        parser.add_argument(
            "--fabric",
            action=argparse.BooleanOptionalAction,
            help="have a simulated InfiniBand fabric with a subnet manager, on which networks of"
            " the adapters that are kept for ports are partitions (default: no, or as before)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Bring the lab up; 0, or an exception with the reason."""
        from nova_hpc_lab import cloud, progress, state
        from nova_hpc_lab.state import Paths

        paths = Paths.from_environment()
        wishes = cloud.Wishes(
            parsed_args.nodes, parsed_args.shape, parsed_args.base_port, parsed_args.fabric
        )
        with state.locked(paths):
            found = cloud.prepared(paths, wishes)
            try:
                with progress.display() as shown:
                    found.up(shown)
            except KeyboardInterrupt:
                print(
                    "Interrupted. Go on with: nova-hpc lab up, or stop what runs with:"
                    " nova-hpc lab down",
                    file=sys.stderr,
                )
                raise
        clients = paths.config / "clouds.yaml"
        print(f"The lab is up. For the openstack command:\n  {_export(str(clients))}")
        return 0


def _export(path: str) -> str:
    return f"export OS_CLIENT_CONFIG_FILE={path} OS_CLOUD=nova-hpc-lab"


class Status(_LabCommand):
    """Show every service with its port, process and health, and each node with its devices.

    The exit status is 0 if all of it works, else 1.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "-f",
            "--format",
            choices=("table", "json"),
            default="table",
            help="for people or for machines (default: table)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the state of the lab as tables or JSON; return 0 if all parts are well, else 1."""
        from nova_hpc_lab import report

        found = report.gather(self.existing())
        if parsed_args.format == "json":
            print(json.dumps(found.document(), indent=2))
        else:
            report.show(found, self.console())
        return 0 if found.healthy else 1


class Demo(_LabCommand):
    """Create a server from an HPC flavor and have its guest prove what it got.

    Runs the ordinary openstack commands, and prints them; then shows side by
    side what was asked, what the scheduler chose, what libvirt's domain says
    and what the guest itself reports. After that, two requests that must be
    refused. The exit status is 0 only if all agree.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--keep", action="store_true", help="leave the server running at the end"
        )
        parser.add_argument(
            "--server",
            metavar="NAME",
            help="compare this server, which is there already; creates nothing and removes nothing",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run the demonstration; 1 if accounts disagree."""
        from nova_hpc_lab import demo

        good = demo.run(self.existing(), self.console(), parsed_args.server, parsed_args.keep)
        return 0 if good else 1


class Ssh(_LabCommand):
    """Run a command in a virtual node as root, or open a shell there."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the arguments of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("node", nargs="?", default="hpc1", help="its name (default: hpc1)")
        parser.add_argument(
            "remote", nargs=argparse.REMAINDER, metavar="COMMAND", help="default: a shell"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Replace this process by the SSH client."""
        machine = self.existing().machine(parsed_args.node)
        remote = parsed_args.remote
        argv = machine.ssh_argv(remote[1:] if remote[:1] == ["--"] else remote)
        sys.stdout.flush()
        return os.execvp(argv[0], argv)


class Logs(_LabCommand):
    """Show the logs of a service or a node, or which there are."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the arguments of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "name", nargs="?", help="of a service or a node; without it, the names are listed"
        )
        parser.add_argument(
            "-n",
            "--lines",
            type=_number(1, 1_000_000),
            default=50,
            metavar="N",
            help="how many of the last lines (default: 50)",
        )
        parser.add_argument("--follow", action="store_true", help="go on with what is added")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Show the printable form of ``tail``'s output: guests and firmware may write any bytes."""
        cloud = self.existing()
        logs = cloud.logs()
        if parsed_args.name is None:
            for name, files in logs.items():
                print(f"{name}: {' '.join(map(str, files))}")
            return 0
        if parsed_args.name not in logs:
            raise RuntimeError(
                f"there is no log of {parsed_args.name!r}; there are: {', '.join(logs)}"
            )
        there = [str(path) for path in logs[parsed_args.name] if path.exists()]
        if not there:
            print(f"{parsed_args.name} has not written anything yet")
            return 0
        options = ["-F"] if parsed_args.follow else []
        argv = ["tail", "-n", str(parsed_args.lines), *options, "--", *there]
        tail = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace")
        try:
            for line in tail.stdout or ():
                print(printable_lines(line), end="", flush=True)
            return tail.wait()
        finally:
            # With --follow, tail would wait forever.
            tail.terminate()
            tail.wait()


class Down(_LabCommand):
    """Stop the nodes and all services; nothing is left running.

    Servers, images and databases are kept for the next start, unless they are
    purged.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--purge",
            action="store_true",
            help="remove databases, logs, passwords and nodes, too; the cache of images stays",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Stop everything; a missing lab is not an error."""
        from nova_hpc_lab import cloud, state
        from nova_hpc_lab.errors import LabError
        from nova_hpc_lab.state import Paths

        paths = Paths.from_environment()
        if not paths.state.exists():
            print(f"There is no lab in {paths.state}.")
            return 0
        with state.locked(paths):
            try:
                cloud.existing(paths).down(lambda text: print(text, flush=True))
            except LabError as err:
                # Processes have to end even if the settings are damaged.
                print(f"nova-hpc: {err}", file=sys.stderr)
                cloud.end_strays(paths)
                if not parsed_args.purge:
                    return 1
            if parsed_args.purge:
                cloud.purge(paths)
                print(f"Removed {paths.state}.")
        return 0
