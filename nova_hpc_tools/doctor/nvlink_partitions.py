# SPDX-License-Identifier: Apache-2.0
"""The partitions of this node's NVLink fabric, compared with its ledger and its NVLink sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.nvlink import partitions as nvlink
from nova_hpc.tenancy.nvlink.backend import BackendError
from nova_hpc.tenancy.nvlink.partitions import NvlinkFabricError
from nova_hpc.tenancy.nvlink.step import NvlinkStep
from nova_hpc.topology import roles, sysfs
from nova_hpc.topology.model import address_key
from nova_hpc_tools.base import CommandAnswer
from nova_hpc_tools.site import nvlink_sets as sets
from nova_hpc_tools.site import service_settings

#: Errors of the functions below that end a command with one line.
ERRORS: Final = (
    *(BackendError, NvlinkFabricError, LedgerError),
    *(service_settings.ConfigError, sets.NvlinkError, roles.RoleError),
)
#: Options that this module reads.
_NEEDED: Final = ("nvlink_gpus", "nvlink_timeout", "ledger_file", "nvlink_set")

_DIFFERENT: Final = 1


def list_partitions(config: Sequence[str]) -> CommandAnswer:
    """List the NVLink partitions: whether each is active, and the server that uses it.

    A manager that was restarted is not sent anything.

    :param config: ``--config-file`` and ``--config-dir`` options of nova-compute.
    :raises Exception: one of :data:`ERRORS`.
    """
    links, _ = _open_fabric(config)
    _expect_ledger(links)
    state = links.state()
    if state.lost is not None:
        print(f"Problem: {state.lost}", file=sys.stderr)
    rows = [
        (
            partition.id,
            " ".join(_sort_gpu_addresses(partition.gpus)),
            partition.links,
            partition.active,
            state.tenancies[partition.id].server if partition.id in state.tenancies else "",
        )
        for partition in links.backend.partitions()
    ]
    columns = ("Partition", "GPUs", "NVLinks", "Active", "Server")
    return CommandAnswer(columns, rows, nothing="The manager of the fabric has no partition.")


def compare_partitions(config: Sequence[str]) -> CommandAnswer:
    """Compare the NVLink partitions with the NVLink sets of this node.

    People read the lines that ``[hpc]nvlink_set`` needs. The status is 1 if they differ: a server
    that gets a set without a partition is refused.

    :param config: ``--config-file`` and ``--config-dir`` options of nova-compute.
    :raises Exception: one of :data:`ERRORS`.
    """
    links, options = _open_fabric(config)
    node = sysfs.read_sysfs_node(Path(options.sysfs_root))
    table = roles.parse_roles(options.device_role)
    given = sets.parse_nvlink_sets(options.nvlink_set) or sets.default_nvlink_sets(node, table)
    names = {nvlink_set.devices: nvlink_set.name for nvlink_set in given}
    partitions = links.backend.partitions()
    missing, wrong = nvlink.compare_with_nvlink_sets(partitions, names)
    ids = {partition.gpus: partition.id for partition in partitions}
    rows = [
        *((names[gpus], " ".join(_sort_gpu_addresses(gpus)), "remove") for gpus in wrong),
        *(
            (f"partition-{ids[gpus]}", " ".join(_sort_gpu_addresses(gpus)), "add")
            for gpus in missing
        ),
    ]
    return CommandAnswer(
        ("Set", "Devices", "Change"),
        rows,
        _DIFFERENT if rows else 0,
        show=lambda: _print_set_changes(rows),
    )


def restore_partitions(config: Sequence[str]) -> CommandAnswer:
    """Send the partitions of running servers to a Fabric Manager that was restarted.

    nova-compute does the same at its next periodic update and before the next server starts, but
    NVIDIA's Fabric Manager waits for 60 seconds only. Without a ledger nothing is sent: an empty
    list would deactivate the partitions of all servers.

    :param config: ``--config-file`` and ``--config-dir`` options of nova-compute.
    :raises Exception: one of :data:`ERRORS`.
    """
    links, _ = _open_fabric(config)
    _expect_ledger(links)
    active_ids = links.restore()
    return CommandAnswer(
        ("Partition",),
        [(partition_id,) for partition_id in active_ids],
        show=lambda: print(f"Active partitions: {', '.join(map(str, active_ids)) or 'none'}"),
    )


def _open_fabric(config: Sequence[str]) -> tuple[NvlinkStep, Any]:
    """Return the step for the NVLink fabric of this node, and the options of group ``[hpc]``.

    :raises BackendError: the node has no NVLink partitions.
    """
    options = service_settings.read_node_options(config, _NEEDED).hpc
    links = NvlinkStep.from_options(options, LedgerFile.from_options(options))
    if links is None:
        raise BackendError("[hpc]nvlink_backend is none: this node has no partitions")
    return links, options


def _expect_ledger(links: NvlinkStep) -> None:
    """Print the path of the ledger.

    :raises LedgerError: the ledger does not exist.
    """
    links.ledger.existing()
    print(f"Ledger: {links.ledger.path}", file=sys.stderr)


def _print_set_changes(rows: Iterable[tuple[str, str, str]]) -> None:
    if not rows:
        print("The NVLink sets of this node are the partitions.")
    for name, devices, change in rows:
        if change == "remove":
            print(f"NVLink set {name!r} is no partition: remove it from [hpc]nvlink_set")
        else:
            print(f"nvlink_set = {json.dumps({'name': name, 'devices': devices.split()})}")


def _sort_gpu_addresses(gpus: Iterable[str]) -> list[str]:
    return sorted(gpus, key=address_key)
