# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc status upgrade check``: whether the services of this machine may restart with it.

The same words and exit status as ``nova-status upgrade check``, by the same library: it is run
after this project was upgraded and before its services are restarted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, Final

from oslo_config import cfg

from nova_hpc.from_nova import nova_sources
from nova_hpc.from_nova.nova_digests import DIGESTS
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.adopt import service_settings as node_config
from nova_hpc_tools.adopt.findings import Finding, Severity
from nova_hpc_tools.base import Answer, CommandError, List
from nova_hpc_tools.doctor import facts_service as doctor_service
from nova_hpc_tools.doctor.checks_service import shim_finding
from nova_hpc_tools.doctor.command import CONTROLLER, NODE, Doctor, add_options, look_here

SUCCESS, WARNING, FAILURE = 0, 1, 2
_WORST: Final[Mapping[Severity, int]] = {Severity.WARNING: WARNING, Severity.ERROR: FAILURE}

_SHIM: Final = "shim"

#: A check: how it ended, and what there is to be done.
Result = tuple[int, str | None]


class UpgradeCheck(List):
    """Say whether the services of this machine may be restarted with this release.

    Looks at what they are told and at the declaration as nova-hpc doctor does, at the
    node's ledger, at the shim of the driver, and whether the functions of Nova that this
    project wraps are those that it was written for. Changes nothing. The exit status is 0
    where all is well, 1 where something is to be looked at, and 2 where a service would
    not start, or not serve.
    """

    acts_with = ()
    errors = Doctor.errors

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Answer:
        """Look, and say it in the words of the library."""
        library = _library()
        checks = [("Settings and declaration", _settings(parsed_args))]
        if NODE in (parsed_args.part or [NODE]):
            checks.append(("Ledger", _ledger(parsed_args.config)))
            if doctor_service.is_here(parsed_args.root):
                checks.append(("Shim of the driver", _shim(parsed_args.config)))
        with_nova = not {NODE, CONTROLLER}.isdisjoint(parsed_args.part or [NODE])
        if with_nova and doctor_service.is_here(parsed_args.root):
            checks.append(("Functions of Nova", _functions()))
        results = [
            (name, library.Result(library.Code(code), text)) for name, (code, text) in checks
        ]
        words = library.UPGRADE_CHECK_MSG_MAP
        commands = library.UpgradeCommands()
        commands.display_title = "Upgrade Check Results of nova-hpc"
        commands._upgrade_checks = tuple(
            (name, lambda _, result=result: result) for name, result in results
        )
        return Answer(
            ("Check", "Result", "Details"),
            [(name, str(words[each.code]), each.details or "") for name, each in results],
            status=max(int(each.code) for _, each in results),
            show=lambda: commands.check() and None,
        )


def _library() -> Any:
    try:
        from oslo_upgradecheck import upgradecheck
    except ImportError as error:
        raise CommandError(
            "oslo.upgradecheck is not installed here: run the command where Nova is installed"
        ) from error
    return upgradecheck


def _settings(args: argparse.Namespace) -> Result:
    try:
        # The shim has a line of its own, which is there also where this one cannot be made.
        found = [each for each in look_here(args).found if each.check != _SHIM]
    except (CommandError, *Doctor.errors) as error:
        return FAILURE, f"{error}."
    return _of(found)


def _of(found: Iterable[Finding]) -> Result:
    said = sorted(found, key=lambda each: -each.severity.value)
    if not said:
        return SUCCESS, None
    text = " ".join(f"{each.seen} {each.cure.rstrip('.')}." for each in said)
    return _WORST[said[0].severity], text


def _ledger(config: list[str]) -> Result:
    options = node_config.read(config, ("ledger_file",))
    file = LedgerFile.from_options(options.hpc)
    ledger = file.read()
    if ledger.lost:
        return FAILURE, (
            f"{ledger.problems[0]}. No device would be offered: keep the release that wrote it, or "
            "repair the file."
        )
    if ledger.problems:
        return WARNING, "; ".join(ledger.problems) + "."
    return SUCCESS, None


def _functions() -> Result:
    try:
        place = install_shim.locate(install_shim.interpreter())
    except (install_shim.ShimError, OSError) as error:
        return WARNING, f"Nova was not looked at: {error}."
    major = (place.version or "").partition(".")[0]
    if not major.isdigit() or int(major) not in nova_sources.READ:
        known = ", ".join(map(str, nova_sources.READ))
        return FAILURE, (
            f"Nova {place.version or 'of an unknown version'} is in {place.nova}, and this release "
            f"of nova-hpc knows {known}: install releases that fit together."
        )
    found = nova_sources.changed(place.nova, int(major), DIGESTS)
    if not found:
        return SUCCESS, None
    return WARNING, (
        f"{'; '.join(map(str, found))}. It is used all the same: read what has changed, and run "
        "the functional tests beside this Nova."
    )


def _shim(config: list[str]) -> Result:
    nova = node_config.load(node_config.files(config), {"DEFAULT": [cfg.StrOpt("compute_driver")]})
    found = doctor_service.shim(nova.compute_driver)
    return _of([] if found is None else [shim_finding(found)])
