# SPDX-License-Identifier: Apache-2.0
"""Evidence with which each requirement is met, and what becomes of it when one thing differs."""

from __future__ import annotations

import copy
from typing import Any

from nova_hpc_requirements.verdicts import RequirementEvidence, StepEvidence

SERVER = "0b1f6a5e-7f52-4c0d-9b0e-0a4a2f5d7c11"
GUEST = {
    "kernel": "6.8.0-49-generic",
    "os_id": "ubuntu",
    "os_version": "24.04",
    "cloud_init": "done",
    "metadata_http": 200,
    "gpu_driver": "570.86.15",
    "accepted_os": ["ubuntu", "dgx"],
}
_KEYS = ("m_key", "am_key", "vs_key", "cc_key", "n2n_key", "m2n_key")

#: Step -> output of a cloud that meets everything that it can.
GOOD: dict[str, dict[str, Any]] = {
    "launch_instance": {
        "success": True,
        "instance_id": SERVER,
        "state": "running",
        "requested_key_name": "k",
        "key_name": "k",
    },
    "list_instances": {
        "success": True,
        "instances": [{"instance_id": SERVER}],
        "target_instance": SERVER,
    },
    "verify_tags": {"success": True, "tags": {"Name": "n", "CreatedBy": "c"}},
    "describe_instance": {"success": True, "guest": GUEST},
    "serial_console": {"success": True, "output_length": 812},
    "console_rbac": {
        "success": True,
        "tests": {
            "denied_principal_cannot_access_console": {"passed": True},
            "allowed_principal_can_access_console": {"passed": True},
            "allowed_principal_is_resource_scoped": {"passed": True},
        },
    },
    "component_key_access": {"success": True, "tests": {"sol_access": {"passed": True}}},
    "topology_placement": {"success": True, "level_asked": "root", "level_reached": "switch"},
    "stop_instance": {
        "success": True,
        "instance_id": SERVER,
        "stop_initiated": True,
        "state": "stopped",
    },
    "start_instance": {
        "success": True,
        "instance_id": SERVER,
        "start_initiated": True,
        "state": "running",
        "ssh_ready": True,
        "console_length": 44,
    },
    "reboot_instance": {
        "success": True,
        "reboot_initiated": True,
        "state": "running",
        "reboot_confirmed": True,
        "uptime_seconds": 9.5,
        "ssh_ready": True,
    },
    "migrate_instance": {
        "success": True,
        "instance_id_before": SERVER,
        "instance_id": SERVER,
        "moved": True,
        "how": "cold",
    },
    "backend_switch_fabric": {
        "success": True,
        "places": [{"host": f"h{n}", "leaf": "l1", "spine": "s1"} for n in range(2)],
        "problems": [],
    },
    "nvlink_domain": {
        "success": True,
        "places": [{"host": "h0", "nvlink_domain": "n1"}],
        "problems": [],
    },
    "query_ib_tenant_isolation": {
        "success": True,
        "partitions": [
            {"name": "a", "partition_key": "0x0101", "tenant_id": "p1", "shared": False},
            {"name": "b", "partition_key": "0x8102", "tenant_id": "p2", "shared": False},
        ],
    },
    "fabric_check": {
        "success": True,
        "rows": [
            *({"Name": name, "Requirement": "SDN04-05", "State": "met"} for name in _KEYS),
            {"Name": "tables", "Requirement": "SDN04-04", "State": "met", "Found": "those of 4"},
        ],
    },
    "capacity_reservation_grouping": {
        "success": True,
        "isolation_enforced": True,
        "groups": [{"name": "a", "projects": ["p1"], "hosts": ["h0"]}],
    },
    "topology_block_atomic_allocation": {
        "success": True,
        "topology_block": {"wanted": 4, "running": 4, "block_id": "l-1", "level": "leaf"},
    },
    "query_host_health": {
        "success": True,
        "hosts": [
            {"host_id": "h0", "health_present": True, "alerts": [], "observed_age_seconds": 12}
        ],
    },
    "virtual_device_hardening": {
        "success": True,
        "source": "libvirt",
        "tests": {
            "usb_devices_disabled": {"passed": True},
            "clipboard_disabled": {"passed": True},
            "unnecessary_virtual_devices_absent": {"passed": True},
        },
    },
    "vcpu_pinning": {
        "success": True,
        "vcpus": 2,
        "pins": {"0": [4], "1": [5]},
        "recorded": {"0": 4, "1": 5},
    },
    "query_sanitization": {
        "success": True,
        "machines": [
            {
                "machine_id": "0000:21:00.0",
                "available": True,
                "has_gpu": True,
                "served_tenant": True,
                "sanitized": True,
                "cleaned_within": True,
            }
        ],
        "disks": {"wiped": True, "detail": "fresh"},
    },
    "guest_check": {
        "schema": "nova-hpc/guest-report",
        "version": 1,
        "good": True,
        "devices": [{"number": 0, "role": "gpu", "driver": "nvidia"}],
        "findings": [],
    },
    "acceptance": {
        "schema": "nova-hpc/acceptance",
        "version": 1,
        "refused": None,
        "promise": {"given": True, "findings": []},
        "rows": [
            {"probe": probe, "verdict": "level"}
            for probe in ("net_bw", "ib_bw", "nccl_node", "nccl_pair")
        ],
    },
}

