# SPDX-License-Identifier: Apache-2.0
"""The names of steps and of other evidence. Data only: the module loads no client of a cloud."""

from __future__ import annotations

from typing import Final

#: In the order in which they are run: first the life of one server.
STEP_NAMES: Final = (
    "launch_instance",
    "list_instances",
    "verify_tags",
    "describe_instance",
    "serial_console",
    "console_rbac",
    "component_key_access",
    "topology_placement",
    "stop_instance",
    "start_instance",
    "reboot_instance",
    "migrate_instance",
    "teardown",
    "backend_switch_fabric",
    "nvlink_domain",
    "query_ib_tenant_isolation",
    "capacity_reservation_grouping",
    "topology_block_atomic_allocation",
    "query_host_health",
    "virtual_device_hardening",
    "vcpu_pinning",
    "query_sanitization",
)
#: They make a server or a user, or change the server that they are about.
CHANGING: Final = frozenset(
    (
        *("launch_instance", "console_rbac", "stop_instance", "start_instance"),
        *("reboot_instance", "migrate_instance", "teardown"),
    )
)
#: They read a server, and give nothing without one.
READING: Final = frozenset(
    (
        *("list_instances", "verify_tags", "describe_instance", "serial_console"),
        *("component_key_access", "topology_placement"),
    )
)
#: They run on the compute node that has the evidence.
ON_NODE: Final = frozenset(("virtual_device_hardening", "vcpu_pinning", "query_sanitization"))
#: Those of them that need no cloud.
WITHOUT_CLOUD: Final = frozenset(("virtual_device_hardening", "query_sanitization"))

GUEST_CHECK: Final = "guest_check"
ACCEPTANCE: Final = "acceptance"
FABRIC_CHECK: Final = "fabric_check"
#: Document that is not a step's -> the command that prints it.
DOCUMENTS: Final = {
    GUEST_CHECK: "nova-hpc-guest check --format json",
    ACCEPTANCE: "nova-hpc-guest accept --format json",
    FABRIC_CHECK: "nova-hpc fabric check -f json",
}
#: A step that is printed from such a document.
QUERY_KEYS: Final = "query_ib_keys"
EVIDENCE_NAMES: Final = (*STEP_NAMES, *DOCUMENTS)
