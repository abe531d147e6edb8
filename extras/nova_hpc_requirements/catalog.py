# SPDX-License-Identifier: Apache-2.0
"""The requirements that this project answers, as a table.

NVIDIA's *Requirements for AI Clouds* define the ids, with the numbers of its validation suite
(ai-cloud-validation 0.11.0, ``docs/test-plan.yaml``). The requirements and their tests are in our
own words.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs


class RequirementRights(enum.StrEnum):
    """The rights that the test of a requirement needs."""

    #: The rights of a project's member.
    TENANT = "member"
    #: The admin role, as for ``openstack aggregate``.
    ADMIN = "admin"
    #: Root on the machine that has the evidence.
    HOST = "root on the host"
    #: This project cannot test it.
    NOBODY = "nobody"


@attrs.frozen
class Requirement:
    """One requirement of NVIDIA's *Requirements for AI Clouds*, and the evidence for it.

    :ivar says: the requirement, in our own words.
    :ivar asks: the evidence that is needed before it counts as met.
    :ivar steps: names of the steps whose outputs decide.
    :ivar command: a line that shows the evidence.
    :ivar weaker: how the suite's own check passes with less evidence; "" if it does not.
    :ivar checked: the suite has a check of its own for it.
    """

    id: str
    says: str
    asks: str
    steps: tuple[str, ...]
    command: str
    rights: RequirementRights = RequirementRights.TENANT
    weaker: str = ""
    checked: bool = True


_TRY: Final = "nova-hpc requirements --id {id} --try --flavor FLAVOR --image IMAGE"
_SSH: Final = f"{_TRY} --network NETWORK --ssh-user USER"
_GUEST: Final = "nova-hpc-guest check --format json"
_NODE: Final = "nova-hpc requirements step {step} --server SERVER"


def _try_server(number: str, says: str, asks: str, *steps: str, **more: object) -> Requirement:
    command = str(more.pop("command", _TRY)).format(id=number)
    return Requirement(number, says, asks, steps, command, **more)  # type: ignore[arg-type]


_SERVERS: Final = (
    _try_server(
        "CNP01-09",
        "a VM can be made",
        "Nova answers with an id, and the server becomes ACTIVE",
        "launch_instance",
    ),
    _try_server(
        "CNP01-11",
        "VMs can be listed",
        "the new server is in the list, on the requested network",
        "list_instances",
    ),
    _try_server(
        "CNP01-13",
        "a VM can be rebooted",
        "after the reboot the guest itself has started anew: its uptime is shorter, or its "
        "console begins again",
        "reboot_instance",
        weaker="the step's own word for it is enough",
    ),
    _try_server(
        "CNP01-14",
        "a VM can be stopped without being deleted",
        "the server is SHUTOFF, and has its id",
        "stop_instance",
    ),
    _try_server(
        "CNP01-15",
        "a stopped VM can be started",
        "the server is ACTIVE again, and its guest has written on its console since",
        "start_instance",
    ),
    _try_server(
        "CNP08-03",
        "a VM keeps its id when it is stopped and started",
        "the ids of before and after are the same",
        "launch_instance",
        "stop_instance",
        "start_instance",
    ),
    _try_server(
        "CNP05-02",
        "VMs carry the user's own tags",
        "both tags that the server was made with are in its metadata",
        "verify_tags",
    ),
    _try_server(
        "CNP06-03",
        "the serial console of a VM can be read",
        "Nova gives text that the guest has written",
        "serial_console",
        weaker="a switch for the whole account is enough, without a character of output",
    ),
    _try_server(
        "CNP01-16",
        "consoles are only for those with the right to them",
        "a new user of another project is refused; with a role in the server's project the same "
        "user is not",
        "console_rbac",
        rights=RequirementRights.ADMIN,
    ),
    _try_server(
        "CNP01-17",
        "VMs have no USB, no shared clipboard and no needless devices",
        "libvirt's XML of the server has none",
        "virtual_device_hardening",
        command=_NODE.format(step="virtual_device_hardening"),
        rights=RequirementRights.HOST,
        weaker="the step's own word is enough, and may be that of the provider's API alone",
    ),
    _try_server(
        "AUTH02-01",
        "a VM can be made with a key pair of the user's choice",
        "the server has the requested key, and the key opens the guest",
        "launch_instance",
        "describe_instance",
        command=_SSH,
        weaker="the name of the key in Nova's record is enough",
    ),
    _try_server(
        "AUTH03-01",
        "the same key opens other components, such as the serial console",
        "a console by that key; switches belong to the operator",
        "component_key_access",
    ),
    _try_server(
        "BOOT02-02",
        "VMs are set up by cloud-init, with metadata at a link-local address or on a device",
        "cloud-init is done in the guest, and has the metadata from there",
        "describe_instance",
        command=_SSH,
        weaker="a guest without cloud-init passes",
    ),
    _try_server(
        "VMAAS01-01",
        "VMs can be logged in to",
        "ssh runs a command after the server was made, started and rebooted",
        "describe_instance",
        "start_instance",
        "reboot_instance",
        command=_SSH,
    ),
    _try_server(
        "VMAAS05-01",
        "the system in the VM is a known one",
        "the guest's os-release names a system of --accept-os",
        "describe_instance",
        command=_SSH,
    ),
    _try_server(
        "VMAAS06-01",
        "VMs see their GPUs and can use them",
        "every GPU that the cloud has promised is where it was promised, with a driver",
        "describe_instance",
        "guest_check",
        command=_GUEST,
        weaker="it compares the GPUs with a number in a file, not with the promised devices",
    ),
    _try_server(
        "VMAAS07-01",
        "kernel and GPU drivers in the VM are the right ones",
        "the guest reports its kernel, and every promised device has a driver",
        "describe_instance",
        "guest_check",
        command=_SSH,
        weaker="without an expected version in its configuration, any will do",
    ),
    _try_server(
        "VMAAS09-01",
        "vCPUs are pinned and the PCI tree is right",
        "each vCPU has one host CPU of its own in libvirt's XML, the one that Nova recorded; the "
        "guest finds devices, NUMA nodes and tree as promised",
        "vcpu_pinning",
        "guest_check",
        command=f"{_NODE.format(step='vcpu_pinning')}; in the guest {_GUEST}",
        rights=RequirementRights.HOST,
        weaker="it reads the affinity of the guest's first process, which is unrelated to the "
        "host, and passes with any value",
    ),
    Requirement(
        "VMAAS12-01",
        "a NIM container answers an inference request in the VM",
        "a container of NVIDIA's registry, with the site's own key",
        (),
        "isvctl test run, with the suite's own scripts and an NGC key",
        RequirementRights.NOBODY,
    ),
)

_FABRIC: Final = (
    Requirement(
        "NET01-01",
        "the API shows the switches of the fabric above a node",
        "every compute host has a leaf, and each tier that the map of the fabric has",
        ("backend_switch_fabric",),
        "nova-hpc requirements step backend_switch_fabric",
        RequirementRights.ADMIN,
        weaker="one node is enough",
    ),
    Requirement(
        "NET02-02",
        "the API shows the NVLink domain of a node",
        "every compute host with an NVLink domain in the map of the fabric shows it",
        ("nvlink_domain",),
        "nova-hpc requirements step nvlink_domain",
        RequirementRights.ADMIN,
        weaker="one node is enough",
    ),
    Requirement(
        "SDN04-04",
        "InfiniBand keeps tenants apart",
        "no two projects share a P_Key in Neutron, and the subnet manager enforces its "
        "partitions in every port",
        ("query_ib_tenant_isolation", "fabric_check"),
        "nova-hpc fabric check -f json, on the subnet manager's host",
        RequirementRights.HOST,
        weaker="the list of P_Keys is enough; no port's table is read",
    ),
    Requirement(
        "SDN04-05",
        "the seven keys of an InfiniBand fabric are set",
        "the subnet manager's settings of each of them; a missing setting is not met",
        ("fabric_check",),
        "nova-hpc fabric check -f json, on the subnet manager's host",
        RequirementRights.HOST,
        weaker="two of the seven are enough",
    ),
    Requirement(
        "CNP01-04",
        "servers are placed by topology",
        "the server's flavor requests a level, and the node has recorded one that is as tight",
        ("topology_placement",),
        "openstack hpc server show SERVER",
        weaker="the step's own word for it is enough",
    ),
    Requirement(
        "CNP08-04",
        "a VM keeps its id when it is moved",
        "the server is on another host, live or cold, and the ids are the same",
        ("migrate_instance",),
        "nova-hpc requirements --id CNP08-04 --try --flavor FLAVOR --image IMAGE",
        RequirementRights.ADMIN,
        checked=False,
    ),
    Requirement(
        "CAP04-01",
        "hosts are set aside for one account",
        "host aggregates name one project each, and the scheduler's configuration keeps that "
        "project in and the others out",
        ("capacity_reservation_grouping",),
        "nova-hpc requirements step capacity_reservation_grouping --config-file nova.conf",
        RequirementRights.ADMIN,
        weaker="the step's own word for the isolation is enough",
    ),
    Requirement(
        "CAP04-02",
        "a block of the topology is given whole or not at all",
        "every member of a cluster runs, and all are in one domain of the fabric",
        ("topology_block_atomic_allocation",),
        "openstack hpc cluster topology CLUSTER",
    ),
    Requirement(
        "CAP05-01",
        "the health of each host can be queried: state of the GPUs, temperature, memory",
        "every compute host reports the faults of its devices, minutes old at most; temperature "
        "and memory errors are part of it",
        ("query_host_health",),
        "nova-hpc device list --all-nodes",
        RequirementRights.ADMIN,
        weaker="a report without an alert is enough, whatever was looked at",
    ),
    Requirement(
        "SEC21-03",
        "the data that a deleted VM leaves behind is wiped",
        "every device that has served a server was found clean after it, or is withheld; by "
        "nova.conf of the node, local disks are fresh or wiped (volumes are Cinder's)",
        ("query_sanitization",),
        "nova-hpc requirements step query_sanitization, on the node",
        RequirementRights.HOST,
        checked=False,
    ),
    Requirement(
        "SEC21-05",
        "memory of GPUs is wiped between tenants",
        "every GPU that has served a server has passed the stage that cleans it from within, or "
        "is withheld",
        ("query_sanitization",),
        "nova-hpc requirements step query_sanitization, on the node",
        RequirementRights.HOST,
        weaker="that a host has been in a state called sanitizing is enough",
    ),
    Requirement(
        "VMAAS13-01",
        "NCCL's tests run in VMs",
        "an acceptance result whose all-reduce is level with its baseline",
        ("acceptance",),
        "nova-hpc-guest accept --tier full --yes --format json",
        checked=False,
    ),
    Requirement(
        "VMAAS14-01",
        "VMs reach each other over Ethernet, InfiniBand and NVLink",
        "acceptance results with a peer: over the network, by RDMA, and by NCCL",
        ("acceptance",),
        "nova-hpc-guest accept --tier full --yes --format json",
        checked=False,
    ),
)

#: In the order in which they are shown.
REQUIREMENTS: Final = (*_SERVERS, *_FABRIC)
