# SPDX-License-Identifier: Apache-2.0
"""The findings on a node that ``configure`` prints in addition to its files."""

from __future__ import annotations

from pathlib import Path

from nova_hpc.topology.model import Node
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.site import device_users, overlooked, readiness
from nova_hpc_tools.site.declared_vfs import check_firmware, list_short_adapters
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.findings import DoctorFinding
from nova_hpc_tools.site.kernel_options import KernelOptions
from nova_hpc_tools.site.mlxconfig import read_firmware_sriov
from nova_hpc_tools.site.service_settings import ServiceSettings
from nova_hpc_tools.site.storage_findings import find_kept_storage
from nova_hpc_tools.wire.node_declaration import NodeWishes


def find_device_faults(
    root: Path | None,
    node: Node,
    spec: DeviceSpec,
    roles: Roles,
    wishes: NodeWishes,
    told: ServiceSettings,
) -> list[DoctorFinding]:
    """Find disks and adapters that are not offered for a reason of their own.

    mlxconfig, if it is installed, reports the settings that wait for a cold start.

    :param root: the folder with the node's files.
    :param told: the settings of the services.
    """
    short = [function.address for function, _ in list_short_adapters(node, roles, wishes)]
    firmware = read_firmware_sriov(root, short)
    return [
        *check_firmware(node, roles, wishes, firmware),
        *find_kept_storage(node, roles, spec, told.configured.device_spec, told.erasers),
    ]


def find_node_faults(
    root: Path,
    node: Node,
    spec: DeviceSpec,
    roles: Roles,
    wishes: NodeWishes,
    told: ServiceSettings,
    kernel: KernelOptions,
) -> list[DoctorFinding]:
    """Find states that keep devices from servers: ``doctor`` has the same findings.

    :param root: the folder with the node's files.
    :param node: read from sysfs; lstopo's XML does not contain these facts.
    :param told: the settings of the services.
    :param kernel: the operator's options, and features of the running kernel.
    """
    offered = readiness.offered_functions_of(node, spec)
    return [
        *readiness.check_readiness(
            node, spec, roles, wishes, kernel, device_users.find_device_users(root, offered)
        ),
        *overlooked.find_overlooked_devices(node, roles, offered, bool(told.other_roles)),
        *find_device_faults(root, node, spec, roles, wishes, told),
    ]
