# SPDX-License-Identifier: Apache-2.0
"""Scheduler, node and explain read the same request from the same flavor."""

from __future__ import annotations

import collections
import os
import random
import uuid
from collections.abc import Iterator

import attrs
import nova.conf
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from nova import exception, objects
from nova.pci import request as pci_request
from nova.virt import hardware
from oslo_config import fixture as config_fixture
from oslo_serialization import jsonutils

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import server
from nova_hpc.from_nova.claim import ServerClaim
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Request
from nova_hpc_common.level import Level
from nova_hpc_tools.cloud.explain import explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import Snapshot, SnapshotNode, document
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

CONF = nova.conf.CONF

PAIR = {
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "switch",
    "hw:numa_nodes": "1",
}


def _aliases(**policies: str) -> list[str]:
    """The aliases of the fixtures with NUMA policies of their own."""
    found = []
    for alias in fixtures.CLASS_ALIASES:
        policy = policies.get(alias["name"])
        found.append(jsonutils.dumps(alias | ({"numa_policy": policy} if policy else {})))
    return found


class AliasPoliciesTest(DriverTest):
    """No policy in the flavor, and aliases that differ: Nova gives each request its own."""

    PCI_ALIAS = _aliases(gpu="required", vf="preferred")

    def setUp(self) -> None:
        super().setUp()
        shape = fixtures.Shape(
            (fixtures.Switch(gpus=1, pfs=1), fixtures.Switch(gpus=1, pfs=1, numa=1))
        )
        self.host("alpha", shape)

    def test_what_explain_promises_starts(self) -> None:
        flavor = self.make_flavor(PAIR)
        report = explain_flavor(snapshot.take_cloud_snapshot(), FlavorQuestion(flavor))
        self.assertTrue(report.fits)
        self.assertTrue(report.request.on_cells)
        server = self.boot(flavor)
        self.assertIs(Level.SWITCH, self.level_of(server))
        (node,) = self.domain_nodes(server).values()
        self.assertEqual({node}, {place.numa for place in self.locations_of(server)})


class AliasWithoutPolicyTest(AliasPoliciesTest):
    """Nova's own default of an alias is ``legacy``."""

    PCI_ALIAS = _aliases(gpu="required")


# -- any flavor, without services -------------------------------------------------

POLICIES = ("required", "preferred", "legacy", "socket")
LEVELS = ("switch", "root", "numa", "socket", "host")
ROLES = ({}, {"0": "gpu", "1": "nic"}, {"0": "nic", "1": "gpu"}, {"0": "gpu", "1": "gpu"})

#: A request, why it is refused, or None: Nova makes no server of it.
Answer = Request | str | None


@attrs.frozen
class Asked:
    """What an operator and a user may come up with."""

    specs: dict[str, str]
    properties: dict[str, str]
    aliases: list[str]
    roles: dict[str, str]


def asked(rng: random.Random) -> Asked:
    """Anything; most of it makes sense."""

    def maybe(key: str, *values: str, chance: float = 0.5) -> dict[str, str]:
        return {key: rng.choice(values)} if rng.random() < chance else {}

    gpus, vfs = rng.choice((1, 2, 2, 4)), rng.choice((1, 2, 2, 4))
    alias = rng.choice((f"gpu:{gpus},vf:{vfs}",) * 4 + (f"gpu:{gpus}", f"gpu:{gpus},gpu:{gpus}"))
    if rng.random() < 0.05:
        alias = rng.choice(("", "gpu", "tpu:1", "gpu:0", "gpu:1,vf:x", "gpu:2000"))
    specs = {
        "pci_passthrough:alias": alias,
        **maybe("hpc:affinity", *LEVELS, chance=0.95),
        **maybe("hpc:affinity_policy", "required", "preferred", chance=0.3),
        **maybe("hpc:group", "gpu:1,vf:1", "gpu:2", "gpu:1", "nic:1,gpu:1", "gpu:2,vf:1"),
        **maybe("hpc:nvlink", "required", "preferred", "none", chance=0.2),
        **maybe("hpc:affinty", "switch", chance=0.02),
        **maybe("hw:pci_numa_affinity_policy", *POLICIES, "nearby", chance=0.3),
        **maybe("hw:numa_nodes", "1", "2", "4", "x"),
        **maybe("hw:cpu_policy", "dedicated", "shared"),
        **maybe("hw:emulator_threads_policy", "isolate", "share", chance=0.2),
        **maybe("hw:mem_page_size", "2MB", "1048576", "large", "any", "small", chance=0.4),
    }
    if specs.get("hw:numa_nodes") == "2" and rng.random() < 0.3:
        specs |= {"hw:numa_cpus.0": "0,1", "hw:numa_cpus.1": "2-7"}
        specs |= {"hw:numa_mem.0": "2048", "hw:numa_mem.1": "6144"}
    properties = {
        **maybe("hw_pci_numa_affinity_policy", *POLICIES, chance=0.2),
        **maybe("hw_numa_nodes", "1", "2", chance=0.1),
        **maybe("hw_cpu_policy", "dedicated", "shared", chance=0.1),
    }
    own = {name: rng.choice((None, *POLICIES)) for name in ("gpu", "vf")}
    named = {name: policy for name, policy in own.items() if policy is not None}
    return Asked(specs, properties, _aliases(**named), rng.choice(ROLES))


