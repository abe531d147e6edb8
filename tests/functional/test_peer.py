# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer as the operator wishes it: by nova-compute, and by its privileged helper."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nova_hpc.topology import confspace
from nova_hpc_guest import document, terms
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs
from tests.nodes.describe import DIRECT, Machine, Processor, Root
from tests.nodes.parts import XEON, adapter, gpu, numa_nodes, port, switch
from tests.nodes.write import write
from tests.unit.topology.builder import config

REDIRECT, TRANSLATED = 0x1D, 0x5D


def control(path: Path) -> int:
    """The ACS control register in a configuration space."""
    data = path.read_bytes()
    at = confspace.acs_control_at(data)
    assert at is not None
    return struct.unpack_from("<H", data, at)[0]


class PeerTest(DriverTest):
    """A GPU and an adapter below a switch whose ports redirect."""

    SHAPE = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1, vfs=2),))

    def registers(self, tree: FakeSysfs) -> None:
        """Give the bridges configuration spaces."""
        for bridge in tree.devices.glob("*:1e.0"):
            self._space(bridge, 4)
        for below in tree.devices.glob("0000:40:0*"):
            down = below.resolve().parent
            self._space(down, 6)
            self._space(down.parent, 5, None)

    @staticmethod
    def _space(bridge: Path, kind: int, acs: tuple[int, int] | None = (0x5F, REDIRECT)) -> None:
        space = config(0x1000, 0xC010, 0x060400, header=1, port=kind, acs=acs)
        (bridge / "config").write_bytes(space)

    def ports(self) -> dict[str, int]:
        """Address -> register of the ports right above devices."""
        above = {each.resolve().parent for each in self.sysfs["alpha"].devices.glob("0000:40:0*")}
        return {each.name: control(each / "config") for each in above}

    def start(self, wish: str) -> None:
        self.flags(peer_to_peer=wish, group="hpc")
        self.host("alpha", self.SHAPE, before=self.registers)

    def test_kept_by_default(self) -> None:
        self.host("alpha", self.SHAPE, before=self.registers)
        self.assertEqual({REDIRECT}, set(self.ports().values()))
        driver = self.computes["alpha"].driver
        self.assertIsNone(driver.hpc_node.tenancy.step("peer-to-peer"))

    def test_set_when_the_service_starts_and_again(self) -> None:
        self.start("translated")
        before = self.ports()
        self.assertEqual({TRANSLATED}, set(before.values()))
        self.assertTrue(self.log_lines("is set as .hpc.peer_to_peer wishes"))
        # What cannot be made so is named: these devices' registers cannot be read.
        self.assertTrue(self.log_lines("whether it has ATS cannot be read"))
        self.registers(self.sysfs["alpha"])  # as after a reset of the switch
        self.assertEqual({REDIRECT}, set(self.ports().values()))
        self.update("alpha")
        self.assertEqual(before, self.ports())
        # Nothing is withheld for it, and servers start.
        self.assertEqual({}, dict(self.stats_of("alpha").withheld))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1"})
        self.assertEqual("alpha", self.host_of(self.boot(flavor)))

    def test_the_guest_and_the_record_have_the_wish(self) -> None:
        """Each pair's state and what was wished of it: in the document and the decision."""
        self.start("translated")
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"})
        server = self.boot(flavor)
        told = self.told(server)
        self.assertEqual("translated", told.peer_wish)
        # Whether the devices have ATS is not known here, so nothing is claimed of them.
        self.assertEqual([(None, "unreadable", None)], [each[2:] for each in told.peers])
        self.assertEqual((), self.decision(server).peers)
        for each in self.sysfs["alpha"].devices.glob("0000:40:0*"):
            (each / "config").write_bytes(config(0x10DE, 0x2330, 0x030200))
        self.registers(self.sysfs["alpha"])  # the switch was reset, and nobody has set it again
        other = self._reboot_server(server, hard=True)
        self.assertEqual([("root", "acs-redirect", False)], [p[2:] for p in self.told(other).peers])

    def told(self, server: Mapping[str, object]) -> document.GuestDocument:
        """What the guest reads."""
        entries = self.domain_of(server).findall("sysinfo[@type='fwcfg']/entry")
        (text,) = [each.text for each in entries if each.get("name") == terms.DOCUMENT]
        return document.parse_guest_document(document.decode_entry(text.encode()))

    def test_what_would_join_groups_is_refused(self) -> None:
        self.start("direct")
        self.assertEqual({REDIRECT}, set(self.ports().values()))
        self.assertTrue(self.log_lines("could reach each other past the IOMMU"))


