# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc simulate snapshot``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nova_hpc_tools.base import CommandAnswer, CommandError, RecordCommand
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers
from nova_hpc_tools.snapshot import document as snapshot_document


class SaveSnapshot(RecordCommand):
    """Write the scheduler's data about the cloud to a file.

    The file is JSON. It holds host names, PCI addresses, the names and UUIDs of servers with
    devices, flavors and aliases, but no secrets. nova-hpc explain and nova-hpc simulate read it,
    here or elsewhere.
    """

    errors = (SnapshotError, OSError)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the arguments of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "file", type=Path, metavar="FILE", help="where to write it; - is standard output"
        )
        parser.add_argument(
            "--image",
            metavar="IMAGE",
            help="image (name or ID) with whose properties the flavors are read, too",
        )
        cloud_readers.add_snapshot_arguments(parser, snapshot=False)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Take a snapshot of the cloud and write it to the file or to standard output."""
        to_stdout = str(parsed_args.file) == "-"
        if to_stdout and parsed_args.formatter is not None:
            raise CommandError("-f describes the file: name one instead of -")
        taken = cloud_readers.obtain_snapshot(None, parsed_args.config, parsed_args.image)
        text = snapshot_document.dump_cloud_snapshot(taken)
        # Read the text again first: an unreadable file would be useless.
        snapshot_document.load_cloud_snapshot(text)
        if to_stdout:
            sys.stdout.write(text)
        else:
            parsed_args.file.write_text(text, encoding="utf-8")
        for problem in taken.problems:
            print(f"nova-hpc simulate snapshot: warning: {problem}", file=sys.stderr)
        devices = sum(len(node.devices) for node in taken.hosts)
        counts = (len(taken.hosts), devices, len(taken.servers), len(taken.flavors))
        if not to_stdout:
            words = ("host", "device", "server", "flavor")
            count_texts = [
                f"{number} {word}{'' if number == 1 else 's'}{' with devices' * (word == 'server')}"
                for number, word in zip(counts, words, strict=True)
            ]
            self.say(f"{parsed_args.file}: {', '.join(count_texts)}")
        return CommandAnswer(
            ("File", "Hosts", "Devices", "Servers", "Flavors"), (str(parsed_args.file), *counts)
        )
