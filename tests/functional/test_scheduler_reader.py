# SPDX-License-Identifier: Apache-2.0
"""Reading Nova's own objects, without services."""

from __future__ import annotations

import attrs
from nova import objects, test
from nova.scheduler import host_manager
from oslo_config import cfg
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, server
from nova_hpc.from_nova import hosts as reader
from nova_hpc.from_nova.providers import DeviceKind, Free
from nova_hpc.placement.model import WantedCell
from nova_hpc.placement.server import ServerSpec
from tests.functional import fixtures
from tests.functional.unit_scheduler.states import HostStates, pci_request, pool, spec

CONF = cfg.CONF
GPU = DeviceKind(fixtures.GPU_CLASS)


class ReaderTest(HostStates):
    """Host states and request specifications of Nova's own classes."""

    def read(self, host, count: int = 1, free: Free | None = None) -> reader.HostView:
        return reader.read_host(host, server.read_server_task(spec(count)), {GPU: free})

    def test_nodes(self) -> None:
        nodes = self.read(self.host()).host.nodes
        self.assertEqual([0, 1], [node.id for node in nodes])
        self.assertEqual([0, 1], [node.socket for node in nodes])
        self.assertEqual([7, 7], [node.dedicated_cpus for node in nodes])
        self.assertEqual({4: 1024, 2048: 65}, nodes[0].pages)

    def test_host_without_anything(self) -> None:
        host = host_manager.HostState("host", "node", uuids.cell)
        view = self.read(host)
        self.assertEqual(((), ()), (view.host.pools, view.host.nodes))

    def test_numa_node_of_nova_is_added(self) -> None:
        (found,) = self.read(self.host(pool(1, numa=1))).host.pools
        self.assertEqual((1, 1), (found.location.numa, found.location.socket))
        self.assertEqual(uuids.gpu1, found.id)
        self.assertEqual({"0"}, found.serves)
        self.assertEqual("gpu", found.role)

    def test_few_devices_are_still_seen(self) -> None:
        """For the near miss: Nova's own filter says nothing at all then."""
        self.assertEqual(1, len(self.read(self.host(pool(1)), count=4).host.pools))

    def test_other_class_and_traits_do_not_match(self) -> None:
        other = pool(1, hpc_resource_class="CUSTOM_NIC", hpc_role="nic", hpc_group="0000:41:00.0")
        (seen,) = self.read(self.host(other)).host.pools
        self.assertEqual((frozenset(), "nic", "0000:41:00.0"), (seen.serves, seen.role, seen.unit))
        request_spec = spec()
        request_spec.requested_resources[0].required_traits = {"CUSTOM_NVLINK"}
        task = server.read_server_task(request_spec)
        host = self.host(pool(1), pool(2, hpc_traits="CUSTOM_NVLINK"))
        found = reader.read_host(host, task, {})
        serving = {each.id: bool(each.serves) for each in found.host.pools}
        self.assertEqual({uuids.gpu1: False, uuids.gpu2: True}, serving)

    def test_untagged_devices_of_others_are_no_business_of_ours(self) -> None:
        other = pool(1)
        other.tags = {key: other.tags[key] for key in ("dev_type", "address", "rp_uuid")}
        self.assertEqual((), self.read(self.host(other)).host.pools)

    def test_placement_has_the_last_word(self) -> None:
        host = self.host(pool(1), pool(2), pool(3, count=4))
        free = Free(amounts={uuids.gpu2: 1, uuids.gpu3: 2}, asked=3)
        found = self.read(host, free=free).host.pools
        self.assertEqual({uuids.gpu2: 1, uuids.gpu3: 2}, {each.id: each.free for each in found})
        free = Free(amounts={uuids.gpu3: 3}, asked=3)
        (found,) = self.read(host, free=free).host.pools
        self.assertEqual(4, found.free)

    def test_taken_in_placement_is_not_offered_to_anyone(self) -> None:
        """Not even as a device of others: it would count as free for the damage."""
        free = Free(amounts={}, asked=1)
        self.assertEqual((), self.read(self.host(pool(1)), free=free).host.pools)

    def test_hosts_that_are_alike_share_a_pattern(self) -> None:
        one, two = self.host(pool(1), pool(2)), self.host(pool(1), pool(2))
        for each in two.pci_stats.pools:
            each["rp_uuid"] = f"other {each['rp_uuid']}"
        two.host = "another"
        here, there = self.read(one), self.read(two)
        self.assertIs(here.pattern, there.pattern)
        self.assertEqual([uuids.gpu1, uuids.gpu2], [each.id for each in here.host.pools])
        self.assertEqual(
            ("another", [f"other {uuids.gpu1}", f"other {uuids.gpu2}"]),
            (there.host.name, [each.id for each in there.host.pools]),
        )
        two.numa_topology.cells[0].pinned_cpus = {0, 1}
        self.assertIsNot(here.pattern, self.read(two).pattern)
        one.pci_stats.pools[0]["hpc_root"] = "pci0000:99"
        self.assertEqual("pci0000:99", self.read(one).host.pools[0].location.root)

    def test_without_a_cache(self) -> None:
        hpc_conf.register_all_options(CONF)
        host = self.host(pool(1), pool(2))
        before = self.read(host).host
        self.flags(cache_size=0, group="hpc")
        self.assertEqual(before, self.read(host).host)

    def test_nvlink_sets(self) -> None:
        host = self.host(*(pool(index, hpc_nvlink="all:4") for index in range(1, 5)))
        everything = frozenset({uuids.gpu1, uuids.gpu2, uuids.gpu3, uuids.gpu4})
        self.assertEqual((everything,), self.read(host).host.nvlink)
        free = Free(amounts={uuids.gpu1: 1, uuids.gpu2: 1, uuids.gpu3: 1}, asked=1)
        view = self.read(host, free=free)
        self.assertEqual(((), 3, ()), (view.host.nvlink, len(view.host.pools), view.unusable))

    def test_broken_nvlink_set(self) -> None:
        """It costs the set, and no device."""
        host = self.host(
            *(pool(index, hpc_nvlink="all:2,pair:2") for index in (1, 2)),
            pool(3, hpc_nvlink="all:3"),
        )
        view = self.read(host)
        self.assertEqual((frozenset({uuids.gpu1, uuids.gpu2}),), view.host.nvlink)
        self.assertEqual(3, len(view.host.pools))
        self.assertIn("'all': its members disagree about its size (2, 3)", view.unusable[0])

    def test_not_in_placement(self) -> None:
        bare = pool(1)
        del bare.tags["rp_uuid"]
        view = self.read(self.host(bare))
        self.assertEqual((), view.host.pools)
        self.assertIn("[pci]report_in_placement", view.unusable[0])

    def test_requests_are_not_changed(self) -> None:
        request_spec = spec(2)
        before = request_spec.obj_to_primitive()
        task = server.read_server_task(request_spec)
        reader.read_host(self.host(pool(1), pool(2)), task, {})
        self.assertEqual(before, request_spec.obj_to_primitive())
        self.assertEqual(2, task.server.wants[0].count)

    def test_pci_in_placement_was_off(self) -> None:
        request_spec = spec()
        request_spec.requested_resources = []
        error = self.assertRaises(server.RequestError, server.read_server_task, request_spec)
        self.assertIn("[filter_scheduler]pci_in_placement", str(error))

    def test_cells_by_position(self) -> None:
        cells = [
            objects.InstanceNUMACell(id=7, cpuset=set(), pcpuset={0, 1}, memory=1024, pagesize=size)
            for size in (2048, -2, None)
        ]
        wanted = objects.InstanceNUMATopology(cells=cells, emulator_threads_policy="isolate")
        task = server.read_server_task(spec(numa_topology=wanted))
        self.assertEqual([0, 1, 2], [cell.id for cell in task.server.cells])
        self.assertEqual([3, 2, 2], [cell.dedicated_cpus for cell in task.server.cells])
        self.assertEqual([2048, None, None], [cell.page_kib for cell in task.server.cells])
        self.assertEqual(1024 * 1024, task.server.cells[0].memory_kib)

    def test_cells_of_a_claim(self) -> None:
        """For the engine and for the guest; the numbers are those of the host's nodes."""
        cells = [
            objects.InstanceNUMACell(id=7, cpuset={0}, pcpuset={1, 2}, memory=512, pagesize=2048),
            objects.InstanceNUMACell(id=3, cpuset={3}, pcpuset=set(), memory=512, pagesize=-1),
        ]
        claimed = objects.InstanceNUMATopology(cells=cells)
        self.assertEqual(
            (WantedCell(0, 2, 524288, 2048, 7), WantedCell(1, 0, 524288, None, 3)),
            server.read_numa_cells(claimed, claimed=True),
        )
        told = server.read_guest_cells(claimed)
        self.assertEqual(
            [(3, 524288, 2048, 7), (1, 524288, None, 3)], list(map(attrs.astuple, told))
        )
        self.assertEqual(((), ()), (server.read_numa_cells(None), server.read_guest_cells(None)))

    def test_policy_of_the_alias(self) -> None:
        self.assertEqual(
            "required", server.read_server_task(spec(policy="required")).server.numa_policy
        )


