# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc requirements``: this cloud against NVIDIA's requirements, and the suite's steps."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova_hpc_common.outside.text import printable_text
from nova_hpc_requirements import evidence_files, suite_files
from nova_hpc_requirements.catalog import Requirement
from nova_hpc_requirements.evidence_files import EvidenceFileError
from nova_hpc_requirements.judging import (
    UnknownRequirementError,
    choose_requirements,
    judge_requirement,
)
from nova_hpc_requirements.step_names import (
    EVIDENCE_NAMES,
    FABRIC_CHECK,
    QUERY_KEYS,
    STEP_NAMES,
    WITHOUT_CLOUD,
)
from nova_hpc_requirements.suite_files import SuiteFileError
from nova_hpc_requirements.verdicts import EvidenceError, RequirementState, RequirementVerdict
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand, RecordCommand
from nova_hpc_tools.site import service_settings, source_options

_COLUMNS: Final = ("ID", "Requirement", "State", "Found", "Cure", "Command", "Rights")
_OPEN: Final = 1
_FAILED: Final = 1
_GOOD: Final = (RequirementState.MET, RequirementState.NOT_OURS)
_OWN: Final = "--os-cloud"


def add_step_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all steps have in common to *parser*."""
    source_options.add_config_options(parser, "Nova on this machine")
    parser.add_argument(
        _OWN, metavar="NAME", help="name in clouds.yaml (default: OS_CLOUD, or OS_AUTH_URL)"
    )
    group = parser.add_argument_group("objects of the checks")
    group.add_argument("--server", default="", metavar="SERVER", help="a server, by name or ID")
    group.add_argument("--cluster", default="", metavar="CLUSTER", help="a cluster, by name or ID")
    group.add_argument(
        "--node", default="", metavar="HOST", help="the compute host that the suite gets"
    )
    group.add_argument(
        "--physical-network",
        action="append",
        dest="physical_networks",
        default=[],
        metavar="NAME",
        help="a physical network of Neutron's that is InfiniBand; may be repeated",
    )
    made = parser.add_argument_group("how a server is made and reached")
    made.add_argument("--flavor", default="", metavar="FLAVOR", help="name or ID")
    made.add_argument("--image", default="", metavar="IMAGE", help="name or ID")
    made.add_argument(
        "--network",
        default="",
        metavar="NETWORK",
        help="name or ID of a network that this machine reaches (default: none, and no login)",
    )
    made.add_argument("--ssh-user", default="", metavar="USER", help="of the image")
    made.add_argument("--key-file", default="", metavar="FILE", help="private key of the server")
    made.add_argument(
        "--accept-os",
        action="append",
        default=[],
        metavar="ID",
        help="ID in os-release of a system that is accepted (default: ubuntu, dgx); may be "
        "repeated",
    )
    made.add_argument(
        "--timeout",
        type=parse_limit,
        default=900.0,
        metavar="SECONDS",
        help="for each change of a server (default: 900)",
    )
    made.add_argument(
        "--ssh-timeout",
        type=parse_limit,
        default=300.0,
        metavar="SECONDS",
        help="for a guest's first word (default: 300)",
    )


def parse_limit(text: str) -> float:
    """Parse a time limit of 1 to 86400 seconds, as argparse's type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to 86400")
    return value


