# SPDX-License-Identifier: Apache-2.0
"""A pytest plug-in that switches this project on under Nova's own tests.

Nova's tests name their driver and filters by ``flags``; this plug-in answers
each such call with ours in the place where an operator would put them, counts
how often each is called, and writes the counts for the comparison.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import fixtures
import nova.virt
from nova import test
from nova.scheduler import host_manager
from nova.tests.functional import integrated_helpers

import virt_driver_patches
from nova_hpc import conf as hpc_conf
from scheduler_filters.hpc_fabric_filter import HpcFabricFilter
from scheduler_filters.hpc_packing_weigher import HpcPackingWeigher
from scheduler_filters.hpc_topology_filter import HpcTopologyFilter

#: Add this affinity to every flavor with a PCI alias ("" adds nothing).
AFFINITY = os.environ.get("NOVA_HPC_SUITES_AFFINITY", "")
REPORT = pathlib.Path(os.environ["NOVA_HPC_SUITES_REPORT"])

FILTER = "scheduler_filters.hpc_topology_filter.HpcTopologyFilter"
FABRIC_FILTER = "scheduler_filters.hpc_fabric_filter.HpcFabricFilter"
WEIGHER = "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher"
FABRIC_WEIGHER = "scheduler_filters.hpc_fabric_weigher.HpcFabricWeigher"
DRIVER = "hpc.HpcLibvirtDriver"

calls: collections.Counter[str] = collections.Counter()


def _counted(owner: type, name: str) -> None:
    """Count the calls of *owner*.*name*, inherited or not."""
    inner: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(inner)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[f"{owner.__name__}.{name}"] += 1
        return inner(self, *args, **kwargs)

    setattr(owner, name, wrapper)


def _switch_on() -> None:
    shim = pathlib.Path(virt_driver_patches.__file__).parent / "shim"
    nova.virt.__path__.append(str(shim))
    from nova.virt import hpc

    hpc_conf.register_all_options(host_manager.CONF)
    _counted(HpcTopologyFilter, "filter_all")
    _counted(HpcFabricFilter, "filter_all")
    _counted(HpcPackingWeigher, "weigh_objects")
    for name in ("init_host", "get_available_resource", "_get_guest_xml", "_create_guest"):
        _counted(hpc.HpcLibvirtDriver, name)

    flags = test.TestCase.flags

    def with_ours(self: Any, **kw: Any) -> None:
        if str(kw.get("compute_driver", "")).startswith("libvirt."):
            kw["compute_driver"] = DRIVER
        if "enabled_filters" in kw:
            ours = ("HpcTopologyFilter", "HpcFabricFilter")
            others = [name for name in kw["enabled_filters"] if name not in ours]
            kw["enabled_filters"] = [ours[0], *others, ours[1]]
        if "weight_classes" in kw:
            kw["weight_classes"] = [*kw["weight_classes"], WEIGHER, FABRIC_WEIGHER]
        flags(self, **kw)

    test.TestCase.flags = with_ours

    set_up = test.TestCase.setUp

    def set_up_with_ours(self: Any) -> None:
        set_up(self)
        conf = host_manager.CONF
        enabled = [*conf.filter_scheduler.enabled_filters]
        # Nova's tests must not read this machine; an empty one stands in.
        nowhere = self.useFixture(fixtures.TempDir()).path
        self.flags(group="hpc", sysfs_root=nowhere, watch_interval=0.0)
        self.flags(
            group="filter_scheduler",
            available_filters=["nova.scheduler.filters.all_filters", FILTER, FABRIC_FILTER],
            weight_classes=["nova.scheduler.weights.all_weighers"],
            enabled_filters=enabled,
        )

    test.TestCase.setUp = set_up_with_ours

    if AFFINITY:
        create = integrated_helpers.InstanceHelperMixin._create_flavor

        def with_affinity(self: Any, *args: Any, **kw: Any) -> Any:
            specs = kw.get("extra_spec")
            if specs and "pci_passthrough:alias" in specs:
                kw["extra_spec"] = {"hpc:affinity": AFFINITY, **specs}
            return create(self, *args, **kw)

        integrated_helpers.InstanceHelperMixin._create_flavor = with_affinity


_switch_on()


def pytest_sessionfinish() -> None:
    """Write this process's counts; the runner adds them up."""
    REPORT.mkdir(parents=True, exist_ok=True)
    path = REPORT / f"calls-{os.getpid()}.json"
    path.write_text(json.dumps(calls))
