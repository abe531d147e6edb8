# SPDX-License-Identifier: Apache-2.0
"""Faults of the settings of a controller and of Placement, each with what cures it."""

from __future__ import annotations

from typing import Final

from nova_hpc_tools.site import settings
from tests.unit.doctor.doctor_changes import (
    CONFIGURE,
    CONTROLLER,
    FULL,
    PLACEMENT,
    Fault,
    again,
    controller,
    hidden,
    later_weighers,
    placement,
    quota,
    weighers,
)

SERVICE_FAULTS: Final = (
    Fault(
        "the filter not enabled", "filter-missing", controller("ComputeFilter,Mine"),
        CONFIGURE, again, "controller",
    ),
    Fault(
        "the filter not available", "filter-unknown",
        lambda p: p.edit(CONTROLLER, f"available_filters = {settings.FILTER_CLASS}\n", ""),
        CONFIGURE, again, "controller",
    ),
    Fault(
        "the filter behind Nova's", "filter-order",
        controller(FULL.replace("HpcTopologyFilter,", "").replace(
            "NUMATopologyFilter", "NUMATopologyFilter,HpcTopologyFilter")),
        CONFIGURE, again, "controller",
    ),
    Fault(
        "the fabric's filter not the last", "filter-last",
        controller(f"HpcFabricFilter,{FULL.replace(',HpcFabricFilter', '')}"),
        CONFIGURE, again, "controller",
    ),
    Fault(
        "another team's filter hidden by a later file", "filter-lost", hidden,
        "added to the last file",
        lambda p: (p.folder / "zz.conf").write_text(
            f"[filter_scheduler]\nenabled_filters = {FULL}\n"
        ),
        "controller",
    ),
    Fault(
        "the weighers replaced", "weigher-missing",
        lambda p: p.option(CONTROLLER, "weight_classes", settings.ALL_WEIGHERS),
        CONFIGURE, again, "controller",
    ),
    Fault(
        "Nova's own weighers left out", "weigher-lost",
        lambda p: weighers(p, "acme.Tenants"),
        "added", lambda p: weighers(p, f"{settings.ALL_WEIGHERS},acme.Tenants"), "controller",
    ),
    Fault(
        "another team's weigher hidden by a later file", "weigher-lost",
        lambda p: later_weighers(p, settings.ALL_WEIGHERS),
        "added to the last file",
        lambda p: later_weighers(p, f"{settings.ALL_WEIGHERS},acme.Tenants"), "controller",
    ),
    Fault(
        "candidates without devices", "pci-in-placement",
        lambda p: p.option(CONTROLLER, "pci_in_placement", "false"), CONFIGURE, again, "controller",
    ),
    Fault(
        "Nova's limit below the number of hosts", "limit-placement",
        lambda p: p.option(CONTROLLER, "max_placement_results", "1500"),
        CONFIGURE, again, "controller",
    ),
    Fault(
        "a scheduler that remembers fewer hosts than can match", "cache-small",
        lambda p: (p.folder / "zz.conf").write_text("[hpc]\ncache_size = 900\n"),
        "raised", lambda p: (p.folder / "zz.conf").write_text("[hpc]\ncache_size = 0\n"),
        "controller",
    ),
    Fault(
        "an alias given twice", "alias-twice",
        lambda p: (p.folder / "aa.conf").write_text(
            '[pci]\nalias = {"name": "gpu", "product_id": "2330", "vendor_id": "10de"}\n'
        ),
        "one removed", lambda p: (p.folder / "aa.conf").unlink(), "controller",
    ),
    Fault(
        "an alias that is no JSON", "alias-broken",
        lambda p: (p.folder / "aa.conf").write_text("[pci]\nalias = gpu\n"),
        "written as JSON",
        lambda p: (p.folder / "aa.conf").write_text('[pci]\nalias = {"name": "x"}\n'),
        "controller",
    ),
    Fault(
        "server groups of ten members", "group-members", quota(10),
        "``server_group_members`` raised", quota(2000), "controller",
    ),
    Fault(
        "candidates depth first", "candidates-depth",
        lambda p: p.option(PLACEMENT, "allocation_candidates_generation_strategy", "depth-first"),
        CONFIGURE, placement, "placement",
    ),
    Fault(
        "Placement's limit below the number of hosts", "limit-candidates",
        lambda p: p.option(PLACEMENT, "max_allocation_candidates", "1500"),
        CONFIGURE, placement, "placement",
    ),
    Fault(
        "Placement's own retries", "conflict-retry",
        lambda p: p.option(PLACEMENT, "allocation_conflict_retry_count", "10"),
        CONFIGURE, placement, "placement",
    ),
)  # fmt: skip
