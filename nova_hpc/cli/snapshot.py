"""``nova-hpc simulate snapshot``: keep a cloud as it is now in a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from cliff.command import Command

from nova_hpc.cli import cloud
from nova_hpc.cloud.snapshot import SnapshotError
from nova_hpc.cloud.snapshot import document as snapshot_document

#: Exit status of bad input; argparse uses the same for bad options.
_BAD_INPUT: Final = 2


class SaveSnapshot(Command):
    """Write what the scheduler knows of the cloud to a file.

    The file is JSON. It holds host names, PCI addresses, the names and UUIDs
    of servers with devices, flavors and aliases, but no secrets.
    nova-hpc explain and nova-hpc simulate read it, here or elsewhere.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "file", type=Path, metavar="FILE", help="where to write it; - is standard output"
        )
        parser.add_argument(
            "--image",
            metavar="IMAGE",
            help="image (name or ID) with whose properties the flavors are read, too",
        )
        cloud.add_arguments(parser, snapshot=False)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Take and write it; 0, or 2 after one line that says what is wrong."""
        try:
            taken = cloud.read(None, parsed_args.config, parsed_args.image)
            text = snapshot_document.dumps(taken)
            # A file that nobody could read again is worth nothing.
            snapshot_document.loads(text)
            if str(parsed_args.file) == "-":
                sys.stdout.write(text)
            else:
                parsed_args.file.write_text(text, encoding="utf-8")
        except (SnapshotError, OSError) as error:
            print(f"nova-hpc simulate snapshot: {error}", file=sys.stderr)
            return _BAD_INPUT
        for problem in taken.problems:
            print(f"nova-hpc simulate snapshot: warning: {problem}", file=sys.stderr)
        if str(parsed_args.file) != "-":
            devices = sum(len(node.devices) for node in taken.hosts)
            print(
                f"{parsed_args.file}: {len(taken.hosts)} hosts, {devices} devices, "
                f"{len(taken.servers)} servers with devices, {len(taken.flavors)} flavors"
            )
        return 0
