# SPDX-License-Identifier: Apache-2.0
"""Thirty-two causes for which a server finds no host, made for real; and the table of the docs.

Each with what its user reads, what its operator finds in the log of nova-scheduler, and what
``nova-hpc explain --server`` says of the devices. One cloud serves all rows: what a row changes
it changes back. The table is ``docs/source/admin/causes.inc``; after a change write it anew
with ``NOVA_HPC_WRITE_CAUSES=1`` in the environment.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs
from nova import context as nova_context
from nova import objects
from oslo_serialization import jsonutils
from oslo_utils import uuidutils

from nova_hpc.from_nova.log_throttle import LOG_THROTTLE
from nova_hpc.wire.stats import StatsDocument
from nova_hpc_tools.cloud.explain import explain_asked
from nova_hpc_tools.readers import server_requests, snapshot
from nova_hpc_tools.snapshot import SnapshotError
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAGE: Final = Path(__file__).parents[2] / "docs/source/admin/causes.inc"

PAIR: Final = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
REQUIRED: Final = {"hw:pci_numa_affinity_policy": "required"}
PINNED: Final = {"hw:cpu_policy": "dedicated"} | REQUIRED
OPERATOR: Final = "; ask the cloud's operator"

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
        "No host has 1 CUSTOM_FPGA free; ask the cloud's operator",
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
        "No host that was asked for has 2 gpu free; another host may help",
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


def table(rows: Mapping[str, tuple[str, str, str]]) -> str:
    """The page: cause -> what user, log and explain say."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    head = ("Cause", "The user reads", "The log of nova-scheduler", "``nova-hpc explain --server``")
    for cells in (head, *((name, *map(_unnamed, said)) for name, said in rows.items())):
        lines += [
            f"   {'*' if not number else ' '} - {_plain(cell)}" for number, cell in enumerate(cells)
        ]
    return "\n".join(lines) + "\n"


_NEAREST: Final = "the nearest is HOST, which has the devices, but not ..."


def _unnamed(text: str) -> str:
    """Hosts in an order of their own.

    Of those that are equally near the one with the first UUID is named, and several come in the
    order of Placement's answer: both are drawn anew for each cloud.
    """
    text = text.replace(
        "rejects beta, beta; alpha, alpha for", "rejects alpha, alpha; beta, beta for"
    )
    text = re.sub(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}", "...", text)
    return re.sub(r"the nearest is \w+, which has the devices, but .*", _NEAREST, text)


def _plain(text: str) -> str:
    return text if text.startswith("``") else re.sub(r"([*`_|\\])", r"\\\1", text)


