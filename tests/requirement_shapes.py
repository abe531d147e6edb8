# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's validation suite reads of each step, recorded by us: field -> what it has to be.

Read in the checks of ai-cloud-validation 0.11.0 (``isvtest/src/isvtest/validations`` and
``isvctl/src/isvctl/config/output_schemas.py``). A dot goes into an object, a star into each item
of a list. ``"filled"`` is a text that is not empty; a tuple lists the words that are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_STATES = ("pending", "running", "stopped", "terminated")
_PASSED = {"passed": bool}


def _tests(*names: str) -> dict[str, Any]:
    return {f"tests.{name}.passed": bool for name in names}


SHAPES: dict[str, dict[str, Any]] = {
    "launch_instance": {
        "platform": "filled",
        "instance_id": "filled",
        "state": _STATES,
        "public_ip": str,
        "private_ip": str,
        "key_file": "filled",
        "requested_key_name": "filled",
        "key_name": "filled",
        "vpc_id": "filled",
        "instance_type": "filled",
    },
    "list_instances": {
        "platform": "filled",
        "instances.*.instance_id": "filled",
        "instances.*.state": "filled",
        "instances.*.vpc_id": "filled",
        "count": int,
        "found_target": bool,
        "target_instance": "filled",
    },
    "verify_tags": {
        "instance_id": "filled",
        "tags.Name": "filled",
        "tags.CreatedBy": "filled",
        "tag_count": int,
    },
    "describe_instance": {
        "instance_id": "filled",
        "state": _STATES,
        "public_ip": str,
        "key_file": str,
        "ssh_user": str,
    },
    "serial_console": {
        "instance_id": "filled",
        "console_available": bool,
        "serial_access_enabled": bool,
        "output_length": int,
    },
    "console_rbac": {
        "instance_id": "filled",
        "access_restricted": bool,
        "restricted_actions.*": "filled",
        **_tests(
            "denied_principal_cannot_access_console",
            "allowed_principal_can_access_console",
            "allowed_principal_is_resource_scoped",
        ),
    },
    "component_key_access": {
        "key_name": "filled",
        **_tests("sol_access", "network_device_access"),
    },
    "virtual_device_hardening": _tests(
        "usb_devices_disabled", "clipboard_disabled", "unnecessary_virtual_devices_absent"
    ),
    "stop_instance": {"instance_id": "filled", "stop_initiated": bool, "state": _STATES},
    "start_instance": {
        "instance_id": "filled",
        "start_initiated": bool,
        "state": _STATES,
        "ssh_ready": bool,
    },
    "reboot_instance": {
        "instance_id": "filled",
        "reboot_initiated": bool,
        "state": _STATES,
        "ssh_ready": bool,
    },
    "teardown": {"platform": "filled", "resources_deleted": list, "resources_failed": list},
    "backend_switch_fabric": {
        "node_id": "filled",
        "fabric.leaf_switch_ids": list,
        "fabric.spine_switch_ids": list,
        "fabric.core_switch_ids": list,
        **_tests(
            *("node_resolved", "leaf_switch_ids_present"),
            *("spine_switch_ids_present", "core_switch_ids_present"),
        ),
    },
    "nvlink_domain": {
        "node_id": "filled",
        "nvlink_supported": (True, False, None),
        **_tests("node_resolved", "nvlink_support_detected", "nvlink_domain_id_present"),
    },
    "topology_placement": {
        "instance_id": "filled",
        "placement_supported": bool,
        "availability_zone": str,
        "placement_strategy": str,
        "operations.place_by_topology.passed": bool,
    },
    "query_ib_tenant_isolation": {
        "partitions.*.name": "filled",
        "partitions.*.partition_key": "filled",
        "partitions.*.tenant_id": "filled",
        "partitions.*.status": str,
    },
    "query_ib_keys": {
        "partitions_with_pkey": int,
        **{
            f"keys.{name}.configured": (True, False, None)
            for name in (
                *("p_key", "management_key", "aggregation_management_key"),
                *("vendor_specific_key", "congestion_control_key"),
                *("node2node_key", "manager2node_key"),
            )
        },
    },
    "capacity_reservation_grouping": {
        "reservation_id": str,
        "account_id": str,
        "resources.*.resource_id": "filled",
        "resources.*.account_id": "filled",
        "resources.*.pinned": bool,
        "pinned": bool,
        "isolation_enforced": (True, False, None),
    },
    "topology_block_atomic_allocation": {
        "platform": "filled",
        "topology_block.block_id": str,
        "topology_block.reservation_id": "filled",
        "topology_block.tenant_id": "filled",
        "topology_block.allocated_as_unit": bool,
        "topology_block.partial_allocation": bool,
        "topology_block.homogeneous": bool,
        "topology_block.isolation_enforced": bool,
        **{
            f"topology_block.{side}.{kind}": int
            for side in ("requested", "allocated")
            for kind in ("compute", "network", "storage")
        },
        **{
            f"topology_block.resources.*.{name}": str
            for name in (
                *("resource_id", "resource_type", "tenant_id", "topology_block_id"),
                *("performance_domain", "isolation_boundary"),
            )
        },
    },
    "query_host_health": {
        "hosts.*.host_id": "filled",
        "hosts.*.health_present": bool,
        "hosts.*.healthy": bool,
        "hosts.*.observed_age_seconds": (int, None),
        "hosts.*.probe_ids": list,
        "hosts.*.alerts": list,
    },
    "query_sanitization": {
        "machines.*.machine_id": "filled",
        "machines.*.status": "filled",
        "machines.*.available": bool,
        "machines.*.in_use": bool,
        "machines.*.has_gpu": bool,
        "machines.*.served_tenant": bool,
        "machines.*.sanitized": bool,
        "machines.*.stale_tenant_binding": bool,
        "machines.*.transitions": list,
    },
}


def list_shape_faults(step: str, output: dict[str, Any]) -> list[str]:
    """What a step's output lacks of what the suite reads; []: nothing."""
    faults = [] if isinstance(output.get("success"), bool) else ["success"]
    for path, wanted in SHAPES[step].items():
        for where, value in _walk(output, path.split("."), ()):
            if not _fits(value, wanted):
                faults.append(f"{where}: {value!r} is not {wanted}")
    return faults


def _walk(value: Any, path: list[str], where: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    if not path:
        yield ".".join(map(str, where)), value
    elif path[0] == "*":
        items = value if isinstance(value, list) else [...]
        for number, item in enumerate(items):
            yield from _walk(item, path[1:], (*where, number))
    else:
        inner = value.get(path[0], ...) if isinstance(value, dict) else ...
        yield from _walk(inner, path[1:] if inner is not ... else [], (*where, path[0]))


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return any(value is each or _fits(value, each) for each in wanted)
    if wanted == "filled":
        return isinstance(value, str) and bool(value.strip())
    if isinstance(wanted, type):
        return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    return value == wanted
