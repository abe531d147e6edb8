# SPDX-License-Identifier: Apache-2.0
"""Shares of Manila, which Nova gives to guests over virtiofs, beside this project's topology."""

from __future__ import annotations

from lxml import etree
from nova.tests import fixtures as nova_fixtures

from nova_hpc_common.level import Distance
from tests.functional import fixtures
from tests.functional.base import client
from tests.functional.test_driver_mirror import MIRROR, PAIR, MirrorBase

SHARE = "4b021746-d0eb-4031-92aa-23c3bec182cd"
TAG = "data"
#: The first one that has shares of servers (Nova 2025.1 and later).
_WITH_SHARES = "2.97"


class SharesTest(MirrorBase):
    """Servers with a share and ``hpc:guest_topology=mirror``."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(nova_fixtures.ManilaFixture())
        self.flags(auth_type="password", group="manila")
        for name in ("connect", "disconnect"):
            self.useFixture(
                fixtures.fixtures.MockPatch(
                    f"nova.virt.libvirt.volume.nfs.LibvirtNFSVolumeDriver.{name}_volume"
                )
            )
        self.api.microversion = _WITH_SHARES

    def give_share(self, server: dict) -> etree._Element:
        """The domain once the server has the share, as the page for users says it."""
        with self.assertRaisesRegex(client.OpenStackApiException, "while it is in vm_state active"):
            self.api.post_server_share(server["id"], {"share": {"share_id": SHARE, "tag": TAG}})
        self._stop_server(server)
        self._attach_share(server, SHARE, tag=TAG)
        self._start_server(server)
        return self.domain_of(server)

    def assert_shared(self, domain: etree._Element) -> None:
        (filesystem,) = domain.findall("devices/filesystem")
        self.assertEqual(TAG, filesystem.find("target").get("dir"))
        self.assertEqual("virtiofs", filesystem.find("driver").get("type"))

    def test_with_huge_pages(self) -> None:
        shape = fixtures.Shape(
            tuple(fixtures.Switch(gpus=2, pfs=1, vfs=4, numa=numa) for numa in (0, 1)),
            cores=3,
            pages=((4, 1 << 20), (2048, 4096)),
        )
        self.start(shape)
        server = self.server({**MIRROR, "hw:mem_page_size": "2MB"})
        before = sorted(self.distances(server))
        self.assertEqual({Distance.PIX, Distance.SYS}, {guest for _, guest in before})
        told = self.told(server)
        domain = self.give_share(server)
        self.assert_shared(domain)
        self.assert_mirrored(server)
        self.assertEqual(before, sorted(self.distances(server)))
        self.assertEqual(told, self.told(server))
        # virtiofs needs memory that its daemon can map.
        cells = domain.findall("cpu/numa/cell")
        self.assertEqual(["shared"] * 2, [cell.get("memAccess") for cell in cells])
        pages = domain.findall("memoryBacking/hugepages/page")
        self.assertEqual({"2048"}, {page.get("size") for page in pages})

    def test_with_memory_in_files(self) -> None:
        self.flags(file_backed_memory=8192, group="libvirt")
        self.flags(ram_allocation_ratio=1.0, reserved_host_memory_mb=0)
        self.start(fixtures.Shape((fixtures.Switch(gpus=2),)))
        server = self.server(PAIR)
        domain = self.give_share(server)
        self.assert_shared(domain)
        self.assert_mirrored(server)
        backing = domain.find("memoryBacking")
        self.assertEqual("file", backing.find("source").get("type"))
        self.assertEqual("shared", backing.find("access").get("mode"))
        # And once it is gone, nothing else has changed.
        self._stop_server(server)
        self._detach_share(server, SHARE)
        self._start_server(server)
        self.assertEqual([], self.domain_of(server).findall("devices/filesystem"))
        self.assert_mirrored(server)
