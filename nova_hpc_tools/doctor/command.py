# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc doctor``: the faults of a node, a controller, Placement or a fleet.

The command imports its parts when it runs, for a quick ``--help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.doctor import doctor_options

if TYPE_CHECKING:
    from nova_hpc_tools.wire.findings import WireFinding

_COLUMNS: Final = ("Node", "Severity", "Check", "Seen", "Why", "Cure", "Docs")


class Doctor(ListCommand):
    """List faults, with the harm of each and its cure.

    Checks this machine or the capture of another one, the settings of its
    services, and its declaration. With --part cloud, checks the records of
    Nova and Placement of all nodes. Changes nothing without --restore-nvlink.
    With --merge, puts together the findings of many nodes. With --fleet,
    compares archives of many nodes; status 1 then means that an archive could
    not be read. With --nvlink, status 1 means that partitions and sets differ.
    Otherwise the exit status is 0 if there are notes at most, 1 if there are warnings,
    3 if there are errors, which keep servers from their devices or other teams
    from theirs, and 2 if nothing could be read.
    """

    acts_with = ("restore_nvlink",)

    @classmethod
    def list_errors(cls) -> tuple[type[Exception], ...]:
        """Return the exceptions that end the command with one line, imported late."""
        from nova_hpc_tools.doctor import examination, nvlink_partitions

        return (*examination.ERRORS, *nvlink_partitions.ERRORS)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        doctor_options.add_doctor_options(parser)
        doctor_options.add_advice_options(parser)
        parser.add_argument(
            "--others",
            action="store_true",
            help="run virt-host-validate and oslo-config-validator, too, and print their findings",
        )
        other_subject = parser.add_mutually_exclusive_group()
        other_subject.add_argument(
            "--merge",
            type=Path,
            metavar="DIR",
            help="put together what -f json has written on many nodes, one .json file each",
        )
        other_subject.add_argument(
            "--fleet",
            type=Path,
            nargs="+",
            metavar="DIR",
            help="compare nodes, and name the odd ones: archives of nova-hpc inventory --save, or "
            "directories of them",
        )
        other_subject.add_argument(
            "--nvlink",
            action="store_true",
            help="compare the partitions of the NVLink fabric with the NVLink sets of this node, "
            "and print the lines that [hpc]nvlink_set needs",
        )
        other_subject.add_argument(
            "--restore-nvlink",
            action="store_true",
            help="send the partitions of running servers to an NVLink manager that was "
            "restarted. nova-compute does the same at its next periodic update",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Examine the requested parts of the machine, and print the findings."""
        import attrs

        from nova_hpc_tools.doctor import (
            examination,
            fleet_findings,
            nvlink_partitions,
            other_checkers,
        )
        from nova_hpc_tools.site import service_settings
        from nova_hpc_tools.site.findings import exit_status_of
        from nova_hpc_tools.wire import findings as document

        args = parsed_args
        if args.nvlink:
            return nvlink_partitions.compare_partitions(args.config)
        if args.restore_nvlink:
            return nvlink_partitions.restore_partitions(args.config)
        if args.fleet is not None:
            from nova_hpc_tools.inventory.fleet_comparison import compare_fleet

            return compare_fleet(args.fleet, self._name)
        if args.merge is not None:
            return self._answer(
                *fleet_findings.merge_fleet_findings(args.merge, args.layout), layout=args.layout
            )
        if args.others and args.root != Path("/"):
            raise CommandError("--others looks at this machine, and --root names another one")
        machine = examination.examine_this_machine(args)
        findings = [*machine.found]
        if args.others:
            findings += other_checkers.run_other_checkers(
                service_settings.config_files_of(args.config), libvirt=machine.libvirt
            )
        wire_findings = tuple(
            fleet_findings.convert_finding(finding, args.layout, machine.node)
            for finding in findings
        )
        if not machine.is_set_up:
            self.say(
                f"{machine.node or 'This machine'} is not set up as a node: [pci]device_spec of "
                "its nova-compute names no device. nova-hpc configure sets a node up; a "
                "controller is looked at with --part controller.\n"
            )
        everything = document.Findings(machine.node, wire_findings, machine.aliases)
        rows = [
            (finding.node or machine.node, wire_finding)
            for finding, wire_finding in zip(findings, wire_findings, strict=True)
        ]
        answer = self._answer(rows, exit_status_of(findings), machine.is_set_up, layout=args.layout)
        return attrs.evolve(answer, document=lambda: document.write_findings(everything))

    def _answer(
        self,
        rows: Sequence[tuple[str | None, WireFinding]],
        code: int,
        set_up: bool = True,
        *,
        layout: str,
    ) -> CommandAnswer:
        from nova_hpc_tools.doctor.finding_text import format_finding_lines

        if not code and set_up:
            self.say("Nothing is wrong.")
        for line in format_finding_lines(rows, layout):
            self.say(line)
        cells = [
            (
                node or "",
                finding.severity,
                finding.check,
                finding.seen,
                finding.why,
                finding.cure,
                finding.docs,
            )
            for node, finding in rows
        ]
        return CommandAnswer(_COLUMNS, cells, status=code)
