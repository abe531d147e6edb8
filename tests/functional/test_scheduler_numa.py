# SPDX-License-Identifier: Apache-2.0
"""The guest's cells go where the devices are: scheduler and node decide alike.

Each of these hosts is idle, or has room, and the server was refused or got devices far
away as long as Nova ordered the host's NUMA nodes by all their free devices.
"""

from __future__ import annotations

from oslo_serialization import jsonutils

from nova_hpc_common.level import Level, common_level
from tests.functional import driver_base, fixtures
from tests.functional.fixtures import Shape, Switch


class NumaTest(driver_base.DriverTest):
    """Servers with dedicated CPUs, and aliases by vendor and product."""

    PCI_ALIAS = [jsonutils.dumps(each) for each in fixtures.ID_ALIASES]
    SPECS = {
        "hw:cpu_policy": "dedicated",
        "hw:numa_nodes": "1",
        "hw:pci_numa_affinity_policy": "preferred",
    }

    def setUp(self) -> None:
        self.flags(cpu_dedicated_set="0-15", group="compute")
        super().setUp()

    def idle(self, shape: Shape, name: str = "one") -> None:
        self.host(name, shape, shape.device_spec(classes=False))

    def flavor(self, devices: str, vcpu: int = 2, **specs: str) -> str:
        keys = {key.replace("__", ":"): value for key, value in specs.items()}
        return self.make_flavor(self.SPECS | {"pci_passthrough:alias": devices} | keys, vcpu=vcpu)

    def reached(self, server: dict) -> Level:
        """The level of the whole server, the NUMA node of its cell included."""
        truth = self.shapes[self.host_of(server)]
        per_socket = truth.nodes // truth.sockets
        (node,) = self.domain_nodes(server).values()
        places = self.locations_of(server)
        if any(place.numa != node for place in places):
            if any(place.socket != node // per_socket for place in places):
                return Level.HOST
            return max(Level.SOCKET, common_level(places))
        return max(Level.NUMA, common_level(places))


class OtherSocketTest(NumaTest):
    """Two sockets with two GPUs each; the only adapter is on the first."""

    SHAPE = Shape(
        (Switch(gpus=2, pfs=1), Switch(gpus=2, numa=1)),
        sockets=2,
    )

    def test_both_sockets_are_used(self) -> None:
        self.idle(self.SHAPE)
        flavor = self.flavor("gpu:2", hpc__affinity="numa")
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual([Level.NUMA] * 2, [self.reached(each) for each in servers])
        self.assert_given_once()

    def test_a_soft_flavor_gets_the_near_gpu(self) -> None:
        """The first takes one socket, and the second the other, each beside its cell."""
        self.idle(self.SHAPE)
        flavor = self.flavor("gpu:2", hpc__affinity="numa", hpc__affinity_policy="preferred")
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual([Level.NUMA] * 2, [self.reached(each) for each in servers])
        self.assert_given_once()


class InterleavedTest(NumaTest):
    """As in a DGX A100: GPUs on the odd NUMA nodes, adapters on the even ones."""

    SHAPE = Shape(
        tuple(
            Switch(gpus=2 * (node % 2), pfs=2 * (1 - node % 2), vfs=2, numa=node)
            for node in range(8)
        ),
        nodes=8,
        sockets=2,
        cores=1,
        threads=1,
    )

    def test_idle_host_is_not_refused(self) -> None:
        self.idle(self.SHAPE)
        near = self.boot(self.flavor("gpu:2", vcpu=1, hpc__affinity="numa"))
        self.assertIs(Level.NUMA, self.reached(near))
        flavor = self.flavor("gpu:1,vf:1", vcpu=1, hpc__affinity="socket")
        servers = [self.boot(flavor) for _ in range(4)]
        self.assertEqual([Level.SOCKET] * 4, [self.reached(each) for each in servers])
        self.assert_given_once()

    def test_socket_on_a_host_of_several_nodes_a_socket(self) -> None:
        """Nova begins with the node of most devices, which is on the other socket."""
        shape = Shape(
            (Switch(gpus=1, pfs=1, vfs=6, numa=3), Switch(gpus=2, numa=0), Switch(gpus=2, numa=1)),
            nodes=4,
            sockets=2,
            cores=1,
        )
        self.idle(shape)
        server = self.boot(self.flavor("gpu:4", hpc__affinity="socket"))
        self.assertIs(Level.SOCKET, self.reached(server))
        self.assert_given_once()


class SpanningTest(NumaTest):
    """Devices of one request on several NUMA nodes."""

    def test_every_allocated_function_is_given(self) -> None:
        """Each adapter alone could give both functions; one of each was chosen."""
        self.idle(Shape((Switch(gpus=1, pfs=1), Switch(gpus=1, pfs=1, numa=1))))
        server = self.boot(
            self.flavor(
                "gpu:2,vf:2",
                hpc__affinity="switch",
                hpc__affinity_policy="preferred",
                hpc__group="gpu:1,vf:1",
            )
        )
        devices = self.devices_of(server)
        self.assertEqual(4, len(devices))
        self.assertEqual(2, len({each.parent_addr for each in devices if each.parent_addr}))
        self.assert_given_once()

    def test_a_resize_keeps_the_flavors_policy(self) -> None:
        """Nova forgets it, and would drop the devices of the other NUMA node."""
        self.useFixture(fixtures.Moves())
        for name in ("one", "two"):
            self.idle(Shape((Switch(gpus=1), Switch(gpus=1, numa=1))), name)
        server = self.boot(self.flavor("gpu:1", hpc__affinity="numa"))
        self._resize_server(server, self.flavor("gpu:2", hpc__affinity="host"))
        self._confirm_resize(server)
        self.assertEqual(2, len(self.devices_of(server)))


class UnequalCellsTest(NumaTest):
    """Cells of unlike size; stock Nova mixes them up while it tries where they fit."""

    SHAPE = Shape(
        tuple(Switch(gpus=1, numa=node) for node in range(3)), nodes=3, cores=5, threads=1
    )

    def setUp(self) -> None:
        super().setUp()
        # Four CPUs of the first NUMA node, one of each other.
        self.flags(cpu_dedicated_set="0-3,5,10", group="compute")

    def unequal(self, *cells: int, **specs: str) -> str:
        """A flavor whose cells have so many CPUs."""
        first, cpus = 0, {}
        for index, count in enumerate(cells):
            cpus[f"hw:numa_cpus.{index}"] = ",".join(map(str, range(first, first + count)))
            cpus[f"hw:numa_mem.{index}"] = "64"
            first += count
        return self.flavor(
            "gpu:3",
            first,
            **(cpus | {"hw:numa_nodes": str(len(cells)), "hpc:affinity": "numa"} | specs),
            memory_mb=64 * len(cells),
        )

    def flavor(self, devices: str, vcpu: int = 2, memory_mb: int = 256, **specs: str) -> str:
        aliases = {"pci_passthrough:alias": devices}
        return self.make_flavor(self.SPECS | aliases | specs, vcpu=vcpu, memory_mb=memory_mb)

    def pins(self, server: dict) -> dict[int, set[int]]:
        """vCPU -> CPUs of the host, from the domain."""
        pins = self.domain_of(server).findall("cputune/vcpupin")
        return {
            int(each.get("vcpu")): {int(cpu) for cpu in each.get("cpuset").split(",") if cpu}
            for each in pins
        }

    def test_each_cpu_is_pinned(self) -> None:
        self.idle(self.SHAPE)
        server = self.boot(self.unequal(1, 1, 3))
        pins = self.pins(server)
        self.assertEqual(list(range(5)), sorted(pins))
        self.assertEqual([1] * 5, [len(each) for each in pins.values()])
        self.assertEqual(5, len(set().union(*pins.values())))
        # The large cell is where the CPUs are.
        self.assertEqual(0, self.domain_nodes(server)[2])
        self.assertLessEqual(pins[2] | pins[3] | pins[4], set(range(4)))
        self.assert_given_once()

    def test_what_fits_nowhere_is_refused(self) -> None:
        self.flags(cpu_dedicated_set="0-1,5-6,10-11", group="compute")
        self.idle(self.SHAPE)
        server = self.boot(self.unequal(1, 1, 3), state="ERROR")
        self.assertIn("beside free CPUs", self.fault(server))