SCRIPT = """\
import os, sys, types
from pathlib import Path
from unittest import mock
import attrs
from oslo_config import cfg
from oslo_privsep import priv_context
from nova_hpc import conf as hpc_conf
from nova_hpc.topology import peer, sysfs
from nova_hpc.topology.peer_wish import PeerWish
from virt_driver_patches import privileged
from virt_driver_patches.driver import peer_reading

import nova.conf
hpc_conf.register_all_options(cfg.CONF)
cfg.CONF([], project="nova")
cfg.CONF.set_override("sysfs_root", sys.argv[1], "hpc")
for wish in (PeerWish.DIRECT, PeerWish.TRANSLATED, PeerWish.TRANSLATED):
    # The daemon's own configuration has the wish, and where the node is.
    cfg.CONF.set_override("peer_to_peer", wish.value, "hpc")
    privileged.default.stop()
    privileged.default.start(priv_context.Method.FORK)
    found = privileged.apply_wish_by_helper(Path("/elsewhere"), wish)
    print(len(found.made), len(found.failed), len(found.lacks))
    try:
        privileged.apply_wish_by_helper(Path(sys.argv[1]), PeerWish.KEEP)
    except privileged.SettingsError as error:
        print(error)
    try:
        privileged._apply_wish_in_helper(sys.argv[1], "direct")
    except TypeError as error:
        print(type(error).__name__)
# A service that sees no registers itself has those of a server's devices read.
full = sysfs.read_sysfs_node(Path(sys.argv[1]))
blind = [attrs.evolve(each, acs_control=None, ats=None) for each in full.functions]
reading = types.SimpleNamespace(node=attrs.evolve(full, functions=tuple(blind)))
devices = [each.address for each in full.functions if not each.is_bridge]
for uid in (0, 42):
    with mock.patch("os.geteuid", return_value=uid):
        node = peer_reading.add_peer_registers(cfg.CONF, reading, devices)
    print(sorted({why.value for _, _, why in peer.peer_reasons_between(node, devices)}))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the daemon by itself")
def test_the_privileged_helper_takes_nothing(tmp_path: Path) -> None:
    leaf = switch(
        0x17,
        adapter(0, 0x18, vfs=2),
        gpu("10de:2330", "10de:16c1", 0x19),
        acs=(DIRECT[0], REDIRECT),
    )
    roots = (Root(0, 0x15, 0, (port("01.0", 0x16, leaf),)),)
    cells = numa_nodes(1, 1, 2, 4, {2048: 0})
    root = write(Machine("small", cells, roots, Processor(XEON, sibling=2)), tmp_path / "node")
    root.chmod(0o755)  # the helper refuses one where others write
    argv = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    other = "the privileged helper goes by [hpc]peer_to_peer = {}, and this service by keep: "
    other += "restart nova-compute"
    assert done.stdout.splitlines() == [
        *("0 0 2", other.format("direct"), "TypeError"),
        *("2 0 0", other.format("translated"), "TypeError"),
        *("0 0 0", other.format("translated"), "TypeError"),
        "[]",
        "['ats']",
    ]
    spaces = list((root / "sys/bus/pci/devices").glob("0000:17:*/config"))
    assert sorted(control(each) for each in spaces) == [TRANSLATED, TRANSLATED]