#: Id, step, path to what is changed, its value, the state that follows, a part of what is found.
CHANGES: tuple[tuple[str, str, tuple[Any, ...], Any, str, str], ...] = (
    ("CNP01-09", "launch_instance", ("state",), "pending", "not met", "is pending"),
    ("CNP01-09", "launch_instance", ("state",), None, "not known", "nothing usable for state"),
    ("CNP01-11", "list_instances", ("instances",), [], "not met", "not among 0"),
    ("CNP01-11", "list_instances", ("instances",), [7], "not known", "no object"),
    ("CNP01-13", "reboot_instance", ("state",), "stopped", "not met", "is stopped"),
    # The step's own word is not enough, where the guest could not be asked.
    (
        "CNP01-13",
        "reboot_instance",
        ("reboot_confirmed",),
        None,
        "not known",
        "guest could not be queried",
    ),
    ("CNP01-14", "stop_instance", ("state",), "running", "not met", "is running"),
    ("CNP01-14", "stop_instance", ("success",), False, "not known", "without a reason"),
    ("CNP01-15", "start_instance", ("state",), "stopped", "not met", "is stopped"),
    ("CNP08-03", "start_instance", ("instance_id",), "another", "not met", "ids differ"),
    ("CNP08-03", "start_instance", ("instance_id",), "", "not known", "does not contain"),
    ("CNP05-02", "verify_tags", ("tags", "Name"), "", "not met", "without Name"),
    ("CNP05-02", "verify_tags", ("tags",), None, "not known", "nothing usable for tags"),
    ("CNP06-03", "serial_console", ("output_length",), 0, "not known", "empty"),
    ("CNP06-03", "serial_console", ("output_length",), True, "not known", "nothing usable"),
    (
        "CNP01-16",
        "console_rbac",
        ("tests", "denied_principal_cannot_access_console", "passed"),
        False,
        "not met",
        "is not refused",
    ),
    (
        "CNP01-16",
        "console_rbac",
        ("tests", "allowed_principal_is_resource_scoped"),
        None,
        "not known",
        "does not contain whether",
    ),
    (
        "CNP01-17",
        "virtual_device_hardening",
        ("tests", "usb_devices_disabled"),
        {"passed": False, "error": "it has a USB tablet"},
        "not met",
        "a USB tablet",
    ),
    ("CNP01-17", "virtual_device_hardening", ("source",), "api", "not known", "libvirt's XML"),
    ("AUTH02-01", "launch_instance", ("key_name",), "other", "not met", "has other"),
    # Nova's record alone is what the suite takes.
    ("AUTH02-01", "describe_instance", ("guest",), None, "not known", "is open"),
    (
        "AUTH03-01",
        "component_key_access",
        ("tests", "sol_access", "passed"),
        False,
        "not met",
        "never by an ssh key",
    ),
    ("AUTH03-01", "component_key_access", ("tests",), {}, "not known", "does not contain whether"),
    (
        "BOOT02-02",
        "describe_instance",
        ("guest", "metadata_http"),
        None,
        "not known",
        "shows the source",
    ),
    ("BOOT02-02", "describe_instance", ("guest", "metadata_http"), 404, "not met", "service: 404"),
    ("BOOT02-02", "describe_instance", ("guest", "cloud_init"), None, "not met", "no cloud-init"),
    ("BOOT02-02", "describe_instance", ("guest", "cloud_init"), "running", "not known", "running"),
    ("BOOT02-02", "describe_instance", ("guest", "cloud_init"), "error", "not met", "t: error"),
    ("BOOT02-02", "describe_instance", ("guest",), None, "not known", "no login to the guest"),
    ("VMAAS01-01", "reboot_instance", ("ssh_ready",), False, "not met", "after reboot_instance"),
    ("VMAAS01-01", "describe_instance", ("guest",), None, "not known", "no login to the guest"),
    ("VMAAS05-01", "describe_instance", ("guest", "os_id"), "gentoo", "not met", "gentoo is none"),
    ("VMAAS05-01", "describe_instance", ("guest", "os_id"), None, "not known", "os-release"),
    ("VMAAS06-01", "guest_check", ("devices", 0, "driver"), None, "not met", "no driver"),
    (
        "VMAAS06-01",
        "guest_check",
        ("findings",),
        [{"kind": "device", "device": 0, "text": "not there", "wrong": True}],
        "not met",
        "not there",
    ),
    ("VMAAS06-01", "guest_check", ("devices",), [], "not known", "promised no GPU"),
    ("VMAAS06-01", "guest_check", ("version",), 2, "not known", "no report"),
    ("VMAAS07-01", "guest_check", ("devices", 0, "driver"), "", "not met", "no driver"),
    ("VMAAS07-01", "describe_instance", ("guest", "kernel"), None, "not known", "its kernel"),
    # What the suite's check of pinning does not look at.
    ("VMAAS09-01", "vcpu_pinning", ("pins", "1"), [4, 5], "not met", "several host CPUs"),
    ("VMAAS09-01", "vcpu_pinning", ("pins", "1"), [4], "not met", "share a host CPU"),
    ("VMAAS09-01", "vcpu_pinning", ("pins",), {}, "not met", "several host CPUs"),
    ("VMAAS09-01", "vcpu_pinning", ("recorded",), {"1": 7}, "not met", "recorded 7"),
    (
        "VMAAS09-01",
        "guest_check",
        ("findings",),
        [{"kind": "tree", "device": 0, "text": "SYS instead of PIX", "wrong": True}],
        "not met",
        "SYS instead of PIX",
    ),
    ("VMAAS09-01", "guest_check", ("devices",), [], "not known", "no device was promised"),
    ("VMAAS09-01", "vcpu_pinning", ("vcpus",), 0, "not known", "no vCPU"),
    ("NET01-01", "backend_switch_fabric", ("places", 1, "spine"), None, "not met", "h1"),
    (
        "NET01-01",
        "backend_switch_fabric",
        ("places",),
        [{"host": "h0", "leaf": None}],
        "not met",
        "no map",
    ),
    ("NET01-01", "backend_switch_fabric", ("problems",), ["bad"], "not known", "damaged: bad"),
    ("NET01-01", "backend_switch_fabric", ("places",), [], "not known", "no compute host"),
    ("NET02-02", "nvlink_domain", ("places", 0, "nvlink_domain"), None, "not known", "whether the"),
    ("NET02-02", "nvlink_domain", ("problems",), ["bad"], "not known", "damaged: bad"),
    (
        "SDN04-04",
        "query_ib_tenant_isolation",
        ("partitions", 1, "partition_key"),
        "0x0101",
        "not met",
        "networks of 2 projects",
    ),
    (
        "SDN04-04",
        "query_ib_tenant_isolation",
        ("partitions", 0, "partition_key"),
        "0xffff",
        "not met",
        "partition of all ports",
    ),
    (
        "SDN04-04",
        "query_ib_tenant_isolation",
        ("partitions", 0, "shared"),
        True,
        "not met",
        "shared with other projects",
    ),
    # A list of P_Keys says nothing of what is in force.
    ("SDN04-04", "fabric_check", ("rows", 6, "State"), "unknown", "not known", "were not read"),
    ("SDN04-04", "fabric_check", ("rows", 6, "State"), "not met", "not met", "those of 4"),
    ("SDN04-04", "query_ib_tenant_isolation", ("partitions",), [], "not known", "no network"),
    ("SDN04-05", "fabric_check", ("rows", 1, "State"), "not available", "not met", "am_key"),
    ("SDN04-05", "fabric_check", ("rows", 1, "State"), "unknown", "not known", "am_key"),
    (
        "SDN04-05",
        "fabric_check",
        ("rows",),
        [],
        "not known",
        "not the output of nova-hpc fabric check",
    ),
    ("CNP01-04", "topology_placement", ("level_reached",), "host", "not met", "reached host"),
    ("CNP01-04", "topology_placement", ("level_reached",), None, "not known", "not recorded"),
    ("CNP01-04", "topology_placement", ("level_asked",), None, "not known", "requests no level"),
    ("CNP01-04", "topology_placement", ("level_reached",), "moon", "not known", "moon"),
    ("CNP08-04", "migrate_instance", ("instance_id",), "another", "not met", "another after"),
    ("CNP08-04", "migrate_instance", ("moved",), False, "not known", "on the host it was on"),
    ("CAP04-01", "capacity_reservation_grouping", ("groups",), [], "not met", "no host aggregate"),
    (
        "CAP04-01",
        "capacity_reservation_grouping",
        ("groups", 0, "projects"),
        ["p1", "p2"],
        "not met",
        "several projects: a",
    ),
    (
        "CAP04-01",
        "capacity_reservation_grouping",
        ("groups",),
        [
            {"name": "a", "projects": ["p1"], "hosts": ["h0"]},
            {"name": "b", "projects": ["p2"], "hosts": ["h0"]},
        ],
        "not met",
        "for two projects: h0",
    ),
    (
        "CAP04-01",
        "capacity_reservation_grouping",
        ("isolation_enforced",),
        False,
        "not met",
        "does not keep others out",
    ),
    (
        "CAP04-01",
        "capacity_reservation_grouping",
        ("isolation_enforced",),
        None,
        "not known",
        "heeds them is open",
    ),
    (
        "CAP04-02",
        "topology_block_atomic_allocation",
        ("topology_block", "running"),
        3,
        "not met",
        "3 of 4",
    ),
    (
        "CAP04-02",
        "topology_block_atomic_allocation",
        ("topology_block", "block_id"),
        "",
        "not known",
        "do not report a common domain",
    ),
    (
        "CAP04-02",
        "topology_block_atomic_allocation",
        ("topology_block",),
        {"wanted": 1, "running": 1},
        "not known",
        "no block",
    ),
    ("CAP05-01", "query_host_health", ("hosts", 0, "health_present"), False, "not met", "no word"),
    (
        "CAP05-01",
        "query_host_health",
        ("hosts", 0, "observed_age_seconds"),
        None,
        "not met",
        "of unknown age",
    ),
    ("CAP05-01", "query_host_health", ("hosts",), [], "not known", "no compute host"),
    (
        "SEC21-03",
        "query_sanitization",
        ("machines", 0, "sanitized"),
        False,
        "not met",
        "offered without having been cleaned: 0000:21:00.0",
    ),
    ("SEC21-03", "query_sanitization", ("disks", "wiped"), False, "not met", "local disks"),
    ("SEC21-03", "query_sanitization", ("disks", "wiped"), None, "not known", "local disks"),
    (
        "SEC21-03",
        "query_sanitization",
        ("machines", 0, "sanitized"),
        "yes",
        "not known",
        "incomplete",
    ),
    (
        "SEC21-05",
        "query_sanitization",
        ("machines", 0, "cleaned_within"),
        False,
        "not met",
        "offered without",
    ),
    ("SEC21-05", "query_sanitization", ("machines", 0, "has_gpu"), False, "not known", "no GPU"),
    (
        "SEC21-05",
        "query_sanitization",
        ("machines", 0, "served_tenant"),
        False,
        "not known",
        "has served a server yet",
    ),
    ("VMAAS13-01", "acceptance", ("rows", 2, "verdict"), "slow", "not met", "slow: within"),
    ("VMAAS13-01", "acceptance", ("rows",), [], "not known", "not measured"),
    ("VMAAS14-01", "acceptance", ("rows", 1, "verdict"), "slow", "not met", "slow: InfiniBand"),
    ("VMAAS14-01", "acceptance", ("rows", 1, "verdict"), "undecided", "not known", "InfiniBand"),
    ("VMAAS14-01", "acceptance", ("refused",), {"sign": "busy"}, "not known", "was refused"),
    ("VMAAS14-01", "acceptance", ("promise",), None, "not known", "is as promised"),
    (
        "VMAAS13-01",
        "acceptance",
        ("promise", "findings"),
        [{"kind": "device", "wrong": True}],
        "not known",
        "not as promised",
    ),
)


def build_evidence(outputs: dict[str, Any] | None = None) -> RequirementEvidence:
    """Evidence of steps that have printed this; without it, what meets everything."""
    given = GOOD if outputs is None else outputs
    return RequirementEvidence({name: StepEvidence(value) for name, value in given.items()})


def change_output(step: str, path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """All outputs, with one thing of one step changed."""
    outputs = copy.deepcopy(GOOD)
    place: Any = outputs[step]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return outputs