def made_by_api(what: Asked) -> objects.RequestSpec | None:
    """As compute/api.py makes it of a new server; None: it refuses to."""
    flavor = objects.Flavor(
        id=1, name="any", flavorid="any", vcpus=8, memory_mb=8192, root_gb=1, ephemeral_gb=0,
        swap=0, extra_specs=what.specs,
    )  # fmt: skip
    image = objects.ImageMeta.from_dict({"properties": what.properties})
    try:
        policy = hardware.get_pci_numa_policy_constraint(flavor, image)
        spec = objects.RequestSpec(
            flavor=flavor,
            image=image,
            numa_topology=hardware.numa_get_constraints(flavor, image),
            pci_requests=pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy),
            requested_resources=[],
            instance_uuid=str(uuid.uuid4()),
        )
        spec.generate_request_groups_from_pci_requests()
    except (exception.NovaException, ValueError):
        return None
    # A port's device, whose request is no business of the flavor's.
    port = objects.InstancePCIRequest(
        count=1, spec=[{"physical_network": "net"}], requester_id=str(uuid.uuid4()),
        request_id=str(uuid.uuid4()), numa_policy=None, is_new=False,
    )  # fmt: skip
    spec.pci_requests.requests.append(port)
    return spec


def in_scheduler(spec: objects.RequestSpec, roles: dict[str, str]) -> Answer:
    """What the filter makes of it, which has come by RPC."""
    there = objects.RequestSpec.obj_from_primitive(spec.obj_to_primitive())
    try:
        return answer(server.read_server_task(there).server, roles)
    except FlavorError as error:
        return str(error)


def on_node(spec: objects.RequestSpec, what: Asked, rng: random.Random) -> Answer:
    """What the node makes of the server once it has claimed; None: no node has so much."""
    topology = None
    if spec.numa_topology is not None:
        nodes = [a_node(number) for number in rng.sample(range(8), 4)]
        topology = hardware.numa_fit_instance_to_host(
            objects.NUMATopology(cells=nodes), spec.numa_topology.obj_clone(), provider_mapping={}
        )
        if topology is None:
            return None
    instance = objects.Instance(
        uuid=spec.instance_uuid,
        image_ref="",
        flavor=spec.flavor,
        system_metadata={f"image_{key}": value for key, value in what.properties.items()},
        pci_requests=spec.pci_requests,
        # Of the claimed devices those of ports alone make a difference to what is asked.
        pci_devices=objects.PciDeviceList(
            objects=[
                objects.PciDevice(address=f"0000:05:00.{number}", request_id=each.request_id)
                for number, each in enumerate(server.port_requests(spec.pci_requests))
            ]
        ),
        numa_topology=topology,
    )
    found = answer(ServerClaim.of(instance).server, what.roles)
    if not isinstance(found, Request):
        return found
    # The claim says where the cells are, and how large the pages that were left to the node.
    before = server.read_numa_cells(spec.numa_topology)
    assert topology is None or [each.host_node for each in found.cells] == [
        cell.id for cell in topology.cells
    ]
    return attrs.evolve(
        found,
        cells=tuple(
            attrs.evolve(cell, host_node=None, page_kib=plain.page_kib)
            for cell, plain in zip(found.cells, before, strict=True)
        ),
    )


