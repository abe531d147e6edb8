# SPDX-License-Identifier: Apache-2.0
"""Which servers share memory with which, on Nova's stack.

Few tests with many steps: each start of Nova takes longer than all that is looked at.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from lxml import etree
from nova import exception, objects
from nova.virt.libvirt.driver import LibvirtDriver

from nova_hpc.from_nova import sharing_group
from nova_hpc.placement.segment_shape import SegmentShape
from tests.functional.segments_base import (
    DEDICATED,
    MIB,
    OTHER_PROJECT,
    REQUIRED,
    SHAPE,
    SHARED,
    SegmentsTest,
)

SEGMENT = SegmentShape(2, 8)  # eight dedicated CPUs, and servers with one
FOUR = {"hpc:shared_memory": "4"}


class SharingTest(SegmentsTest):
    """Same host, same group, same project."""

    @staticmethod
    def asked(find: Callable[..., Any]) -> AbstractContextManager[Any]:
        """Let the driver's question be answered so; the API asks the same for its users."""
        asked = SimpleNamespace(InstanceGroup=SimpleNamespace(get_by_instance_uuid=find))
        return mock.patch.object(sharing_group, "objects", asked)

    def test_who_shares_with_whom(self) -> None:
        self.node()
        group, other = self.group("g"), self.group("other")
        first, second, stranger = self.make(group), self.make(group), self.make(other)
        name, part = self.use(first)
        self.assertEqual((group, SEGMENT, 0), (name.owner, name.shape, part))
        self.assertEqual((name, 1), self.use(second))
        self.assertEqual((other, 0), (self.use(stranger)[0].owner, self.use(stranger)[1]))
        self.assertEqual({"bytes": 2 * MIB, "part": 1, "parts": 8}, self.told(second))
        self.assertEqual(2, len(self.files()))
        self.assertEqual([first["id"], second["id"], *6 * [""]], self.members(name))
        # Of the host and of the group's name a guest sees nothing.
        self.assertNotIn(group.encode(), (self.folder() / str(name)).read_bytes())

        # Unequal sizes; more CPUs are no other size.
        odd = self.make(group, {**SHARED, **FOUR})
        self.assertEqual(
            ({"why": "size"}, None, None), (self.told(odd), self.use(odd), self.abi(odd))
        )
        refused = self.make(group, {**REQUIRED, **FOUR}, state="ERROR")
        self.assertIn("bring another size", self.fault(refused))
        for server in (odd, refused, stranger):
            self.delete(server)
        wide = self.make(group, flavor=self.make_flavor(SHARED, vcpu=2))
        self.assertEqual((name, 2), self.use(wide))
        self.assertEqual([name], self.files())
        self.delete(wide)

        # Two projects.
        api, self.api = self.api, self.other_client()
        try:
            foreign = self.make(self.group("g"))
            self.assertEqual(OTHER_PROJECT, self.instance(foreign).project_id)
            self.assertNotEqual(name, self.use(foreign)[0])
            self.delete(foreign)
        finally:
            self.api = api

        # A record that says another project, and none that says anything.
        find = objects.InstanceGroup.get_by_instance_uuid

        def find_of_another(context, uuid):
            found = find(context, uuid)
            found.project_id = OTHER_PROJECT
            return found

        with self.asked(find_of_another):
            third = self.make(group)
        self.assertEqual(({"why": "group"}, None), (self.told(third), self.use(third)))
        silent = mock.Mock(side_effect=RuntimeError("no API database"))
        with self.asked(silent):
            fourth = self.make(group)
            self.assertEqual(({"why": "unknown"}, None), (self.told(fourth), self.use(fourth)))
            refused = self.make(group, REQUIRED, state="ERROR")
            # What a server has it keeps.
            self.assertEqual("", self.ask(second, {"reboot": {"type": "HARD"}}))
        self.assertIn("did not learn who shares it", self.fault(refused))
        self.assertEqual((name, 1), self.use(second))
        self.assertEqual(1, len(self.log_lines("Servers share no memory.*no API database")))
        self.assertEqual([first["id"], second["id"], *6 * [""]], self.members(name))

    def test_what_is_refused_or_goes_without(self) -> None:
        self.node(cpu_dedicated_set="0-5", cpu_shared_set="6-7")
        alone = self.make()
        self.assertEqual(
            ({"why": "group"}, None, None), (self.told(alone), self.use(alone), self.abi(alone))
        )
        group = self.group()
        stock = self.make(group, DEDICATED)
        for keys, state, words in (
            ({"hpc:shared_memory": "2"}, None, "set hw:cpu_policy=dedicated in the flavor"),
            ({**SHARED, "hpc:shared_memory": "66"}, group, "quarter of the flavor's memory of 256"),
            ({**SHARED, "hpc:shared_memory": "3"}, group, "an even number of MiB from 2 to 4096"),
            (REQUIRED, None, "the server is in no server group of its project"),
        ):
            refused = self.make(state, keys, state="ERROR")
            self.assertIn(words, self.fault(refused))
            self.assert_no_secrets(self.fault(refused))
            self.delete(refused)
        self.assertEqual(([], 0), (self.files(), self.failed_builds("alpha")))

        # Without the key the domain is Nova's own, byte for byte.
        self.assertEqual((None, None, None), (self.use(stock), self.told(stock), self.abi(stock)))
        plain = LibvirtDriver._get_guest_xml
        written: list[str] = []

        def keep(driver, *args, **keywords):
            written.append(plain(driver, *args, **keywords))
            return written[-1]

        with mock.patch.object(LibvirtDriver, "_get_guest_xml", keep):
            self.assertEqual("", self.ask(stock, {"reboot": {"type": "HARD"}}))
        self.assertEqual(self.domains.given[stock["id"]][-1], written[-1])
        for word in ("nvdimm", "maxMemory", "fwcfg"):
            self.assertNotIn(word, written[-1])

    def test_two_members_at_one_moment(self) -> None:
        self.node()
        group, flavor = self.group(), self.make_flavor(SHARED)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            servers = list(pool.map(lambda _: self.make(group, flavor=flavor), range(4)))
        uses = [self.use(server) for server in servers]
        self.assertEqual({0, 1, 2, 3}, {part for _, part in uses})
        self.assertEqual([self.files()[0]] * 4, [name for name, _ in uses])

        server = servers[0]
        name, part = uses[0]
        root = self.domain_of(server)
        (device,) = root.findall("devices/memory")
        self.assertEqual(
            '<memory model="nvdimm" access="shared"><source>'
            f'<path>{self.folder()}/{name}</path><alignsize unit="KiB">2048</alignsize></source>'
            f'<target><size unit="KiB">{SEGMENT.file_bytes >> 10}</size><node>0</node></target>'
            f'<alias name="ua-hpc-shared-{part}"/></memory>',
            etree.tostring(device, encoding="unicode"),
        )
        memory = int(root.findtext("memory"))
        self.assertEqual(256 << 10, memory)  # what Nova counts
        limit = root.find("maxMemory")
        self.assertEqual(
            ("1", memory + (SEGMENT.file_bytes >> 10)), (limit.get("slots"), int(limit.text))
        )
        # On the NUMA node of the first member's first cell.
        self.assertIn(name.node, [self.domain_nodes(each)[0] for each in servers])
        self.assertEqual([name.node], self.bound)
        self.assertEqual(
            '{"v":3,"mode":"flat","clique":0,"tree":2,"segment":{"mib":2,"parts":8}}',
            self.abi(server),
        )


