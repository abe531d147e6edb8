# SPDX-License-Identifier: Apache-2.0
"""The causes for which a server finds no host: what is asked for, and what everybody reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs
from oslo_utils import uuidutils

from nova_hpc.wire.stats import StatsDocument

if TYPE_CHECKING:
    from tests.functional.test_causes import CausesTest

PAIR: Final = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
REQUIRED: Final = {"hw:pci_numa_affinity_policy": "required"}
PINNED: Final = {"hw:cpu_policy": "dedicated"} | REQUIRED
OPERATOR: Final = "; contact the cloud's operator"

Change = Callable[["CausesTest"], contextlib.AbstractContextManager[None]]


@attrs.frozen
class Cause:
    """One row: what is asked for, and what everybody reads."""

    name: str
    user: str
    #: In the log; a pattern.
    operator: str
    #: Of ``explain``: what it says of the host that comes nearest, or that it fits.
    explain: str = "Placement has no candidate for it now: no host has "
    specs: Mapping[str, str] = PAIR
    flavor: Mapping[str, int] = attrs.field(factory=dict)
    boot: Mapping[str, str] = attrs.field(factory=dict)
    #: Properties of the image.
    image: Mapping[str, str] = attrs.field(factory=dict)
    change: Change | None = None
    count: int = 1


def _quiet(test: CausesTest) -> Iterator[None]:
    """Disable all compute services."""
    found = test.admin_api.get_services(binary="nova-compute")
    for each in found:
        test.admin_api.put_service(each["id"], {"status": "disabled"})
    try:
        yield
    finally:
        for each in found:
            test.admin_api.put_service(each["id"], {"status": "enabled"})


def _down(test: CausesTest) -> Iterator[None]:
    found = test.admin_api.get_services(binary="nova-compute")
    for each in found:
        test.admin_api.put_service(each["id"], {"forced_down": True})
    try:
        yield
    finally:
        for each in found:
            test.admin_api.put_service(each["id"], {"forced_down": False})


def _zone_closed(test: CausesTest) -> Iterator[None]:
    (found,) = test.admin_api.get_services(binary="nova-compute", host="beta")
    test.admin_api.put_service(found["id"], {"status": "disabled"})
    try:
        yield
    finally:
        test.admin_api.put_service(found["id"], {"status": "enabled"})


def _cut(test: CausesTest) -> Iterator[None]:
    test.flags(max_placement_results=1, group="scheduler")
    try:
        yield
    finally:
        test.flags(max_placement_results=test.CANDIDATES, group="scheduler")


def _others(test: CausesTest) -> Iterator[None]:
    """All hosts are for other projects."""
    test.flags(limit_tenants_to_placement_aggregate=True, group="scheduler")
    test.flags(placement_aggregate_required_for_tenants=True, group="scheduler")
    number = test.make_aggregate("theirs", {"filter_tenant_id": test.api.project_id}, ["gamma"])
    try:
        yield
    finally:
        test.remove_aggregate(number, ["gamma"])
        test.flags(placement_aggregate_required_for_tenants=False, group="scheduler")
        test.flags(limit_tenants_to_placement_aggregate=False, group="scheduler")


def _isolated(test: CausesTest) -> Iterator[None]:
    """Two of the hosts are for flavors with a trait alone."""
    test.flags(enable_isolated_aggregate_filtering=True, group="scheduler")
    hosts = ["alpha", "beta"]
    number = test.make_aggregate("licensed", {"trait:CUSTOM_LICENSED": "required"}, hosts)
    try:
        yield
    finally:
        test.remove_aggregate(number, hosts)
        test.flags(enable_isolated_aggregate_filtering=False, group="scheduler")


def _taken(test: CausesTest) -> Iterator[None]:
    """One GPU of each switch is in use: free devices, but no pair of one switch."""
    taken = [uuidutils.generate_uuid() for _ in range(3)]
    places = [("alpha", "40:00.0"), ("alpha", "41:00.0"), ("beta", "40:00.0")]
    for consumer, (host, address) in zip(taken, places, strict=True):
        test.take(consumer, host, address)
    try:
        yield
    finally:
        for consumer in taken:
            test.placement.delete(f"/allocations/{consumer}", version="1.38")


def _withheld(test: CausesTest) -> Iterator[None]:
    """The node of alpha keeps one GPU back, and says so as its driver does."""
    address = "0000:40:00.0"
    document = StatsDocument(
        withheld={address: "in quarantine: overheats"}, kinds={address: "CUSTOM_HPC_GPU"}
    )
    test.set_stats("alpha", document)
    test.reserve("alpha", "40:00.0", 1)
    try:
        yield
    finally:
        test.reserve("alpha", "40:00.0", 0)
        test.set_stats("alpha", StatsDocument())


def _disclosed(test: CausesTest) -> Iterator[None]:
    """The same, in a cloud whose users may read of its capacity."""
    test.flags(disclose_capacity=True, group="hpc")
    try:
        with contextlib.contextmanager(_withheld)(test):
            yield
    finally:
        test.flags(disclose_capacity=False, group="hpc")


def made(generator: Callable[[CausesTest], Iterator[None]]) -> Change:
    """A change that a row makes, and unmakes."""
    return contextlib.contextmanager(generator)


SHORT: Final = r"Placement has no candidate .*"
REJECTS: Final = r"HpcTopologyFilter rejects .*"

CAUSES: Final = (
    Cause(
        "more devices than any host has",
        "No host has 5 gpu free; fewer devices may help",
        SHORT + r"the nearest is alpha with 4 of 5 gpu",
        specs=PAIR | {"pci_passthrough:alias": "gpu:5"},
    ),
    Cause(
        "a device of the nearest host is withheld",
        "No host has 4 gpu free; fewer devices may help",
        SHORT + r"the nearest is alpha with 3 of 4 gpu, one is withheld; withheld by the node: "
        r"0000:40:00.0 \(in quarantine: overheats\)",
        specs=PAIR | {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "host"},
        change=made(_withheld),
    ),
    Cause(
        "the same, where users may read of the capacity",
        "No host has 4 gpu free; fewer devices may help; the nearest has 3 of 4 gpu, one is "
        "withheld",
        SHORT + r"the nearest is alpha with 3 of 4 gpu, one is withheld",
        specs=PAIR | {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "host"},
        change=made(_disclosed),
    ),
    Cause(
        "more CPUs than any host has",
        "No host has 99 CPUs free; fewer CPUs may help",
        SHORT + r"which has the devices, but not 99 VCPU",
        flavor={"vcpu": 99},
    ),
    Cause(
        "more memory than any host has",
        "No host has 99999999 MiB of memory free; less memory may help",
        SHORT + r"which has the devices, but not 99999999 MEMORY_MB",
        flavor={"memory_mb": 99999999},
    ),
    Cause(
        "more disk than any host has",
        "No host has 99999 GiB of disk free; less disk may help",
        SHORT + r"which has the devices, but not 99999 DISK_GB",
        flavor={"disk": 99999},
    ),
    Cause(
        "more dedicated CPUs than any host has",
        "No host has 32 dedicated CPUs free; fewer CPUs may help",
        SHORT + r"which has the devices, but not 32 PCPU",
        specs=PAIR | PINNED,
        flavor={"vcpu": 32},
    ),
    Cause(
        "devices on one host, the CPUs on another",
        "No host has 4 gpu and 8 CPUs free together; fewer CPUs may help",
        SHORT + r"no host has 4 gpu \(CUSTOM_HPC_GPU\), 8 VCPU together",
        specs=PAIR | {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "host"},
        flavor={"vcpu": 8},
    ),
    Cause(
        "a trait of the flavor that no host has",
        "No host has trait CUSTOM_NOWHERE, which the flavor requires; a flavor without that "
        "trait may help",
        SHORT + r"which has the devices, but not trait CUSTOM_NOWHERE",
        specs=PAIR | {"trait:CUSTOM_NOWHERE": "required"},
    ),
    Cause(
        "a trait of the flavor that only a host without devices has",
        "No host with trait CUSTOM_QUIET has 2 gpu free; a flavor without that trait may help",
        SHORT + r"no host has 2 gpu \(CUSTOM_HPC_GPU\), trait CUSTOM_QUIET together",
        specs=PAIR | {"trait:CUSTOM_QUIET": "required"},
    ),
    Cause(
        "a trait of the flavor that every host with devices has, forbidden",
        "No host with 2 gpu free is without trait CUSTOM_BUSY, which the request forbids; a flavor "
        "that allows that trait may help",
        SHORT + r"no trait CUSTOM_BUSY",
        specs=PAIR | {"trait:CUSTOM_BUSY": "forbidden"},
    ),
    Cause(
        "a trait of the image that no host has",
        "No host has trait CUSTOM_IN_IMAGE, which the image requires; an image without that "
        "trait may help",
        SHORT + r"which has the devices, but not trait CUSTOM_IN_IMAGE",
        image={"trait:CUSTOM_IN_IMAGE": "required"},
    ),
    Cause(
        "a trait of the flavor and one of the image, neither on any host",
        "No host has trait CUSTOM_NOWHERE, which the flavor requires; No host has trait "
        "CUSTOM_IN_IMAGE, which the image requires",
        SHORT + r"but not trait CUSTOM_IN_IMAGE, trait CUSTOM_NOWHERE",
        specs=PAIR | {"trait:CUSTOM_NOWHERE": "required"},
        image={"trait:CUSTOM_IN_IMAGE": "required"},
    ),
    Cause(
        "hyper-threads where the flavor isolates threads",
        "No host with 2 gpu free has no hyper-threads, for hw:cpu_thread_policy isolate; "
        "hw:cpu_thread_policy prefer may help",
        SHORT + r"no trait HW_CPU_HYPERTHREADING",
        specs=PAIR | PINNED | {"hw:cpu_thread_policy": "isolate"},
    ),
    Cause(
        "a resource class of the flavor's own that no host has",
        "No host has 1 CUSTOM_LICENCE free; less CUSTOM_LICENCE may help",
        SHORT + r"which has the devices, but not 1 CUSTOM_LICENCE",
        specs=PAIR | {"resources:CUSTOM_LICENCE": "1"},
    ),
    Cause(
        "a request group of the flavor's own that no host has",
        "No host has 1 CUSTOM_FPGA free; contact the cloud's operator",
        SHORT + r"1 CUSTOM_FPGA",
        specs=PAIR | {"resources_FPGA:CUSTOM_FPGA": "1", "group_policy": "none"},
    ),
    Cause(
        "a zone without devices",
        "No host of availability zone az3 has 2 gpu free; another zone may help",
        SHORT + r"availability zone az3",
        boot={"az": "az3"},
    ),
    Cause(
        "a zone that is closed",
        "No host of availability zone az2 with 2 gpu free is in service; another zone may help",
        SHORT + r"no trait COMPUTE_STATUS_DISABLED",
        boot={"az": "az2"},
        change=made(_zone_closed),
    ),
    Cause(
        "all hosts are disabled",
        "No host with 2 gpu free is in service" + OPERATOR,
        SHORT + r"no trait COMPUTE_STATUS_DISABLED",
        change=made(_quiet),
    ),
    Cause(
        "all hosts are down",
        "The cloud's other rules (state of the hosts, server group, image) leave no host with 2 "
        "gpu for it" + OPERATOR,
        r"Filter ComputeFilter returned 0 hosts",
        "its nova-compute is down",
        change=made(_down),
    ),
    Cause(
        "the project may use hosts without devices only",
        "No host with 2 gpu free may be used by this project and flavor" + OPERATOR,
        SHORT + r"one of the aggregates",
        change=made(_others),
    ),
    Cause(
        "the hosts with devices are kept for other flavors",
        "No host with 2 gpu free may be used by this project and flavor" + OPERATOR,
        SHORT + r"one of the aggregates but these",
        change=made(_isolated),
    ),
    Cause(
        "the host that was asked for has too few",
        "No host that was requested has 2 gpu free; another host may help",
        SHORT + r"gamma",
        # Nova does not store which host was asked for; there is room elsewhere.
        "it fits",
        boot={"host": "gamma"},
    ),
    Cause(
        "free devices, but none together",
        "No host has 2 gpu under one switch; hpc:affinity numa or hpc:affinity_policy preferred "
        "or smaller groups (hpc:group) may help",
        REJECTS + r"2 gpu free, but at most 1 under one switch",
        "2 gpu free, but at most 1 under one switch (needs 2)",
        change=made(_taken),
    ),
    Cause(
        "the answer was cut off, and those looked at have none together",
        "None of the hosts looked at has 2 gpu under one switch; hpc:affinity",
        REJECTS + r"at most 1 under one switch",
        "2 gpu free, but at most 1 under one switch (needs 2)",
        change=made(lambda test: _both(test)),
    ),
    Cause(
        "more devices than any switch has",
        "No host has 4 gpu under one switch; hpc:affinity numa or hpc:affinity_policy preferred "
        "or smaller groups (hpc:group) may help",
        REJECTS + r"4 gpu free, but at most 2 under one switch",
        "4 gpu free, but at most 2 under one switch (needs 4)",
        PAIR | {"pci_passthrough:alias": "gpu:4"},
    ),
    Cause(
        "more groups than there are switches",
        "No host has 4 groups of 1 gpu, each under one switch, each a whole NVLink set",
        REJECTS + r"NVLink",
        "",
        PAIR | {"pci_passthrough:alias": "gpu:4", "hpc:group": "gpu:1", "hpc:nvlink": "required"},
    ),
    Cause(
        "no NVLink sets",
        "No host has 2 gpu under one switch, a whole NVLink set; hpc:nvlink preferred",
        REJECTS + r"no NVLink sets are known",
        "",
        PAIR | {"hpc:nvlink": "required"},
    ),
    Cause(
        "a guest with more NUMA cells than a host has",
        "No host has 4 groups of 1 gpu, each under one switch, beside free CPUs and memory",
        REJECTS + r"NUMA",
        "",
        PAIR | REQUIRED | {"pci_passthrough:alias": "gpu:4", "hw:numa_nodes": "4"},
        {"vcpu": 4, "memory_mb": 1024},
    ),
    Cause(
        "large pages that no host has",
        "No host has 2 gpu under one switch beside free CPUs and memory pages",
        REJECTS + r"(page|1048576)",
        "",
        PAIR | REQUIRED | {"hw:mem_page_size": "1048576"},
        {"memory_mb": 1024},
    ),
    Cause(
        "the second of two servers finds none",
        "Not for every server of the request: No host has 4 gpu",
        r"finds no host|Placement has no candidate",
        "",
        PAIR | {"pci_passthrough:alias": "gpu:4", "hpc:affinity": "host"},
        count=2,
    ),
    Cause(
        "a flavor that contradicts itself",
        "Flavor: hpc:affinity is 'swtich'",
        r"(Flavor .* is refused|finds no host)",
        "",
        PAIR | {"hpc:affinity": "swtich"},
    ),
)


def _both(test: CausesTest) -> Iterator[None]:
    with contextlib.contextmanager(_taken)(test), contextlib.contextmanager(_cut)(test):
        yield
