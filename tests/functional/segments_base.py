# SPDX-License-Identifier: Apache-2.0
"""Hosts that give memory which servers share; their files are real, on a tmpfs."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lxml import etree
from nova.tests.functional.api import client

from nova_hpc.tenancy.segments import segment_file, segment_record
from nova_hpc.tenancy.segments.segment_record import SegmentFileName
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.lifecycle.domains import FaithfulDomains

OTHER_PROJECT = "616c6c796f7572626173656172656f73"
#: Two NUMA nodes of four CPUs each, and devices that no entry offers.
SHAPE = fixtures.Shape((fixtures.Switch(gpus=1, numa=0), fixtures.Switch(gpus=1, numa=1)))
DEDICATED = {"hw:cpu_policy": "dedicated"}
SHARED = {**DEDICATED, "hpc:shared_memory": "2"}
REQUIRED = {**SHARED, "hpc:shared_memory_policy": "required"}
MIB = 1 << 20


class SegmentsTest(DriverTest):
    """Hosts without ``hpc_*`` tags, where nothing else of this project's is in use."""

    CAST_AS_CALL = False
    DEVICE_SPEC: tuple[Mapping[str, str], ...] = ()

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        self.guests = self.useFixture(FaithfulDomains(lambda *_: None))
        self.memory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.memory, ignore_errors=True)
        # The machine of the tests may have one NUMA node.
        self.bound: list[int] = []
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                f"{segment_file.__name__}.bind_to_node",
                lambda file, size, node: self.bound.append(node),
            )
        )
        for path, value in (
            ("nova.virt.libvirt.utils.get_disk_size", 1 << 30),
            ("nova.virt.libvirt.utils.get_disk_backing_file", None),
            ("nova.virt.libvirt.utils.create_image", None),
            ("nova.virt.libvirt.utils.extract_snapshot", None),
            ("nova.privsep.path.chown", None),
        ):
            self.useFixture(fixtures.fixtures.MockPatch(path, return_value=value))

    def node(self, name: str = "alpha", pool: str = "64", **options: Any) -> str:
        """A host that gives so many MiB on each NUMA node."""
        self.flags(
            shared_memory_mb=pool.split(","), shared_memory_dir=str(self.folder(name)), group="hpc"
        )
        options.setdefault("cpu_dedicated_set", "0-7")
        return self.host(name, SHAPE, self.DEVICE_SPEC, **options)

    def folder(self, name: str = "alpha") -> Path:
        return self.memory / name

    def keeper(self, name: str = "alpha") -> Any:
        return self.computes[name].driver.hpc_segments.keeper

    def files(self, name: str = "alpha") -> list[SegmentFileName]:
        """The segments of a host, whole."""
        if not self.folder(name).exists():
            return []
        found = []
        for path in sorted(self.folder(name).iterdir()):
            file = segment_record.parse_file_name(path.name)
            assert file is not None
            assert path.stat().st_size == file.shape.file_bytes == path.stat().st_blocks * 512
            found.append(file)
        return found

    def group(self, name: str = "g", api: Any = None) -> str:
        policy = {"name": name, "policy": "soft-affinity"}
        return (api or self.api).post_server_groups(policy)["id"]

    def other_client(self) -> client.TestOpenStackClient:
        other = client.TestOpenStackClient(
            "other", self.api_fixture.base_url, OTHER_PROJECT, ["reader", "member", "admin"]
        )
        other.microversion = self.api.microversion
        return other

    def make(
        self,
        group: str | None = None,
        specs: Mapping[str, str] = SHARED,
        state: str = "ACTIVE",
        flavor: str | None = None,
        **keywords: Any,
    ) -> dict[str, Any]:
        """Boot a server, with the hint of a group."""
        body = self._build_server(
            flavor_id=flavor or self.make_flavor(specs), networks="none", **keywords
        )
        request: dict[str, Any] = {"server": body}
        if group is not None:
            request["os:scheduler_hints"] = {"group": group}
        made = self.api.post_server(request)
        return self._wait_for_state_change(made, state)

    def domain(self, server: Mapping[str, Any], host: str = "alpha") -> Any:
        connection = self.computes[host].driver._host.get_connection()
        (found,) = (each for each in connection._vms.values() if each.UUIDString() == server["id"])
        return found

    def use(
        self, server: Mapping[str, Any], host: str = "alpha"
    ) -> tuple[SegmentFileName, int] | None:
        """What the running guest has."""
        uses = segment_record.read_segment_uses(self.domain(server, host).hpc_live.root)
        if not uses:
            return None
        (use,) = uses
        assert use.part is not None
        name = use.file_in(self.keeper(host).path)
        assert name is not None
        return name, use.part

    def told(self, server: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the guest is told of it."""
        root = etree.fromstring(self.domains.given[server["id"]][-1])
        for entry in root.findall("sysinfo[@type='fwcfg']/entry"):
            if entry.get("name") == "opt/org.nova-hpc/guest.json":
                document = json.loads(base64.b64decode(entry.text))
                return document.get("shared_memory")
        return None

    def abi(self, server: Mapping[str, Any]) -> str | None:
        return self.instance(server).system_metadata.get("hpc_guest_abi")

    def ask(
        self, server: Mapping[str, Any], body: Mapping[str, Any], status: str = "ACTIVE"
    ) -> str:
        """An action to its end; the reason if it has failed."""
        self.api.post_server_action(server["id"], body)
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None, "status": status})
        (newest, *_) = self.api.get_instance_actions(server["id"])
        events: list[dict[str, Any]] = []

        def over() -> None:
            found = self.api.get_instance_action_details(server["id"], newest["request_id"])
            events[:] = found["events"]
            self.assertTrue(events)
            self.assertTrue(all(each["finish_time"] for each in events))

        self.eventually(over)
        return " ".join(each["details"] or "" for each in events).strip()

    def delete(self, server: Mapping[str, Any]) -> None:
        self.api.delete_server(server["id"])
        self._wait_until_deleted(server)

    def members(self, name: SegmentFileName, host: str = "alpha") -> list[str]:
        """The names of servers in a segment; "" for a part that nobody has."""
        data = (self.folder(host) / str(name)).read_bytes()[2 * MIB + 4096 :]
        texts = [data[64 * part : 64 * part + 64] for part in range(name.shape.parts)]
        return [text.rstrip(b"\0").decode() for text in texts]