class ListRequirements(ListCommand):
    """Hold this cloud against NVIDIA's Requirements for AI Clouds, id by id.

    Each requirement is met, with the evidence; not met, with the reason and the cure; not known,
    with the missing evidence; or not ours. A requirement that is not tried or cannot be read is
    not known. The command in the last column shows only the evidence.

    Without --try nothing is made or changed. With it a server is made of --flavor and --image,
    stopped, started, rebooted and deleted, and a user and a project are made and deleted for the
    rights to consoles. Evidence of a node, a subnet manager or a guest is handed in with
    --evidence, as nova-hpc requirements step and the commands in the table print it.

    The exit status is 0 if all chosen requirements are met or not ours, 1 if one is not met or
    not known, 2 for bad input.
    """

    acts_with = ("trying",)
    errors = (
        UnknownRequirementError,
        EvidenceFileError,
        service_settings.ConfigError,
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--id",
            action="append",
            dest="ids",
            default=[],
            metavar="ID",
            help="only this requirement, such as CNP01-09; may be repeated",
        )
        parser.add_argument(
            "--try",
            action="store_true",
            dest="trying",
            help="make a server, take it through its life, and delete it",
        )
        parser.add_argument(
            "--evidence",
            action="append",
            type=evidence_files.parse_evidence_option,
            default=[],
            metavar="STEP=FILE",
            help="file with the output of a step from another machine; may be repeated. STEP is "
            f"one of {', '.join(EVIDENCE_NAMES)}",
        )
        add_step_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Gather the evidence for NVIDIA's requirements on this cloud, and print the verdicts."""
        args = parsed_args
        requirements = choose_requirements(args.ids)
        if args.trying and not (args.flavor and args.image):
            raise CommandError("--try makes a server: give --flavor FLAVOR --image IMAGE")
        files = evidence_files.read_evidence_files(args.evidence)
        trial, context = load_trial(args)
        steps = trial.list_steps(requirements)
        need = set(steps) - files.keys() - WITHOUT_CLOUD
        if need and not files:
            # Without a cloud, only evidence from files can be judged.
            try:
                _ = context.connection
            except EvidenceError as error:
                raise CommandError(str(error)) from error
        evidence = trial.gather_evidence(steps, context, files, args.trying, tell_progress)
        verdicts = [(item, judge_requirement(item, evidence)) for item in requirements]
        return CommandAnswer(
            columns=_COLUMNS,
            rows=[format_row(*pair) for pair in verdicts],
            status=0 if all(verdict.state in _GOOD for _, verdict in verdicts) else _OPEN,
            show=lambda: print_verdicts(verdicts, self.say),
        )


def format_row(requirement: Requirement, verdict: RequirementVerdict) -> tuple[str, ...]:
    """Return the table row of one requirement and its verdict."""
    return (
        requirement.id,
        requirement.says,
        verdict.state.value,
        verdict.found,
        verdict.cure,
        requirement.command,
        requirement.rights.value,
    )


def print_verdicts(
    verdicts: Sequence[tuple[Requirement, RequirementVerdict]], say: Callable[[str], None]
) -> None:
    """Print the verdicts for people, and the number of requirements in each state."""
    for requirement, verdict in verdicts:
        state = verdict.state.value
        say(f"{state:>9}  {requirement.id:<10}  {requirement.says}")
        say(f"{'':>9}  {'':<10}  {verdict.found}")
        if verdict.cure and verdict.cure not in verdict.found:
            say(f"{'':>9}  {'':<10}  -> {verdict.cure}")
    counts = [
        f"{count} {state.value}"
        for state in RequirementState
        if (count := sum(verdict.state is state for _, verdict in verdicts))
    ]
    say(", ".join(counts))


def tell_progress(text: str) -> None:
    """Print the current step if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"... {printable_text(text)}", file=sys.stderr)


def load_trial(args: argparse.Namespace, **more: str) -> tuple[Any, Any]:
    """Import the module that runs steps, and build the context of the steps.

    :raises CommandError: the client libraries for clouds are not installed.
    """
    try:
        from nova_hpc_requirements import step_context, trial
    except ImportError as error:
        raise CommandError(
            f"{error.name} is not installed: pip install python-openstackclient openstacksdk"
        ) from error
    options = step_context.StepOptions(
        os_cloud=args.os_cloud,
        server=args.server,
        cluster=args.cluster,
        node=args.node,
        physical_networks=tuple(args.physical_networks),
        flavor=args.flavor,
        image=args.image,
        network=args.network,
        ssh_user=args.ssh_user,
        key_file=args.key_file,
        timeout=args.timeout,
        ssh_timeout=args.ssh_timeout,
        config=args.config,
        accept_os=tuple(args.accept_os) or step_context.SYSTEMS,
        **more,
    )
    return trial, step_context.StepContext(options, lambda: step_context.open_cloud(args.os_cloud))


class RunSuiteStep(RecordCommand):
    """Run one step of NVIDIA's validation suite, and print the JSON that the suite reads.

    The steps have the suite's own names, but for vcpu_pinning, which its check of pinning does
    not use, and migrate_instance. Run virtual_device_hardening, vcpu_pinning and
    query_sanitization on the compute node, as root. query_ib_keys needs --from with the output
    of nova-hpc fabric check -f json on the subnet manager's host. With --from, any other step
    prints its output from there.

    The exit status is 0 if the step was done, 1 if it could not be, with "error" in the JSON.
    """

    errors = (EvidenceFileError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("step", choices=(*STEP_NAMES, QUERY_KEYS), metavar="STEP")
        parser.add_argument(
            "--from",
            dest="source",
            type=Path,
            metavar="FILE",
            help="print saved results, and check nothing",
        )
        parser.add_argument(
            "--key-name", default="", metavar="NAME", help="of teardown: the key pair to delete"
        )
        parser.add_argument(
            "--security-group", default="", metavar="ID", help="of teardown: the one to delete"
        )
        add_step_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Run one step of NVIDIA's validation suite, and print its result as JSON."""
        args = parsed_args
        if args.step == QUERY_KEYS:
            output = _describe_fabric_keys(args)
        elif args.source is not None:
            output = evidence_files.read_evidence_file(args.step, args.source)
        else:
            trial, context = load_trial(
                args, key_name=args.key_name, security_group=args.security_group
            )
            evidence = trial.run_step(args.step, context)
            output = evidence.output or {
                "success": False,
                "platform": "vm",
                "error": evidence.reason,
            }
        text = f"{json.dumps(output, indent=2)}\n"
        return CommandAnswer(
            columns=tuple(output),
            rows=tuple(output.values()),
            status=0 if output.get("success") is True else _FAILED,
            show=lambda: self.say(text, end=""),
            document=lambda: text,
        )


