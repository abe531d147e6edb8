"""``nova-hpc explain``: would it fit, where, with which devices, and why not."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from cliff.command import Command

from nova_hpc.cli import cloud, explain_show, values
from nova_hpc.cloud.explain import document as explain_document
from nova_hpc.cloud.explain import explain
from nova_hpc.cloud.explain.model import Past, Question, Report
from nova_hpc.cloud.explain.past import explain_server
from nova_hpc.cloud.snapshot import SnapshotError

_MISS: Final = 1
#: Exit status of bad input; argparse uses the same for bad options.
_BAD_INPUT: Final = 2


class Explain(Command):
    """Explain where a server of a flavor would go, with which devices, or why nowhere.

    Reads what the scheduler reads (or a snapshot of it) and asks the same
    functions. The exit status is 0 if the servers fit, 1 if not, and 2 if the
    question cannot be answered. Changes nothing.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        what = parser.add_argument_group("the question")
        one = what.add_mutually_exclusive_group(required=True)
        one.add_argument("--flavor", metavar="FLAVOR", help="name or ID of a flavor")
        one.add_argument(
            "--server",
            metavar="SERVER",
            help="name or UUID of a server: explain what was decided for it",
        )
        what.add_argument(
            "--image",
            metavar="IMAGE",
            help="with --flavor: name or ID of the image, whose properties count, too",
        )
        what.add_argument(
            "--count",
            type=values.Count(1),
            metavar="N",
            help="with --flavor: so many servers, one after the other (default: 1)",
        )
        what.add_argument("--host", metavar="HOST", help="with --flavor: only this host")
        cloud.add_arguments(parser)
        parser.add_argument(
            "--format",
            choices=("table", "json"),
            default="table",
            help="for people or for machines (default: table)",
        )
        self._parser = parser
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the answer; 0 if it fits, 1 if not, 2 where there is no answer."""
        if parsed_args.server is not None:
            for option in ("image", "count", "host"):
                if getattr(parsed_args, option) is not None:
                    self._parser.error(f"--{option} needs --flavor")
        try:
            answer = _answer(parsed_args)
            if parsed_args.format == "json":
                sys.stdout.write(explain_document.dumps(answer))
            else:
                explain_show.show(answer)
            sys.stdout.flush()
        except SnapshotError as error:
            print(f"nova-hpc explain: {error}", file=sys.stderr)
            return _BAD_INPUT
        except BrokenPipeError:
            # The reader (head, less) went away: that is no error, but Python
            # would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(answer, Past) or answer.fits else _MISS


def _answer(args: argparse.Namespace) -> Report | Past:
    taken = cloud.read(args.snapshot, args.config, args.image)
    if args.server is not None:
        return explain_server(taken, args.server)
    return explain(taken, Question(args.flavor, args.image, args.count or 1, args.host))
