# SPDX-License-Identifier: Apache-2.0
"""Neutron's direct ports are placed with the devices, by the scheduler and at the claim."""

from __future__ import annotations

import collections
import json
import random

import pytest

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology.roles import parse_roles
from nova_hpc.topology.sysfs import read_sysfs_node
from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import AffinityPolicy, Distance, Level
from nova_hpc_tools.adopt.rails import networks_of_functions
from nova_hpc_tools.site.configured import Configured
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.device_spec import build_device_spec
from nova_hpc_tools.wire.node_declaration import read_declaration
from tests.functional import base, fixtures
from tests.functional.driver_fixtures import FakeSysfs
from tests.functional.fixtures import Shape, Switch
from tests.functional.ports_base import EIGHT, ONE, PAIRS, RAIL, PortsTest

TWO = Shape((RAIL, RAIL))


class PlacedTest(PortsTest):
    """Where ports go when a server is made."""

    def test_the_gpu_is_chosen_beside_the_adapter(self) -> None:
        """The first adapter of Nova's list, and the best GPU alone, are elsewhere."""
        for name in ("alpha", "beta"):
            self.rails(name, Shape((RAIL, RAIL, RAIL)), {1: "physnet4", 2: "other"})
        server = self.boot(self.make_flavor(ONE), networks=self.ports("physnet4"))
        self.assertEqual(Level.SWITCH, self.level_of(server))
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual(1, self.start_attempts())

    def test_the_node_takes_a_function_of_the_adapter_that_was_chosen(self) -> None:
        """One GPU after the other: Nova's list of adapters begins with the same one."""
        self.rails("alpha", Shape((RAIL,) * 4))
        flavor = self.make_flavor(ONE)
        for _ in range(4):
            server = self.boot(flavor, networks=self.ports("physnet4"))
            self.assertEqual(
                Decision(Level.SWITCH, AffinityPolicy.REQUIRED, Level.SWITCH), self.decision(server)
            )
            self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual(4, self.start_attempts())
        self.assert_given_once()

    def test_rails_of_the_declaration(self) -> None:
        """``configure`` writes the entries: each port is on its rail, beside a GPU of its own."""
        shape = Shape(tuple(Switch(gpus=1, pfs=1, vfs=2, numa=n // 2) for n in range(4)))
        tree = self.useFixture(FakeSysfs(shape))
        adapters = [each.address for each in shape.functions() if each.kind == "pf"]
        text = (
            "schema: nova-hpc/node\nversion: 1\n"
            f"rails: {{physical_network: 'ibrail{{n}}', adapters: {json.dumps(adapters)}}}\n"
        )
        node, roles = read_sysfs_node(tree.root), parse_roles(DEFAULT_ROLES)
        rails = read_declaration(text).wishes.rails
        networks = networks_of_functions(rails, Configured(), node, roles, {}, {})
        spec = build_device_spec(
            node,
            roles,
            Declaration(networks=networks, resource_classes={"gpu": fixtures.GPU_CLASS}),
        )
        self.host("alpha", shape, device_spec=[json.loads(line) for line in spec.lines()])
        names = [f"ibrail{number}" for number in range(4)]
        flavor = self.make_flavor({**PAIRS, "pci_passthrough:alias": "gpu:4"})
        server = self.boot(flavor, networks=self.ports(*names))
        self.assertEqual([Distance.PIX] * 4, self.pairs_of(server))
        for port in self.ports_of(server):
            found = self.neutron._networks[port["network_id"]]["provider:physical_network"]
            slot = port["binding:profile"]["pci_slot"]
            adapter = node.function(slot).physical_function
            self.assertEqual(found, f"ibrail{adapters.index(adapter)}")
        self.assertEqual(1, self.start_attempts())
        # A rail has one adapter, and its network no other.
        bad = self.boot(flavor, state="ERROR", networks=self.ports(*names[:3], "ibrail4"))
        self.assertEqual([], self.devices_of(bad))

    def test_the_guest_is_told_the_partition_of_its_port(self) -> None:
        """As our driver in Neutron describes the binding; of another port nothing is told."""
        self.rails("alpha", TWO)
        details = {"port_filter": False, "pkey": "0x0101", "guid": "0x1", "service_level": 3}
        bound = {"binding:vif_details": details, "binding:vif_type": "hostdev_physical"}
        ports = [self.port(**bound), self.port()]
        flavor = self.make_flavor({**ONE, "pci_passthrough:alias": "gpu:2", "hpc:group": "gpu:1"})
        server = self.boot(flavor, networks=[{"port": port} for port in ports])
        told = [
            (device.role, device.pkey, device.service_level) for device in self.told(server).devices
        ]
        self.assertCountEqual(
            [("gpu", None, None)] * 2 + [("vf", 0x0101, 3), ("vf", None, None)], told
        )

    def test_refused_by_the_scheduler(self) -> None:
        """Nobody begins to build a server whose port cannot be beside its GPU."""
        for name in ("alpha", "beta"):
            self.rails(name, TWO, {1: "physnet4"}, gpus=[0])
        flavor = self.make_flavor(ONE)
        server = self.boot(flavor, state="ERROR", networks=self.ports("physnet4"))
        self.assertIn("1 gpu and 1 port free, but", self.fault(server))
        self.assert_no_secrets(self.fault(server))
        self.assertEqual(0, self.start_attempts())

    def test_a_network_that_no_adapter_has(self) -> None:
        self.rails("alpha", TWO)
        flavor = self.make_flavor(ONE)
        server = self.boot(flavor, state="ERROR", networks=self.ports("nowhere"))
        self.assertIn("0 functions of adapters free for ports of a network", self.fault(server))
        self.assert_no_secrets(self.fault(server))
        self.assertTrue(self.log_lines("0 functions .* for 1 ports of physical network nowhere"))
        self.assertEqual(0, self.start_attempts())

    def test_a_port_without_a_physical_network(self) -> None:
        """It matches adapters of none, and not those of a flavor's alias."""
        self.host("alpha", Shape((RAIL, RAIL)))
        flavor = self.make_flavor(ONE)
        server = self.boot(flavor, state="ERROR", networks=[{"port": self.port(None)}])
        self.assertIn("0 functions of adapters free", self.fault(server))
        self.assertEqual(0, self.start_attempts())

    @pytest.mark.slow
    def test_preferred_takes_the_nearest_that_is_left(self) -> None:
        shape = Shape((RAIL, RAIL, RAIL))
        self.rails("alpha", shape, {1: "physnet4", 2: "other"}, gpus=[0])
        flavor = self.make_flavor({**ONE, "hpc:affinity_policy": "preferred"})
        server = self.boot(flavor, networks=self.ports("physnet4"))
        self.assertEqual(
            Decision(Level.SWITCH, AffinityPolicy.PREFERRED, Level.NUMA), self.decision(server)
        )

    def test_a_whole_adapter(self) -> None:
        """A direct-physical port takes the adapter itself, beside the GPU."""
        shape = Shape((RAIL, RAIL, RAIL))
        self.rails("alpha", shape, {0: "other", 1: "other", 2: "physnet4"}, product_id="101d")
        port = self.port(**{"binding:vnic_type": "direct-physical"})
        server = self.boot(self.make_flavor(ONE), networks=[{"port": port}])
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual(
            ["type-PCI", "type-PF"], sorted(each.dev_type for each in self.devices_of(server))
        )

    def test_a_port_that_asks_for_trust(self) -> None:
        """An adapter that is trusted, though another is first."""
        patch = fixtures.fixtures.MonkeyPatch
        # Nova would ask the kernel of the machine that runs the tests.
        self.useFixture(patch("nova.virt.libvirt.vif.set_vf_trusted", lambda *arguments: None))
        shape = Shape((RAIL, RAIL))
        entries = []
        for entry in shape.device_spec():
            if entry["hpc_role"] == "vf":
                trusted = str(entry["address"].startswith("0000:41")).lower()
                entry = {**entry, "physical_network": "physnet4", "trusted": trusted}
                del entry["resource_class"], entry["managed"]
            entries.append(entry)
        self.host("alpha", shape, device_spec=entries)
        port = self.port(**{"binding:profile": {"trusted": "true"}})
        server = self.boot(self.make_flavor(ONE), networks=[{"port": port}])
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual({0x41}, {int(each.address[5:7], 16) for each in self.devices_of(server)})

    def test_functions_of_one_adapter_that_differ(self) -> None:
        """A trusted function and another one: two pools of one adapter, and both are given."""
        patch = fixtures.fixtures.MonkeyPatch
        self.useFixture(patch("nova.virt.libvirt.vif.set_vf_trusted", lambda *arguments: None))
        shape = Shape((RAIL,))
        functions = [each.address for each in shape.functions() if each.kind == "vf"]
        entries = []
        for entry in shape.device_spec():
            if entry["hpc_role"] == "gpu":
                entries.append(entry)
                continue
            entry = {**entry, "physical_network": "physnet4"}
            del entry["resource_class"], entry["managed"]
            for address, trusted in zip(functions, ("true", "false"), strict=False):
                entries.append({**entry, "address": address, "trusted": trusted})
        self.host("alpha", shape, device_spec=entries)
        trusted = self.port(**{"binding:profile": {"trusted": "true"}})
        networks = [{"port": trusted}, *self.ports("physnet4")]
        server = self.boot(self.make_flavor(ONE), networks=networks)
        self.assertEqual(3, len(self.devices_of(server)))
        self.assertEqual(1, self.start_attempts())

    def test_whole_adapters_beside_functions_of_others(self) -> None:
        """Four adapters of one network, each offered whole and in functions."""
        shape = Shape((RAIL,) * 4)
        entries = []
        for entry in shape.device_spec():
            if entry["hpc_role"] == "gpu":
                entries.append(entry)
                continue
            entry = {**entry, "physical_network": "physnet4"}
            del entry["resource_class"], entry["managed"]
            entries += [entry, {**entry, "product_id": "101d"}]
        self.host("alpha", shape, device_spec=entries)
        networks = self.ports("physnet4", "physnet4")
        for _ in range(2):
            port = self.port(**{"binding:vnic_type": "direct-physical"})
            networks.append({"port": port})
        flavor = self.make_flavor({**PAIRS, "pci_passthrough:alias": "gpu:4"})
        server = self.boot(flavor, networks=networks)
        self.assertEqual([Distance.PIX] * 4, self.pairs_of(server))
        kinds = collections.Counter(each.dev_type for each in self.devices_of(server))
        self.assertEqual({"type-PCI": 4, "type-PF": 2, "type-VF": 2}, kinds)
        self.assertEqual(1, self.start_attempts())

    def test_a_server_of_ports_alone(self) -> None:
        """A flavor without devices: its ports are beside its CPUs, all on one node."""
        self.rails("alpha", EIGHT)
        flavor = self.make_flavor({"hpc:affinity": "numa"})
        server = self.boot(flavor, networks=self.ports(*["physnet4"] * 4))
        self.assertLessEqual(self.level_of(server), Level.NUMA)

    @pytest.mark.slow
    def test_sixty_four_ports_are_refused_or_served(self) -> None:
        """More than the host has: no service is held up by the search."""
        self.rails("alpha", EIGHT)
        flavor = self.make_flavor({**PAIRS, "hpc:group": "gpu:1"})
        server = self.boot(flavor, state="ERROR", networks=self.ports(*["physnet4"] * 64))
        self.assertIn("32 functions of adapters free for ports", self.fault(server))
        self.assertTrue(self.log_lines("32 functions of adapters free for 64 ports"))

    def test_flavors_without_hpc_keys_are_stock_novas(self) -> None:
        """The first adapter of Nova's list, wherever the GPU is."""
        self.rails("alpha", Shape((RAIL, RAIL)), gpus=[1])
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1"})
        server = self.boot(flavor, networks=self.ports("physnet4"))
        self.assertEqual(2, len(self.devices_of(server)))


class RailsTest(PortsTest):
    """Eight GPUs and eight ports on hosts of eight rails."""

    def eight(self, networks: list[str], flavor: dict[str, str] = PAIRS) -> dict:
        server = self.boot(self.make_flavor(flavor), networks=self.ports(*networks))
        self.assertEqual([Distance.PIX] * 8, self.pairs_of(server))
        self.assertEqual(1, self.start_attempts())
        return server

    def test_one_network(self) -> None:
        self.rails("alpha", EIGHT)
        server = self.eight(["physnet4"] * 8)
        self.rails_told(server)

    def rails_told(self, server: dict) -> None:
        """The guest reads which of its interfaces is whose rail, by the MAC address."""
        told = self.told(server)
        ports = {each.mac: each for each in told.devices if each.mac}
        self.assertEqual(
            {port["mac_address"] for port in self.ports_of(server)},
            set(ports),
        )
        by_group: dict[int, list[str]] = {}
        for device in told.devices:
            by_group.setdefault(device.group, []).append("port" if device.mac else "gpu")
        self.assertEqual(
            {n: ["gpu", "port"] for n in range(8)},
            {group: sorted(kinds) for group, kinds in by_group.items()},
        )
        switches = {
            group: {each.switches for each in told.devices if each.group == group}
            for group in by_group
        }
        self.assertEqual({1}, {len(found) for found in switches.values()})

    def test_eight_networks(self) -> None:
        rails = [f"rail{n}" for n in range(8)]
        self.rails("alpha", EIGHT, rails)
        self.eight(rails[::-1], {**PAIRS, "hpc:group": "gpu:1"})

    @pytest.mark.slow
    def test_by_the_role_of_the_networks(self) -> None:
        self.flags(port_roles=["rail:ib*"], group="hpc")
        rails = [f"ib{n}" for n in range(8)]
        self.rails("alpha", EIGHT, rails)
        self.eight(rails, {**PAIRS, "hpc:group": "gpu:1,rail:1"})

    @pytest.mark.slow
    def test_more_ports_than_the_flavor_takes(self) -> None:
        self.rails("alpha", EIGHT)
        server = self.boot(
            self.make_flavor(PAIRS), state="ERROR", networks=self.ports(*["physnet4"] * 9)
        )
        self.assertIn("at most 1 port in each of 8 groups", self.fault(server))
        self.assertEqual(0, self.start_attempts())

    def fragmented(self, creates: int) -> None:
        """Servers of one to four pairs come and go; each is as near as it can be."""
        seeded = random.Random(4)
        rails = ["one", "two"] * 4
        for name in ("alpha", "beta"):
            self.rails(name, EIGHT, rails)
        flavors = {
            count: self.make_flavor(
                {**PAIRS, "pci_passthrough:alias": f"gpu:{count}", "hpc:group": "gpu:1"}
            )
            for count in (1, 2, 3, 4)
        }
        alive: list[dict] = []
        far = 0
        for number in range(creates):
            used = sum(len(self.devices_of(each)) for each in alive) // 2
            count = seeded.choice([1, 1, 2, 2, 3, 4])
            while used + count > 11:
                gone = alive.pop(seeded.randrange(len(alive)))
                used -= len(self.devices_of(gone)) // 2
                self._delete_server(gone)
            networks = [rails[(n + number) % 2] for n in range(count)]
            server = self._create_server(
                flavor_id=flavors[count], networks=self.ports(*networks), expected_state="ACTIVE"
            )
            far += sum(each is not Distance.PIX for each in self.pairs_of(server))
            alive.append(server)
        self.assertEqual(0, far)
        self.assertEqual(creates, self.start_attempts())
        self.assert_given_once()

    def test_fragmented_hosts(self) -> None:
        self.fragmented(6)

    @pytest.mark.slow
    def test_fragmented_hosts_a_hundred_times(self) -> None:
        self.fragmented(100)


class MovedTest(PortsTest):
    """The port of a server that moves is bound to another adapter."""

    def test_beside_the_new_gpu(self) -> None:
        self.useFixture(fixtures.Moves())
        flavor = self.make_flavor(ONE)
        self.rails("alpha", Shape((RAIL,)))
        server = self.boot(flavor, networks=self.ports("physnet4"))
        # Nova's list of adapters there begins with one that is elsewhere.
        self.rails("beta", Shape((RAIL, RAIL, RAIL)), gpus=[1])
        self._migrate_server(server)
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._confirm_resize(server)
        self.assertEqual("beta", self.host_of(server))
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        (port,) = self.ports_of(server)
        slot = self.neutron._port_bindings[port["id"]]["beta"]["profile"]["pci_slot"]
        self.assertIn(slot, [each.address for each in self.devices_of(server)])

    def test_nowhere_beside_a_gpu(self) -> None:
        """The server stays where it is, as it was."""
        self.useFixture(fixtures.Moves())
        flavor = self.make_flavor(ONE)
        self.rails("alpha", Shape((RAIL,)))
        server = self.boot(flavor, networks=self.ports("physnet4"))
        before = [each.address for each in self.devices_of(server)]
        self.rails("beta", TWO, {0: "physnet4"}, gpus=[1])
        with self.assertRaises(base.client.OpenStackApiException):
            self._migrate_server(server)
        server = self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual(before, [each.address for each in self.devices_of(server)])


class RunningTest(PortsTest):
    """A port comes to a running server, and goes."""

    def attach(self, server, port: str) -> None:
        self.api.attach_interface(server["id"], {"interfaceAttachment": {"port_id": port}})

    def test_a_port_beside_the_gpu(self) -> None:
        """The adapter of the server's GPU, though it is the last of Nova's list."""
        self.rails("alpha", Shape((RAIL,) * 3), gpus=[0])
        server = self.boot(self.make_flavor(ONE))
        self.attach(server, self.port())
        self.assertEqual([Distance.PIX], self.pairs_of(server))

    def test_no_adapter_beside_the_gpu(self) -> None:
        """Refused before Neutron is told of anything."""
        self.rails("alpha", TWO, {1: "physnet4"}, gpus=[0])
        server = self.boot(self.make_flavor(ONE))
        port = self.port()
        with self.assertRaises(base.client.OpenStackApiException) as caught:
            self.attach(server, port)
        self.assertEqual(400, caught.exception.response.status_code)
        self.assertIn("No adapter close enough", str(caught.exception))
        self.assertEqual(1, len(self.devices_of(server)))
        self.assertFalse(self.neutron._ports[port].get("device_id"))
        self.assertEqual({}, dict(self.neutron._port_bindings[port]))

    def test_a_port_more_than_the_flavor_takes(self) -> None:
        self.rails("alpha", TWO)
        flavor = {**ONE, "hpc:group": "gpu:1,port:1"}
        server = self.boot(self.make_flavor(flavor), networks=self.ports("physnet4"))
        with self.assertRaises(base.client.OpenStackApiException):
            self.attach(server, self.port())
        self.assertEqual(2, len(self.devices_of(server)))

    def test_detached_and_attached_again(self) -> None:
        self.rails("alpha", TWO)
        port = self.port()
        server = self.boot(self.make_flavor(ONE), networks=[{"port": port}])
        self.api.detach_interface(server["id"], port)
        self.eventually(lambda: self.assertEqual(1, len(self.devices_of(server))))
        self.attach(server, port)
        self.assertEqual([Distance.PIX], self.pairs_of(server))