def a_node(number: int) -> objects.NUMACell:
    """A host's NUMA node with room for anything."""
    cpus = set(range(number * 32, number * 32 + 32))
    return objects.NUMACell(
        id=number,
        socket=number,
        cpuset=cpus,
        pcpuset=cpus,
        pinned_cpus=set(),
        memory=1 << 18,
        cpu_usage=0,
        memory_usage=0,
        siblings=[{cpu} for cpu in cpus],
        mempages=[
            objects.NUMAPagesTopology(size_kb=size, total=(1 << 28) // size, used=0, reserved=0)
            for size in (4, 2048, 1048576)
        ],
        network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
    )


def by_explain(spec: objects.RequestSpec | None, what: Asked) -> Answer:
    """What explain makes of the flavor in a snapshot that was saved."""
    flavor = objects.Flavor(
        name="any", flavorid="any", vcpus=8, memory_mb=8192, extra_specs=what.specs
    )
    image = objects.ImageMeta.from_dict({"properties": what.properties})
    read = snapshot.read_snapshot_flavor(flavor, "image", image)
    kept = Snapshot(taken="now", nova="0", hosts=(SnapshotNode("one", "one"),), flavors=(read,))
    (read,) = document.load_cloud_snapshot(document.dump_cloud_snapshot(kept)).flavors
    if read.problem is None:
        return answer(read.server, what.roles)
    # What Nova makes no server of is no matter of the scheduler.
    return None if spec is None else read.problem


def answer(read: server.ServerSpec, roles: dict[str, str]) -> Answer:
    try:
        return read.request(roles)
    except FlavorError as error:
        return str(error)


@pytest.fixture
def nova_as_configured() -> Iterator[config_fixture.Config]:
    objects.register_all()
    hpc_conf.register_all_options(CONF)
    options = config_fixture.Config(CONF)
    options.setUp()
    options.config(pci_in_placement=True, group="filter_scheduler")
    yield options
    options.cleanUp()
    forget_aliases()


def forget_aliases() -> None:
    """Release 34 keeps what it has read of ``[pci]alias``."""
    getattr(pci_request.get_alias_from_config, "cache_clear", lambda: None)()


def answers(seed: int, options: config_fixture.Config) -> tuple[Answer, Answer, Answer]:
    """Of scheduler, node and explain; where no node has room the scheduler's twice."""
    rng = random.Random(seed)
    what = asked(rng)
    options.config(alias=what.aliases, group="pci")
    forget_aliases()
    spec = made_by_api(what)
    if spec is None:
        return None, None, by_explain(spec, what)
    scheduled = in_scheduler(spec, what.roles)
    started = on_node(spec, what, rng)
    return scheduled, scheduled if started is None else started, by_explain(spec, what)


@settings(
    deadline=None,
    max_examples=int(os.environ.get("NOVA_HPC_EXAMPLES", "300")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32))
@example(278)  # two faults: gpu:2000, and no hpc:affinity
def test_all_three_build_the_same_request(nova_as_configured, seed):
    scheduled, started, explained = answers(seed, nova_as_configured)
    assert started == scheduled
    # A flavor has no ports; those are the server's.
    if isinstance(scheduled, Request):
        scheduled = attrs.evolve(scheduled, ports=())
    assert explained == scheduled


@pytest.mark.parametrize("alias", ["gpu:0", "gpu:2000"])
def test_one_senseless_flavor_leaves_a_snapshot_readable(nova_as_configured, alias):
    """Nova takes any count, and a snapshot holds all flavors of a cloud."""
    what = Asked({"pci_passthrough:alias": alias}, {}, _aliases(), {})
    nova_as_configured.config(alias=what.aliases, group="pci")
    forget_aliases()
    spec = made_by_api(what)
    assert spec is not None
    assert "the count must be 1 to 1024" in by_explain(spec, what)


def test_the_flavors_above_are_not_all_refused(nova_as_configured):
    """Or the test before this one would prove little."""
    kinds: collections.Counter[str] = collections.Counter()
    for seed in range(200):
        scheduled, _, _ = answers(seed, nova_as_configured)
        kinds["nova" if scheduled is None else type(scheduled).__name__] += 1
        if isinstance(scheduled, Request):
            kinds["cells"] += bool(scheduled.cells)
            kinds["on cells"] += scheduled.on_cells
            kinds["groups"] += len(scheduled.groups) > 1
            kinds["isolated"] += scheduled.cells[:1] > () and (
                len({cell.dedicated_cpus for cell in scheduled.cells}) > 1
            )
    assert min(kinds[each] for each in ("nova", "str", "Request")) >= 20, kinds
    assert min(kinds[each] for each in ("cells", "on cells", "groups")) >= 10, kinds
