# SPDX-License-Identifier: Apache-2.0
"""The supported releases of Nova, and the scheduler's settings that ``hpc:`` flavors need.

Nothing here matters for other flavors: a scheduler that is not set up for
``hpc:`` flavors serves all others as stock Nova does, and refuses these with
the option to change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from nova import version
from nova.compute import pci_placement_translator
from nova.pci import stats
from nova.virt import hardware

#: Releases of Nova whose behaviour the functional tests prove.
SUPPORTED: Final = range(32, 35)

FILTER: Final = "HpcTopologyFilter"
#: Nova's filters that check candidates again, and so must come after ours.
AFTER: Final = ("NUMATopologyFilter", "PciPassthroughFilter")

_PARAMETERS: Final[dict[str, tuple[Callable[..., Any] | None, frozenset[str]]]] = {
    "PciDeviceStats._filter_pools": (
        getattr(stats.PciDeviceStats, "_filter_pools", None),
        frozenset({"pools", "request", "numa_cells", "rp_uuids"}),
    ),
    "PciDeviceStats._get_rp_uuids_for_request": (
        getattr(stats.PciDeviceStats, "_get_rp_uuids_for_request", None),
        frozenset({"provider_mapping", "request"}),
    ),
    "PciDeviceStats.support_requests": (
        getattr(stats.PciDeviceStats, "support_requests", None),
        frozenset({"requests", "provider_mapping", "numa_cells"}),
    ),
    "hardware.numa_fit_instance_to_host": (
        getattr(hardware, "numa_fit_instance_to_host", None),
        frozenset({"provider_mapping", "limits", "pci_requests", "pci_stats"}),
    ),
    "pci_placement_translator.get_resource_class": (
        getattr(pci_placement_translator, "get_resource_class", None),
        frozenset({"requested_name", "vendor_id", "product_id"}),
    ),
}

#: Functions that the scheduler or a node calls and does not wrap, but relies on beyond their
#: parameters.
RELIED_ON: Final = (
    "nova.compute.manager:ComputeManager._flavor_based_pci_claim",
    "nova.compute.manager:ComputeManager._reset_live_migration",
    "nova.compute.manager:ComputeManager._rollback_live_migration",
    "nova.compute.resource_tracker:ResourceTracker.unclaim_pci_devices",
    "nova.db.main.api:compute_node_update",
    "nova.objects.compute_node:ComputeNode._from_db_object",
    "nova.objects.instance_group:InstanceGroup.get_by_instance_uuid",
    "nova.pci.stats:PciDeviceStats._apply_request",
    "nova.pci.stats:PciDeviceStats._get_rp_uuids_for_request",
    "nova.pci.stats:PciDeviceStats.apply_requests",
    "nova.pci.stats:PciDeviceStats.support_requests",
    "nova.compute.pci_placement_translator:get_resource_class",
    "nova.compute.pci_placement_translator:get_traits",
    "nova.scheduler.client.report:SchedulerReportClient.move_allocations",
    "nova.scheduler.host_manager:HostManager._get_computes_for_cells",
    "nova.scheduler.host_manager:HostManager._get_host_states",
    "nova.service:Service.start",
    "nova.virt.hardware:_numa_fit_instance_cell",
    "nova.virt.hardware:_pack_instance_onto_cores",
    "nova.virt.libvirt.migration:_update_pci_dev_xml",
)


def running_nova_release() -> int | None:
    """Return the major version of the installed Nova; None if its version text has none."""
    return _major_version_of(version.version_string())


def _major_version_of(text: str) -> int | None:
    major = text.split(".", 1)[0]
    return int(major) if major.isdigit() else None


def list_contract_problems(conf: Any, running: str | None = None) -> list[str]:
    """List the reasons why this scheduler cannot serve ``hpc:`` flavors; [] if it can.

    :param conf: Nova's configuration.
    :param running: Nova's version; the running one if None.
    """
    return [*list_release_differences(running), *list_wrong_settings(conf)]


def list_release_differences(running: str | None = None) -> list[str]:
    """List the reasons why this release of nova-hpc does not support this Nova; [] if it does.

    :param running: Nova's version; the running one if None.
    """
    differences = []
    running = version.version_string() if running is None else running
    if _major_version_of(running) not in SUPPORTED:
        differences.append(
            f"Nova {running} is not supported; this release of nova-hpc supports {SUPPORTED[0]} "
            f"to {SUPPORTED[-1]}"
        )
    differences += [
        f"{name} of Nova {running} is not as this release of nova-hpc needs it"
        for name, (function, parameters) in _PARAMETERS.items()
        if function is None or not parameters <= set(inspect.signature(function).parameters)
    ]
    return differences


def list_wrong_settings(conf: Any) -> list[str]:
    """List the changes of nova.conf without which the scheduler cannot serve ``hpc:`` flavors."""
    faults = []
    if not conf.filter_scheduler.pci_in_placement:
        faults.append("set [filter_scheduler]pci_in_placement = True")
    faults += _list_filter_order_faults(list(conf.filter_scheduler.enabled_filters))
    return faults


def _list_filter_order_faults(enabled: list[str]) -> list[str]:
    faults = []
    ours = enabled.index(FILTER) if FILTER in enabled else -1
    for name in AFTER:
        if name not in enabled:
            faults.append(f"add {name} to [filter_scheduler]enabled_filters, after {FILTER}")
        elif enabled.index(name) < ours:
            faults.append(f"put {FILTER} before {name} in [filter_scheduler]enabled_filters")
    return faults


def list_setting_advice(conf: Any) -> list[str]:
    """List settings of Nova that work, but cost performance; [] if all are as recommended."""
    hints = []
    if not conf.workarounds.disable_fallback_pcpu_query:
        hints.append(
            "[workarounds]disable_fallback_pcpu_query = True saves a second query of "
            "allocation candidates for every server with dedicated CPUs"
        )
    return hints
