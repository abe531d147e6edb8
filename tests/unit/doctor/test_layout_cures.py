# SPDX-License-Identifier: Apache-2.0
"""Cures in the words of a site's layout: what each names is data, and each layout says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from nova_hpc_tools.doctor.check_cures import CURES
from nova_hpc_tools.site.cures import (
    CONTROLLERS,
    DECLARATION,
    NOVA,
    PREPARE,
    RESTART_COMPUTE,
    RESTART_PLACEMENT,
    AliasCopy,
    AliasSource,
    CuredCommand,
    CuredService,
    DoctorCure,
    ServiceRestart,
    place_option,
    read_cure,
)
from nova_hpc_tools.site.findings import CHECKS
from nova_hpc_tools.site.layout_cures import COMMANDS, render_cure
from nova_hpc_tools.site.layout_names import KOLLA, NAMES, OSA, PLAIN
from tests.unit.commands.test_typed import parser_of
from tests.unit.doctor.cure_words import NAMED, faults_of_cure

TOOLS = Path(__file__).parents[3] / "nova_hpc_tools"
#: Calls whose texts are data.
DATA = frozenset(
    (
        *("AliasCopy", "CommandRun", "CuredOption", "OptionPlace", "ServiceRestart"),
        *("place_option", "_place_list", "_place_sets", "_place_example", "_change_list"),
    )
)
#: Calls with words of a cure: name -> how many arguments come before them.
WORDS = {"DoctorFinding": 2, "Shim": 1, "LibvirtNeed": 2, "of": 0, "read_cure": 0}
#: Options without which a command does nothing.
MORE = {CuredCommand.PREPARE: ("--write", "/")}


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("command", CuredCommand)
def test_a_command_of_a_layout_is_taken(layout: str, command: CuredCommand) -> None:
    text = COMMANDS[layout][command].partition(" with ")[0]
    if command is CuredCommand.NOVA_MANAGE:
        assert text.split()[-1] == "nova-manage"
        return
    words = tuple(text[text.index("nova-hpc ") :].split()) + MORE.get(command, ())
    parser, count = parser_of(words[:2])
    args = parser.parse_args(words[count:])
    if hasattr(args, "layout"):
        assert args.layout == layout
    if "configure" in words:
        assert str(args.write).startswith(("/etc/nova", "/etc/placement")) == (layout == PLAIN)


PLACE = place_option("filter_scheduler", "pci_in_placement", "true", *CONTROLLERS)
LIMIT = place_option("placement", "max_allocation_candidates", "400", CuredService.PLACEMENT)
DRIVER = place_option("DEFAULT", "compute_driver", "hpc.HpcLibvirtDriver")
ALIAS = place_option("pci", "alias", None, *NOVA, called="it in the file that has it")
ORDER = place_option(
    "filter_scheduler", "enabled_filters", None, CuredService.SCHEDULER, called="enabled_filters"
)


@pytest.mark.parametrize(
    ("cure", "plain", "kolla", "osa"),
    [
        (
            DoctorCure.of("Take 3 out, and ", RESTART_COMPUTE, "."),
            "Take 3 out, and restart nova-compute.",
            "Take 3 out, and run kolla-ansible reconfigure --tags nova --limit gpu17.",
            "Take 3 out, and run openstack-ansible os-nova-install.yml --limit localhost,gpu17.",
        ),
        (
            DoctorCure.of("Set ", PLACE, " on all controllers, and ", ServiceRestart(CONTROLLERS)),
            "Set [filter_scheduler]pci_in_placement = true on all controllers, and restart "
            "nova-api, nova-conductor and nova-scheduler",
            "Set [filter_scheduler]pci_in_placement = true in /etc/kolla/config/nova.conf on all "
            "controllers, and run kolla-ansible reconfigure --tags nova --limit control",
            "Set [filter_scheduler]pci_in_placement = true in nova_nova_conf_overrides below "
            "/etc/openstack_deploy/group_vars on all controllers, and run openstack-ansible "
            "os-nova-install.yml --limit 'localhost,nova_all,!nova_compute'",
        ),
        (
            DoctorCure.of("Set ", LIMIT, ", and ", RESTART_PLACEMENT, "."),
            "Set [placement]max_allocation_candidates = 400, and restart the Placement API.",
            "Set [placement]max_allocation_candidates = 400 in /etc/kolla/config/placement.conf, "
            "and run kolla-ansible reconfigure --tags placement.",
            "Set [placement]max_allocation_candidates = 400 in "
            "placement_placement_conf_overrides below /etc/openstack_deploy/group_vars, and run "
            "openstack-ansible os-placement-install.yml.",
        ),
        (
            DoctorCure.of(
                "On gpu4, set ",
                place_option("DEFAULT", "compute_driver", "hpc.HpcLibvirtDriver", host="gpu4"),
                " and ",
                ServiceRestart((CuredService.COMPUTE,), ("gpu4",)),
                ".",
            ),
            "On gpu4, set [DEFAULT]compute_driver = hpc.HpcLibvirtDriver and restart nova-compute.",
            "On gpu4, set [DEFAULT]compute_driver = hpc.HpcLibvirtDriver in "
            "/etc/kolla/config/nova/gpu4/nova.conf and run kolla-ansible reconfigure --tags nova "
            "--limit gpu4.",
            "On gpu4, set [DEFAULT]compute_driver = hpc.HpcLibvirtDriver in "
            "nova_nova_conf_overrides below /etc/openstack_deploy/host_vars/gpu4 and run "
            "openstack-ansible os-nova-install.yml --limit localhost,gpu4.",
        ),
        (  # No settings have changed, so a deployment would restart nothing.
            DoctorCure.of(
                ServiceRestart((CuredService.COMPUTE,), ("gpu4",), False, "nova-compute on gpu4"),
                "; or see its log.",
            ),
            "Restart nova-compute on gpu4; or see its log.",
            "Restart the container nova_compute on gpu4; or see its log.",
            "Run systemctl restart nova-compute on gpu4; or see its log.",
        ),
        (  # Of others than Nova's services no settings have changed either.
            DoctorCure.of(
                "Correct it, and ",
                ServiceRestart((CuredService.COMPUTE, CuredService.NEUTRON), ("gpu4", "gpu5")),
            ),
            "Correct it, and restart nova-compute and the Neutron agent",
            "Correct it, and run kolla-ansible reconfigure --tags nova --limit gpu4,gpu5 and "
            "restart the container neutron_sriov_agent on gpu4 and gpu5",
            "Correct it, and run openstack-ansible os-nova-install.yml --limit "
            "localhost,gpu4,gpu5 and run systemctl restart neutron-sriov-nic-agent on gpu4 and "
            "gpu5",
        ),
        (
            DoctorCure.of(
                ServiceRestart((CuredService.LIBVIRT, CuredService.COMPUTE), None, False)
            ),
            "Restart libvirtd and nova-compute",
            "Restart the containers nova_libvirt and nova_compute",
            "Run systemctl restart libvirtd nova-compute",
        ),
        (
            DoctorCure.of("Correct ", ALIAS, ", and ", ServiceRestart(NOVA, (), called="all")),
            "Correct it in the file that has it, and restart all",
            "Correct [pci]alias in every file below /etc/kolla/config that has it, and run "
            "kolla-ansible reconfigure --tags nova",
            "Correct [pci]alias in every file below /etc/openstack_deploy that has it, and run "
            "openstack-ansible os-nova-install.yml",
        ),
        (
            DoctorCure.of("Add Mine to ", ORDER),
            "Add Mine to enabled_filters",
            "Add Mine to [filter_scheduler]enabled_filters in "
            "/etc/kolla/config/nova/nova-scheduler.conf",
            "Add Mine to [filter_scheduler]enabled_filters in nova_nova_conf_overrides below "
            "/etc/openstack_deploy/group_vars",
        ),
        (
            DoctorCure.of("Change ", DECLARATION, ", then ", PREPARE),
            "Change /etc/nova-hpc/node.yaml, then nova-hpc prepare --write /",
            "Change /etc/kolla/config/nova-hpc/gpu17.yaml (on the node: "
            "/etc/nova-hpc/node.yaml), then nova-hpc prepare --config-file "
            "/etc/kolla/nova-compute/nova.conf --write /",
            "Change /etc/openstack_deploy/nova-hpc/gpu17.yaml (on the node: "
            "/etc/nova-hpc/node.yaml), then nova-hpc prepare --write /",
        ),
        (
            DoctorCure.of(AliasCopy(AliasSource.OTHER_NODES, "gpu1"), "."),
            "Copy the line of gpu1 there.",
            "Give nova/HOST/nova-compute.conf below /etc/kolla/config the same aliases for all "
            "hosts.",
            "Give host_vars/HOST/nova-hpc.yml below /etc/openstack_deploy the same aliases for "
            "all hosts.",
        ),
        (read_cure("Restart the host when no server is on it."),)
        + ("Restart the host when no server is on it.",) * 3,
    ],
)
def test_a_cure_names_the_files_and_commands_of_the_layout(
    cure: DoctorCure, plain: str, kolla: str, osa: str
) -> None:
    assert render_cure(cure, PLAIN, "gpu17") == plain
    assert render_cure(cure, KOLLA, "gpu17") == kolla
    assert render_cure(cure, OSA, "gpu17") == osa


def test_a_node_that_is_not_known_is_all_nodes() -> None:
    cure = DoctorCure.of("Set ", DRIVER, " in ", DECLARATION, "; ", RESTART_COMPUTE)
    assert render_cure(cure, KOLLA).split(" = hpc.HpcLibvirtDriver in ")[1] == (
        "/etc/kolla/config/nova/nova-compute.conf in /etc/kolla/config/nova-hpc/HOST.yaml (on the "
        "node: /etc/nova-hpc/node.yaml); run kolla-ansible reconfigure --tags nova --limit compute"
    )
    assert "--limit localhost,nova_compute" in render_cure(cure, OSA)


# --- the cures of all checks --------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("node", ["gpu17", None])
def test_the_cure_of_a_check_is_data_in_each_layout(check: str, node: str | None) -> None:
    assert faults_of_cure(CURES[check], node) == []


def test_no_word_of_a_cure_names_what_a_layout_has_otherwise() -> None:
    """All calls that make cures; test_doctor.py looks at those that its faults make."""
    checks: set[str] = set()
    texts: list[str] = []
    for path in sorted(
        path for room in ("adopt", "doctor", "site") for path in (TOOLS / room).glob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = called_name(node)
            if not isinstance(node, ast.Call) or name not in WORDS:
                continue
            if name == "DoctorFinding":
                checks |= set(strings(node.args[0])) & set(CHECKS)
            for argument in node.args[WORDS[name] :]:
                texts += strings(argument)
    assert checks == set(CHECKS)
    assert len(texts) > 150
    assert [text for text in texts if NAMED.search(text)] == []


def called_name(node: ast.AST) -> str:
    """The last name of what a call calls; "": it is none."""
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def strings(node: ast.AST) -> Iterator[str]:
    """The texts of an expression that are words; what is calculated in one is left out."""
    if called_name(node) in DATA:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
        )
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


@pytest.mark.parametrize(
    "words",
    [
        "Take 3 out, and restart nova-compute.",
        "Copy it to all, and restart their services.",
        "Set [pci]report_in_placement = true",
        "nova-hpc configure --write /etc/nova/nova.conf.d",
        "nova-hpc prepare --write /, run its commands",
        "change vfs in /etc/nova-hpc/node.yaml",
        "Correct it in the file that has it.",
    ],
)
def test_words_that_name_something_are_seen(words: str) -> None:
    assert faults_of_cure(read_cure(words)) != []
    assert next(strings(ast.parse(f"f'''{{a}} {words}'''"))).startswith("X ")