class PoolTest(SegmentsTest):
    """What there is to give."""

    def test_a_host_that_gives_none(self) -> None:
        self.flags(shared_memory_mb=["64"], shared_memory_dir="nova-hpc", group="hpc")
        with self.assertRaisesRegex(exception.InvalidConfiguration, "to an absolute path"):
            self.host("beta", SHAPE, ())
        with self.assertRaises(ValueError):
            self.flags(shared_memory_mb=["many"], group="hpc")
        self.node(pool="0")
        server = self.make(self.group())
        self.assertEqual({"why": "off"}, self.told(server))
        refused = self.make(self.group("b"), REQUIRED, state="ERROR")
        # By the scheduler: a node that gives nothing changes nothing in Nova.
        self.assertIn("No host that can serve the server gives the memory", self.fault(refused))
        self.assertEqual([], self.log_lines("cannot be given on the host"))
        self.assertFalse(self.folder().exists())

    def test_a_pool_that_is_small(self) -> None:
        self.node(pool="20")  # one segment on each NUMA node
        groups = [self.group(str(number)) for number in range(5)]
        servers = [self.make(group) for group in groups[:4]]
        given = [server for server in servers if self.use(server)]
        self.assertEqual(
            [{"why": "full"}] * (4 - len(given)),
            [self.told(server) for server in servers if server not in given],
        )
        self.assertEqual(len({self.use(server)[0].node for server in given}), len(given))
        self.assertEqual(len(given), len(self.files()))
        keeper = self.keeper()
        for name in self.files():
            state = keeper.read_state(keeper.domains(), self.instance(servers[0]))
            self.assertEqual(20 * MIB, state.charge_of(name.node))

        # Nobody has what is not there, or what programs of the host have.
        for server in servers:
            self.delete(server)
        self.assertEqual([], self.files())
        for number in (0, 1):
            path = self.sysfs["alpha"].root / f"sys/devices/system/node/node{number}/meminfo"
            path.write_text(f"Node {number} MemFree: 1024 kB\n")
        server = self.make(groups[4])
        self.assertEqual({"why": "memory"}, self.told(server))
        self.assertEqual([], self.files())
        (line,) = self.log_lines("NUMA node . has 1 MiB left")
        self.assertIn("raise [DEFAULT]reserved_host_memory_mb, or lower", line)

        # A link is not followed, and a strange file is neither joined nor removed.
        self.folder().rmdir()
        elsewhere = self.memory / "elsewhere"
        elsewhere.mkdir()
        self.folder().symlink_to(elsewhere)
        server = self.make(self.group("5"))
        self.assertIn(self.told(server)["why"], ("unknown", "memory"))
        self.assertEqual([], list(elsewhere.iterdir()))
        self.assertTrue(self.log_lines("set .hpc.shared_memory_dir to a directory"))