def _describe_fabric_keys(args: argparse.Namespace) -> Mapping[str, Any]:
    if args.source is None:
        raise CommandError(
            f"{QUERY_KEYS} is printed from the output of nova-hpc fabric check -f json: --from FILE"
        )
    rows = evidence_files.read_evidence_file(FABRIC_CHECK, args.source).get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CommandError(f"--from {args.source}: nova-hpc fabric check -f json makes it")
    load_trial(args)
    from nova_hpc_requirements.steps_fabric import describe_keys

    return describe_keys(rows)


class WriteSuite(ListCommand):
    """Write the configuration with which NVIDIA's validation suite runs against this cloud.

    One file for each of its suites that this project has steps for. SUITE is a checkout of
    NVIDIA/ai-cloud-validation, whose own list of checks the files import; nothing of it is
    copied. Then, for each file: isvctl test run --no-upload -f FILE, with --capability vm for those
    of network and security, of which the suite would run nothing of this otherwise.
    """

    errors = (SuiteFileError,)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_config_options(parser, "Nova's scheduler, for the steps that read it")
        parser.add_argument("suite", type=Path, metavar="SUITE", help="a checkout of the suite")
        parser.add_argument("folder", type=Path, metavar="DIR", help="where the files go")
        parser.add_argument("--flavor", required=True, metavar="FLAVOR", help="of the VM")
        parser.add_argument("--image", required=True, metavar="IMAGE", help="of the VM")
        parser.add_argument("--network", default="", metavar="NETWORK", help="of the VM")
        parser.add_argument("--ssh-user", default="", metavar="USER", help="of the image")
        parser.add_argument(
            "--cluster", default="", metavar="CLUSTER", help="that is looked at as a block"
        )
        parser.add_argument(
            "--evidence",
            action="append",
            type=evidence_files.parse_evidence_option,
            default=[],
            metavar="STEP=FILE",
            help="a file that a step prints, for data that only a node or a subnet manager has",
        )
        parser.add_argument(
            "--physical-network",
            action="append",
            dest="physical_networks",
            default=[],
            metavar="NAME",
            help="a physical network of Neutron's that is InfiniBand; may be repeated",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Write the configuration files of NVIDIA's validation suite for this cloud."""
        args = parsed_args
        wishes = suite_files.SuiteWishes(
            suite=args.suite,
            flavor=args.flavor,
            image=args.image,
            network=args.network,
            ssh_user=args.ssh_user,
            cluster=args.cluster,
            files=dict(args.evidence),
            physical_networks=tuple(args.physical_networks),
            config=tuple(args.config),
        )
        paths = suite_files.write_suite_files(wishes, args.folder)
        return CommandAnswer(
            columns=("File",),
            rows=[(str(path),) for path in paths],
            show=lambda: self.say("\n".join(printable_text(str(path)) for path in paths)),
        )
