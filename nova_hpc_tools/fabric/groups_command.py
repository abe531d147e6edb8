# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric groups`` and ``reap``: Placement's records of server groups."""

from __future__ import annotations

import argparse

import attrs

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools import base
from nova_hpc_tools.base import CommandAnswer
from nova_hpc_tools.site import source_options
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers
from nova_hpc_tools.snapshot.group_fleet import GroupLine

#: Exit status if a domain has providers below it that are not ours.
_STRANGE = 1


class ListFabricGroups(base.ListCommand):
    """List the server groups that have a domain of the fabric.

    Each has a record in Placement, and each member a ticket; LEFTOVER are tickets whose
    servers are no more. A group that is "undecided" has a scheduler at it, or one that died
    there.
    """

    acts_with = ()
    errors = (SnapshotError,)
    for_people = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_config_options(parser, "Nova's scheduler")
        parser.add_argument("--group", metavar="UUID", help="only this server group")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """List the server groups with a fabric domain, from Placement and Nova's database."""
        lines = [
            line
            for line in cloud_readers.read_fabric_groups(parsed_args.config)
            if parsed_args.group in (None, line.group)
        ]
        names = [field.name for field in attrs.fields(GroupLine)]
        return CommandAnswer(
            columns=[name.capitalize() for name in names],
            rows=[attrs.astuple(line) for line in lines],
            nothing="No server group has a domain of the fabric.",
        )


class ReapFabric(base.RecordCommand):
    """Delete the records in Placement of server groups without members.

    Schedulers do the same before they decide about a domain, so this is for records that no
    scheduler reads any more. It is safe at any time: a scheduler that is about to use such a
    record starts its decision again.
    """

    errors = (SnapshotError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_config_options(parser, "Nova's scheduler")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Delete dead records of server groups below all fabric domains; print their numbers."""
        sweep = cloud_readers.reap_fabric(parsed_args.config)
        for stranger in sweep.strange:
            self.app.LOG.error(
                "%s is below a domain and not ours: look who made it", printable_text(stranger)
            )
        swept = sweep.swept
        kinds = ("ticket", "record", "room", "empty domain")
        numbers = (swept.tickets, swept.records, swept.rooms, sweep.domains)
        gone = [
            f"{number} {kind}{'' if number == 1 else 's'}"
            for kind, number in zip(kinds, numbers, strict=True)
            if number
        ]
        self.say(f"Taken away: {', '.join(gone)}." if gone else "There was nothing to take away.")
        return CommandAnswer(
            columns=("Tickets", "Records", "Rooms", "Domains", "Strange"),
            rows=(swept.tickets, swept.records, swept.rooms, sweep.domains, len(sweep.strange)),
            status=_STRANGE if sweep.strange else 0,
        )