class NumaPolicyTest(test.NoDBTestCase):
    """One policy of a server from those of flavor, image and aliases."""

    def combined(
        self, *own: str | None, flavor: str | None = None, image: str | None = None
    ) -> str:
        specs = {"hw:pci_numa_affinity_policy": flavor} if flavor else {}
        properties = {"hw_pci_numa_affinity_policy": image} if image else {}
        return server.numa_policy_of_request(
            objects.Flavor(extra_specs=specs),
            objects.ImageMeta.from_dict({"properties": properties}),
            [pci_request(policy=each) for each in own],
        )

    def test_the_strictest_alias(self) -> None:
        self.assertEqual("required", self.combined("preferred", "required"))
        self.assertEqual("required", self.combined("required", None))
        self.assertEqual("required", self.combined("socket", "legacy", "required"))
        # Nova drops more devices under legacy than under socket.
        self.assertEqual("legacy", self.combined("socket", None, "preferred"))
        self.assertEqual("socket", self.combined("preferred", "socket"))
        self.assertEqual("preferred", self.combined("preferred"))

    def test_flavor_and_image_before_the_aliases(self) -> None:
        """On a resize the requests have their aliases' policies, whatever the flavor says."""
        self.assertEqual("preferred", self.combined("required", "legacy", flavor="preferred"))
        self.assertEqual("required", self.combined("preferred", image="required"))
        self.assertEqual("socket", self.combined("legacy", flavor="socket", image="socket"))

    def test_ports_do_not_count(self) -> None:
        port = objects.InstancePCIRequest(
            count=1, spec=[], requester_id=uuids.port, numa_policy="required"
        )

        def found(*requests: objects.InstancePCIRequest) -> ServerSpec:
            listed = objects.InstancePCIRequests(requests=list(requests))
            return server.read_server_spec(
                objects.Flavor(extra_specs={}), server.no_image(), listed, None
            )

        self.assertEqual((None, ()), (found(port).numa_policy, found(port).wants))
        both = found(port, pci_request(policy="preferred"))
        self.assertEqual("preferred", both.numa_policy)
        self.assertEqual(["0"], [want.key for want in both.wants])


