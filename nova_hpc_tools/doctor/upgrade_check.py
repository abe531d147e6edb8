# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc status upgrade check``: whether this machine's services may restart with the release.

The output and exit status are the same as with ``nova-status upgrade check``, by the same library.
Operators run it after the upgrade of this project and before the restart of its services.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, Final

from oslo_config import cfg

from nova_hpc.from_nova import nova_sources
from nova_hpc.from_nova.nova_sources import DIGESTS
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.doctor import facts_service, nova_release
from nova_hpc_tools.doctor.checks_service import shim_finding
from nova_hpc_tools.doctor.doctor_options import CONTROLLER, NODE, add_doctor_options
from nova_hpc_tools.doctor.examination import ERRORS, examine_this_machine
from nova_hpc_tools.site import service_settings
from nova_hpc_tools.site.findings import DoctorFinding, Severity
from nova_hpc_tools.site.layout_cures import render_cure

SUCCESS, WARNING, FAILURE = 0, 1, 2
_WORST: Final[Mapping[Severity, int]] = {
    Severity.NOTE: SUCCESS,
    Severity.WARNING: WARNING,
    Severity.ERROR: FAILURE,
}

_SHIM: Final = "shim"
_HINTS: Final = "nova-hints"
_WRONG: Final[tuple[type[Exception], ...]] = (CommandError, *ERRORS)

#: The result of a check: its code, and the text with the work to do.
Result = tuple[int, str | None]


class UpgradeCheck(ListCommand):
    """Check whether the services of this machine may be restarted with this release.

    Checks the settings of the services and the declaration as nova-hpc doctor does, the
    node's ledger, the shim of the driver, and whether the functions of Nova that this
    project wraps are those that it was written for. Changes nothing. The exit status is 0
    if all is well, 1 if there are warnings, and 2 if a service would not start, or not
    serve.
    """

    acts_with = ()
    errors = ERRORS

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_doctor_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Run the checks, and print the results in the format of the library."""
        library = _import_upgradecheck()
        checks = [("Settings and declaration", _check_settings(parsed_args))]
        if NODE in (parsed_args.part or [NODE]):
            checks.append(("Ledger", _check_ledger(parsed_args.config)))
            if facts_service.is_this_machine(parsed_args.root):
                checks.append(("Shim of the driver", _check_shim(parsed_args.config)))
        with_nova = not {NODE, CONTROLLER}.isdisjoint(parsed_args.part or [NODE])
        if with_nova and facts_service.is_this_machine(parsed_args.root):
            checks.append(("Functions of Nova", _check_nova_functions()))
            fixes = _result_of_findings(filter(None, [nova_release.find_unfixed_nova_here()]))
            checks.append(("Fixes of Nova", fixes))
        results = [
            (name, library.Result(library.Code(code), text)) for name, (code, text) in checks
        ]
        words = library.UPGRADE_CHECK_MSG_MAP
        commands = library.UpgradeCommands()
        commands.display_title = "Upgrade Check Results of nova-hpc"
        commands._upgrade_checks = tuple(
            (name, lambda _, result=result: result) for name, result in results
        )
        return CommandAnswer(
            ("Check", "Result", "Details"),
            [(name, str(words[result.code]), result.details or "") for name, result in results],
            status=max(int(result.code) for _, result in results),
            show=lambda: commands.check() and None,
        )


def _import_upgradecheck() -> Any:
    try:
        from oslo_upgradecheck import upgradecheck
    except ImportError as error:
        raise CommandError(
            "oslo.upgradecheck is not installed here: run the command where Nova is installed"
        ) from error
    return upgradecheck


def _check_settings(args: argparse.Namespace) -> Result:
    try:
        # The shim and the fixes have lines of their own, also if this line has an error.
        findings = [
            finding
            for finding in examine_this_machine(args).found
            if finding.check not in (_SHIM, _HINTS)
        ]
    except _WRONG as error:
        return FAILURE, f"{error}."
    return _result_of_findings(findings)


def _result_of_findings(findings: Iterable[DoctorFinding]) -> Result:
    ranked_findings = sorted(findings, key=lambda finding: -finding.severity.value)
    if not ranked_findings:
        return SUCCESS, None
    text = " ".join(
        f"{finding.seen} {render_cure(finding.cure).rstrip('.')}." for finding in ranked_findings
    )
    return _WORST[ranked_findings[0].severity], text


def _check_ledger(config: list[str]) -> Result:
    options = service_settings.read_node_options(config, ("ledger_file",))
    file = LedgerFile.from_options(options.hpc)
    ledger = file.read()
    if not file.exists():
        return SUCCESS, (
            f"There is no ledger at {file.path}. nova-compute makes it when it runs with this "
            "project's driver."
        )
    if ledger.lost:
        return FAILURE, (
            f"{ledger.problems[0]}. No device would be offered: keep the release that wrote it, or "
            "repair the file."
        )
    if ledger.problems:
        return WARNING, "; ".join(ledger.problems) + "."
    return SUCCESS, None


def _check_nova_functions() -> Result:
    try:
        place = install_shim.locate_shim(install_shim.find_nova_interpreter())
    except (install_shim.ShimError, OSError) as error:
        return WARNING, f"Nova was not looked at: {error}."
    major = (place.version or "").partition(".")[0]
    if not major.isdigit() or int(major) not in nova_sources.READ:
        releases = ", ".join(map(str, nova_sources.READ))
        return FAILURE, (
            f"Nova {place.version or 'of an unknown version'} is in {place.nova}, and this "
            f"release of nova-hpc supports {releases}: install releases that fit together."
        )
    changed_functions = nova_sources.find_changed_functions(place.nova, int(major), DIGESTS)
    if not changed_functions:
        return SUCCESS, None
    return WARNING, (
        f"{'; '.join(map(str, changed_functions))}. It is used anyway: read the changes, and "
        "run the functional tests with this Nova."
    )


def _check_shim(config: list[str]) -> Result:
    nova = service_settings.load_options(
        service_settings.config_files_of(config), {"DEFAULT": [cfg.StrOpt("compute_driver")]}
    )
    fault = facts_service.find_shim_fault(nova.compute_driver)
    return _result_of_findings([] if fault is None else [shim_finding(fault)])
