# SPDX-License-Identifier: Apache-2.0
"""The function of each step, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from nova_hpc_requirements import steps_console, steps_fabric, steps_life, steps_node
from nova_hpc_requirements.step_context import StepContext, explain_step_errors
from nova_hpc_requirements.verdicts import EvidenceError, StepEvidence

#: Name -> function that returns the output; it raises EvidenceError, and errors of libraries.
STEPS: Final[Mapping[str, Callable[[StepContext], dict[str, Any]]]] = {
    "launch_instance": steps_life.launch_instance,
    "list_instances": steps_life.list_instances,
    "verify_tags": steps_life.verify_tags,
    "describe_instance": steps_life.describe_instance,
    "serial_console": steps_console.serial_console,
    "console_rbac": steps_console.console_rbac,
    "component_key_access": steps_console.component_key_access,
    "topology_placement": steps_fabric.topology_placement,
    "stop_instance": steps_life.stop_instance,
    "start_instance": steps_life.start_instance,
    "reboot_instance": steps_life.reboot_instance,
    "migrate_instance": steps_life.migrate_instance,
    "teardown": steps_life.tear_down,
    "backend_switch_fabric": steps_fabric.backend_switch_fabric,
    "nvlink_domain": steps_fabric.nvlink_domain,
    "query_ib_tenant_isolation": steps_fabric.query_ib_tenant_isolation,
    "capacity_reservation_grouping": steps_fabric.capacity_reservation_grouping,
    "topology_block_atomic_allocation": steps_fabric.topology_block_atomic_allocation,
    "query_host_health": steps_fabric.query_host_health,
    "virtual_device_hardening": steps_node.virtual_device_hardening,
    "vcpu_pinning": steps_node.vcpu_pinning,
    "query_sanitization": steps_node.query_sanitization,
}


def run_step(name: str, context: StepContext) -> StepEvidence:
    """Run one step. An error becomes the reason of the result; only interrupts are raised."""
    try:
        with explain_step_errors():
            return StepEvidence(STEPS[name](context))
    except EvidenceError as error:
        return StepEvidence(reason=str(error))
