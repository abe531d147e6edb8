# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc help check``: the meaning of a check of the doctor."""

from __future__ import annotations

import argparse
import difflib
from typing import Final

from nova_hpc_tools.base import CommandAnswer, CommandError, RecordCommand
from nova_hpc_tools.doctor import doctor_options

_COLUMNS: Final = ("Check", "Severity", "Why", "Cure", "Page")


class ExplainCheck(RecordCommand):
    """Explain a check of nova-hpc doctor: the harm of its fault, the cure, and the page.

    NAME stands in brackets behind each finding of nova-hpc doctor.
    """

    acts_with = ()

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="NAME", help="the check, like iommu-off")
        parser.add_argument(
            "--docs",
            metavar="URL",
            help="address of the documentation at your site: the page becomes a whole URL",
        )
        doctor_options.add_advice_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Print the meaning of a check of the doctor, its cure and its page."""
        from nova_hpc_tools.doctor.check_cures import CURES
        from nova_hpc_tools.site.findings import CHECKS, DoctorFinding
        from nova_hpc_tools.site.layout_cures import render_cure

        name = parsed_args.name.strip("[]")
        if name not in CHECKS:
            near = difflib.get_close_matches(name, CHECKS, n=3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise CommandError(f"there is no check {name!r}{hint}")
        check, page = CHECKS[name], DoctorFinding(name, "", "").anchor
        if parsed_args.docs:
            page = f"{parsed_args.docs.rstrip('/')}/{page}"
        self.say(f"{name} ({check.severity.word})")
        self.say(f"  {check.why}")
        cure = render_cure(CURES[name], parsed_args.layout)
        self.say(f"  Cure: {cure}")
        self.say("  nova-hpc doctor names the case, with the line or the command.")
        self.say(f"  Page: {page}")
        values = (name, check.severity.word, check.why, cure, page)
        return CommandAnswer(_COLUMNS, values)