class CausesTest(base.HpcServersTest):
    """One cloud: two hosts with GPUs, one of them in a zone of its own, and one without."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(spread_equal_sets=False, group="hpc")
        self.flags(ram_allocation_ratio=1.0, cpu_allocation_ratio=1.0, disk_allocation_ratio=1.0)
        cpus = {"cpu_dedicated_set": "4-7", "cpu_shared_set": "0-3"}
        self.start_host("alpha", fixtures.two_switches(gpus=2), **cpus)
        self.start_host("beta", Shape((Switch(gpus=2),)), **cpus)
        more = {"cpu_dedicated_set": "8-11", "cpu_shared_set": "0-7"}
        self.start_host("gamma", Shape((), cores=3), **more)
        self.start_host("delta", Shape(()), **cpus)
        self.make_aggregate("two", {"availability_zone": "az2"}, ["beta", "delta"])
        self.make_aggregate("three", {"availability_zone": "az3"}, ["gamma"])
        for trait, names in (("CUSTOM_QUIET", ["gamma"]), ("CUSTOM_BUSY", ["alpha", "beta"])):
            self._create_trait(trait)
            for name in names:
                self.give_trait(name, trait)
        for trait in ("CUSTOM_NOWHERE", "CUSTOM_IN_IMAGE", "CUSTOM_LICENSED"):
            self._create_trait(trait)
        self.images: dict[tuple[tuple[str, str], ...], str] = {}

    # -- the cloud --------------------------------------------------------

    def give_trait(self, host: str, trait: str) -> None:
        provider = self._get_provider_uuid_by_host(host)
        self._set_provider_traits(provider, [*self._get_provider_traits(provider), trait])

    def make_aggregate(self, name: str, metadata: Mapping[str, str], hosts: list[str]) -> int:
        number = self.admin_api.post_aggregate({"aggregate": {"name": name}})["id"]
        action = {"set_metadata": {"metadata": metadata}}
        self.admin_api.post_aggregate_action(number, action)
        for host in hosts:
            self.admin_api.add_host_to_aggregate(number, host)
        return number

    def remove_aggregate(self, number: int, hosts: list[str]) -> None:
        for host in hosts:
            self.admin_api.api_post(
                f"/os-aggregates/{number}/action", {"remove_host": {"host": host}}
            )
        self.admin_api.delete_aggregate(number)

    def take(self, consumer: str, host: str, address: str) -> None:
        """Somebody else has a device in Placement."""
        gpu = self._device(host, address)
        self.placement.put(
            f"/allocations/{consumer}",
            {
                "allocations": {gpu: {"resources": {"CUSTOM_HPC_GPU": 1}}},
                "project_id": "others",
                "user_id": "others",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
            version="1.38",
        )

    def set_stats(self, host: str, document: StatsDocument) -> None:
        """What the node of a host says of itself."""
        node = objects.ComputeNode.get_by_nodename(nova_context.get_admin_context(), host)
        node.stats = dict(node.stats or {}) | {"hpc": document.dumps()}
        node.save()

    def reserve(self, host: str, address: str, amount: int) -> None:
        """As the driver does in Placement with what a node withholds."""
        gpu = self._device(host, address)
        url = f"/resource_providers/{gpu}/inventories/CUSTOM_HPC_GPU"
        now = self.placement.get(url, version="1.26").body
        answer = self.placement.put(url, now | {"reserved": amount}, version="1.26")
        assert answer.status == 200, answer.body

    def _device(self, host: str, address: str) -> str:
        """The provider of a device."""
        body = self.placement.get("/resource_providers", version="1.14").body
        above = self._get_provider_uuid_by_host(host)
        (found,) = [
            each["uuid"]
            for each in body["resource_providers"]
            if each["parent_provider_uuid"] == above and each["name"].endswith(address)
        ]
        return str(found)

    def image(self, properties: Mapping[str, str]) -> str:
        key = tuple(sorted(properties.items()))
        if key not in self.images:
            plain = dict(self.glance.image1)
            plain |= {"id": uuidutils.generate_uuid(), "properties": dict(properties)}
            self.images[key] = self.glance.create(None, plain)["id"]
        return self.images[key]

    # -- a row ------------------------------------------------------------

    def say(self, cause: Cause) -> tuple[str, str, str]:
        """Make a cause; what user, operator and ``explain`` read."""
        LOG_THROTTLE.clear()
        before = len(self.stdlog.logger.output)
        keywords: dict[str, str] = dict(cause.boot)
        if cause.image:
            keywords["image_uuid"] = self.image(cause.image)
        change = cause.change(self) if cause.change else contextlib.nullcontext()
        flavor = self.make_flavor(cause.specs, **cause.flavor)
        with change:
            server = self._ask(flavor, cause.count, keywords)
            fault = self.fault(server)
            report = self._explained(server["id"])
        log = self.stdlog.logger.output[before:].splitlines()
        found = [line for line in log if " INFO " in line and re.search(cause.operator, line)]
        self._delete_all()
        line = re.sub(r"^.*? INFO \[\S+\] ", "", found[-1]) if found else "nothing"
        line = re.sub(r"\w{8}-\w{4}-\w{4}-\w{4}-\w{12}", "...", line)
        return fault.removeprefix("No valid host was found. "), line, report

    def _ask(self, flavor: str, count: int, keywords: dict[str, str]) -> dict:
        if count == 1:
            return self.boot(flavor, state="ERROR", **keywords)
        body = self._build_server(flavor_id=flavor, networks="none", **keywords)
        body |= {"min_count": count, "max_count": count}
        return self._wait_for_state_change(self.api.post_server({"server": body}), "ERROR")

    def _explained(self, server: str) -> str:
        try:
            found = server_requests.find_server_request(server)
            if found.placement:
                return f"Placement has no candidate for it now: {found.placement}"
            report = explain_asked(snapshot.take_cloud_snapshot(), found)
        except SnapshotError as error:
            return re.sub(r"^flavor \S+: ", "", str(error))
        if report.fits:
            return "it fits"
        missing = [each.reason for each in report.verdicts if each.choice is None]
        named = {each.node.name: each.reason for each in report.verdicts}
        return named.get("alpha", missing[0])

    def _delete_all(self) -> None:
        for each in self.api.get_servers(detail=False):
            self._delete_server(each)

    def test_each(self) -> None:
        """Each row; what is wrong with any is told at the end."""
        rows, wrong = {}, []
        for cause in CAUSES:
            try:
                said = self.say(cause)
            except Exception as error:
                wrong.append(f"{cause.name}: {type(error).__name__}: {error}")
                continue
            rows[cause.name] = said
            good = said[0].startswith(cause.user) and re.search(cause.operator, said[1])
            if not good or not said[2].startswith(cause.explain):
                wrong.append(f"{cause.name}: {jsonutils.dumps(said)}")
        self.assertEqual([], wrong, "\n".join(wrong))
        self.assertGreaterEqual(len(rows), 32)
        made_now = table(rows)
        if os.environ.get("NOVA_HPC_WRITE_CAUSES"):
            PAGE.write_text(made_now, encoding="utf-8")
        self.assertEqual(PAGE.read_text(encoding="utf-8"), made_now)
