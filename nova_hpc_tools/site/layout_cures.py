# SPDX-License-Identifier: Apache-2.0
"""Cures with the files and commands of the tool that deploys a cloud's services. Pure.

Kolla-Ansible and OpenStack-Ansible overwrite the files of services at the next deployment. So a
cure names the file on the deployment host, and the command that copies it to the service
(``docs/source/admin/deployment-tools.rst``). Neither tool restarts a service whose settings have
not changed, so the restart of such a service has a command of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nova_hpc_tools.site.cures import (
    CONTROLLERS,
    NOVA,
    AliasCopy,
    AliasSource,
    CommandRun,
    CuredCommand,
    CuredService,
    CurePart,
    DeclarationFile,
    DoctorCure,
    OptionPlace,
    ServiceRestart,
)
from nova_hpc_tools.site.layout_names import KOLLA, OSA, PLAIN

#: The folder of a layout on the deployment host.
_FOLDERS: Final = {KOLLA: "/etc/kolla/config", OSA: "/etc/openstack_deploy"}
#: The declaration of a node, for commands that run on the node.
_DECLARATION: Final = "/etc/nova-hpc/node.yaml"
_KOLLA_NODE: Final = "--config-file /etc/kolla/nova-compute/nova.conf"
_KOLLA_CONTROLLER: Final = "--config-file /etc/kolla/nova-scheduler/nova.conf"
_KOLLA_WRITE: Final = "nova-hpc configure --layout kolla --write /etc/kolla/config --part"
_OSA_WRITE: Final = "nova-hpc configure --layout osa --write /etc/openstack_deploy --part"
_WITH_PYTHON: Final = "with the Python of nova-compute"
_WITH_OPTION: Final = "with the --python of nova-compute"
_OSA_FILE: Final = "--config-file /etc/nova/nova.conf"

#: Layout -> command -> its words.
COMMANDS: Final[Mapping[str, Mapping[CuredCommand, str]]] = {
    PLAIN: {
        CuredCommand.CONFIGURE_NODE: "nova-hpc configure --write /etc/nova/nova.conf.d "
        "--part compute --part common",
        CuredCommand.CONFIGURE_CONTROLLER: "nova-hpc configure --part controller "
        "--write /etc/nova/nova.conf.d",
        CuredCommand.CONFIGURE_PLACEMENT: "nova-hpc configure --part placement "
        "--write /etc/placement/placement.conf.d",
        CuredCommand.PREPARE: "nova-hpc prepare",
        CuredCommand.DOCTOR: "nova-hpc doctor",
        CuredCommand.DOCTOR_BESIDE_NOVA: f"nova-hpc doctor {_WITH_PYTHON}",
        CuredCommand.DOCTOR_OF_CLOUD: "nova-hpc doctor --part cloud",
        CuredCommand.CHECK_SHIM: f"nova-hpc install-shim --check {_WITH_OPTION}",
        CuredCommand.NOVA_MANAGE: "nova-manage",
    },
    KOLLA: {
        CuredCommand.CONFIGURE_NODE: f"{_KOLLA_WRITE} compute {_KOLLA_NODE}",
        CuredCommand.CONFIGURE_CONTROLLER: f"{_KOLLA_WRITE} controller {_KOLLA_CONTROLLER}",
        CuredCommand.CONFIGURE_PLACEMENT: f"{_KOLLA_WRITE} placement {_KOLLA_CONTROLLER}",
        CuredCommand.PREPARE: f"nova-hpc prepare {_KOLLA_NODE}",
        CuredCommand.DOCTOR: f"nova-hpc doctor --layout kolla {_KOLLA_NODE}",
        CuredCommand.DOCTOR_BESIDE_NOVA: "docker exec nova_compute nova-hpc doctor --layout kolla",
        CuredCommand.DOCTOR_OF_CLOUD: "docker exec nova_conductor nova-hpc doctor --layout kolla "
        "--part cloud",
        CuredCommand.CHECK_SHIM: "docker exec nova_compute nova-hpc install-shim --check",
        CuredCommand.NOVA_MANAGE: "docker exec nova_conductor nova-manage",
    },
    OSA: {
        CuredCommand.CONFIGURE_NODE: f"{_OSA_WRITE} compute {_OSA_FILE}",
        CuredCommand.CONFIGURE_CONTROLLER: f"{_OSA_WRITE} controller {_OSA_FILE}",
        CuredCommand.CONFIGURE_PLACEMENT: f"{_OSA_WRITE} placement {_OSA_FILE}",
        CuredCommand.PREPARE: "nova-hpc prepare",
        CuredCommand.DOCTOR: "nova-hpc doctor --layout osa",
        CuredCommand.DOCTOR_BESIDE_NOVA: f"nova-hpc doctor --layout osa {_WITH_PYTHON}",
        CuredCommand.DOCTOR_OF_CLOUD: "nova-hpc doctor --layout osa --part cloud",
        CuredCommand.CHECK_SHIM: f"nova-hpc install-shim --check {_WITH_OPTION}",
        CuredCommand.NOVA_MANAGE: "nova-manage",
    },
}
#: Services that cures restart without a deployment: the container of each, the unit of each.
_CONTAINERS: Final[Mapping[CuredService, str]] = {
    CuredService.COMPUTE: "nova_compute",
    CuredService.LIBVIRT: "nova_libvirt",
    CuredService.NEUTRON: "neutron_sriov_agent",
}
_UNITS: Final[Mapping[CuredService, str]] = {
    CuredService.COMPUTE: "nova-compute",
    CuredService.LIBVIRT: "libvirtd",
    CuredService.NEUTRON: "neutron-sriov-nic-agent",
}


def render_cure(cure: DoctorCure, layout: str = PLAIN, node: str | None = None) -> str:
    """Render the text of a cure, in the words of a deployment tool.

    :param node: the examined machine; None if unknown.
    """
    first, *more = (_render_part(part, layout, node) for part in cure.parts)
    if isinstance(cure.parts[0], ServiceRestart | AliasCopy):
        first = first[0].upper() + first[1:]
    return "".join((first, *more))


def _render_part(part: CurePart, layout: str, node: str | None) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, CommandRun):
        if layout == PLAIN and part.called:
            return part.called
        return " ".join(filter(None, (COMMANDS[layout][part.command], part.words)))
    if isinstance(part, DeclarationFile):
        if layout == PLAIN:
            return _DECLARATION
        return f"{_FOLDERS[layout]}/nova-hpc/{node or 'HOST'}.yaml (on the node: {_DECLARATION})"
    if isinstance(part, AliasCopy):
        return _render_copy(part, layout)
    if isinstance(part, OptionPlace):
        texts = [option.text for option in part.options]
        valued = all(option.value for option in part.options)
        options = ", ".join(texts) if valued else _join_names(texts)
        if layout == PLAIN:
            return part.called or options
        return f"{options} in {_file_of(part.services, layout, part.host or node)}"
    return _render_restart(part, layout, node)


#: Source -> the text for one finding, and the text for a check in general.
_PLAIN_COPIES: Final = {
    AliasSource.ONE_NODE: (
        "copy nova-hpc-common.conf of one to all",
        "copy nova-hpc-common.conf of one node to all",
    ),
    AliasSource.OTHER_NODES: (
        "copy the line of {} there",
        "copy the line to the nodes that lack it",
    ),
    AliasSource.OFFERING_NODE: (
        "copy the line from nova-hpc-common.conf of a node that offers the devices",
        "copy the alias from a node that offers the devices",
    ),
}


def _render_copy(copy: AliasCopy, layout: str) -> str:
    if layout == PLAIN:
        return _PLAIN_COPIES[copy.source][copy.general].format(copy.nodes)
    folder = _FOLDERS[layout]
    node = "nova/HOST/nova-compute.conf" if layout == KOLLA else "host_vars/HOST/nova-hpc.yml"
    if copy.source is AliasSource.OFFERING_NODE:
        services = ", ".join(f"nova/{service.value}.conf" for service in CONTROLLERS)
        files = services if layout == KOLLA else "group_vars/nova_all/nova-hpc.yml"
        return f"give {files} below {folder} the alias of {node} of a node that offers the devices"
    return f"give {node} below {folder} the same aliases for all hosts"


def explain_removal(
    layout: str, node: str | None, sources: Sequence[str], made: Sequence[str]
) -> str:
    """Explain how to remove a foreign line, as a part of a sentence.

    :param node: host name of the compute node; None if it is unknown.
    :param sources: paths and numbers of the line on the deployment host; empty if not there.
    :param made: path and number of the line in files that the service reads.
    """
    if layout == PLAIN:
        place = _join_names(made) if made else "it"
        return f"remove {place} in your configuration management"
    place = (
        _join_names(sources)
        if sources
        else f"it from {_file_of((CuredService.COMPUTE,), layout, node)}, or the file that has it"
    )
    if not made:
        return f"remove {place}"
    tool = "kolla-ansible" if layout == KOLLA else "openstack-ansible"
    return f"remove {place}, and {_join_names(made)}, which {tool} has made of it"


def _file_of(services: Sequence[CuredService], layout: str, host: str | None) -> str:
    """Return the file of the site that sets options of services."""
    folder = _FOLDERS[layout]
    if set(services) == set(NOVA):
        return f"every file below {folder} that has it"
    compute = tuple(services) == (CuredService.COMPUTE,)
    placement = tuple(services) == (CuredService.PLACEMENT,)
    if layout == KOLLA:
        if placement:
            return f"{folder}/placement.conf"
        if compute:
            return f"{folder}/nova/{f'{host}/nova' if host else 'nova-compute'}.conf"
        # The file of a single service wins over the file for all services.
        alone = tuple(services) == (CuredService.SCHEDULER,)
        return f"{folder}/nova/nova-scheduler.conf" if alone else f"{folder}/nova.conf"
    kind = "placement_placement" if placement else "nova_nova"
    below = f"host_vars/{host}" if compute and host else "group_vars"
    return f"{kind}_conf_overrides below {folder}/{below}"


def _render_restart(restart: ServiceRestart, layout: str, node: str | None) -> str:
    if layout == PLAIN:
        return f"restart {restart.called or _join_names([e.value for e in restart.services])}"
    hosts = restart.hosts if restart.hosts is not None else (node,) if node else ()
    deployed = [
        service
        for service in restart.services
        if restart.reads_settings and service in (*NOVA, CuredService.PLACEMENT)
    ]
    alone = [service for service in restart.services if service not in deployed]
    clauses = [f"run {_deployment_of(deployed, layout, hosts)}"] if deployed else []
    if alone:
        clauses.append(_restart_alone(alone, layout))
        if restart.hosts:
            clauses[-1] += f" on {_join_names(restart.hosts)}"
    return " and ".join(clauses)


def _restart_alone(services: Sequence[CuredService], layout: str) -> str:
    if layout == KOLLA:
        names = _join_names([_CONTAINERS[service] for service in services])
        return f"restart the container{'s' if len(services) > 1 else ''} {names}"
    return f"run systemctl restart {' '.join(_UNITS[service] for service in services)}"


def _deployment_of(services: Sequence[CuredService], layout: str, hosts: Sequence[str]) -> str:
    """Return the command that deploys the files of services and restarts those that changed."""
    kolla = layout == KOLLA
    if CuredService.PLACEMENT in services:
        playbook = "os-placement-install.yml"
        return (
            "kolla-ansible reconfigure --tags placement"
            if kolla
            else f"openstack-ansible {playbook}"
        )
    if set(services) == {CuredService.COMPUTE}:
        limit = ",".join(hosts) or ("compute" if kolla else "nova_compute")
    elif CuredService.COMPUTE in services:
        limit = ""
    else:
        limit = "control" if kolla else "nova_all,!nova_compute"
    if kolla:
        return f"kolla-ansible reconfigure --tags nova{f' --limit {limit}' if limit else ''}"
    return f"openstack-ansible os-nova-install.yml{f' --limit {_quoted(limit)}' if limit else ''}"


def _quoted(limit: str) -> str:
    text = f"localhost,{limit}"
    return f"'{text}'" if "!" in text else text


def _join_names(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