class ContractTest(test.NoDBTestCase):
    """The start-up checks."""

    def problems(self, release: str = "34.0.0", **filter_scheduler: object) -> list[str]:
        self.flags(
            **(
                {
                    "pci_in_placement": True,
                    "enabled_filters": [contract.FILTER, *contract.AFTER],
                }
                | filter_scheduler
            ),
            group="filter_scheduler",
        )
        return contract.list_contract_problems(CONF, release)

    def test_all_is_well(self) -> None:
        for release in ("32.0.0", "33.0.2", "34.0.0"):
            self.assertEqual([], self.problems(release))
        self.assertEqual([], self.problems(None))

    def test_other_releases(self) -> None:
        for release in ("31.9.9", "35.0.0.0b1", "0.0.0", "unknown"):
            (text,) = self.problems(release)
            self.assertIn(release, text)

    def test_options_are_named(self) -> None:
        (text,) = self.problems(pci_in_placement=False)
        self.assertIn("[filter_scheduler]pci_in_placement = True", text)
        (text,) = self.problems(enabled_filters=[contract.FILTER, contract.AFTER[0]])
        self.assertIn(f"add {contract.AFTER[1]} to [filter_scheduler]enabled_filters", text)
        texts = self.problems(enabled_filters=[*contract.AFTER, contract.FILTER])
        self.assertEqual(2, len(texts))
        for text in texts:
            self.assertIn("put HpcTopologyFilter before", text)
