# SPDX-License-Identifier: Apache-2.0
"""The findings on a node that ``configure`` prints beside what it writes. Pure."""

from __future__ import annotations

from nova_hpc.topology.model import Node
from nova_hpc.topology.roles import Roles
from nova_hpc.wire.node_declaration import NodeWishes
from nova_hpc_tools.adopt import overlooked, readiness
from nova_hpc_tools.adopt.device_spec import DeviceSpec
from nova_hpc_tools.adopt.findings import DoctorFinding
from nova_hpc_tools.adopt.kernel_options import KernelOptions
from nova_hpc_tools.adopt.service_settings import ServiceSettings
from nova_hpc_tools.adopt.storage_findings import find_kept_storage


def find_node_faults(
    node: Node,
    spec: DeviceSpec,
    roles: Roles,
    wishes: NodeWishes,
    told: ServiceSettings,
    kernel: KernelOptions,
) -> list[DoctorFinding]:
    """Find what keeps devices from servers: ``doctor`` has the same findings.

    :param node: read from sysfs; lstopo's XML says nothing of this.
    :param told: the settings of the services.
    :param kernel: options of the operator's, and features that run.
    """
    offered = readiness.offered_functions_of(node, spec)
    return [
        *readiness.check_readiness(node, spec, roles, wishes, kernel),
        *overlooked.find_overlooked_devices(node, roles, offered, bool(told.other_roles)),
        *find_kept_storage(node, roles, spec, told.configured.device_spec, told.erasers),
    ]
