# SPDX-License-Identifier: Apache-2.0
"""A nova-compute's work on shared memory, as a process that can be killed at any step.

The process starts and ends servers at random and kills itself before the step of a given number.
A step is a call that changes something: of the kernel's on files, or of libvirt's. Libvirt is a
directory with the XML of each guest that runs, which outlives the process, as libvirt does; a
real one is in ``tests/lab/libvirt_room.py``.
"""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nova import objects
from nova.objects import fields

from nova_hpc.from_nova import sharing_group
from nova_hpc.from_nova.sharing_group import SharingGroup
from nova_hpc.placement.segment_shape import MIB
from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_file import SegmentFolder
from nova_hpc.tenancy.segments.segment_record import SegmentFileName
from virt_driver_patches.domain.guest_domain import GuestDomainXml
from virt_driver_patches.driver.segment_keeper import SegmentKeeper
from virt_driver_patches.driver.segments import NodeSegments
from virt_driver_patches.errors import ClaimRefused

GROUPS = tuple(f"{digit * 8}-aaaa-4aaa-8aaa-aaaaaaaaaaaa" for digit in "123")
SERVERS = tuple(f"{number:08d}-bbbb-4bbb-8bbb-bbbbbbbbbbbb" for number in range(9))
#: Room for two of three groups.
POOL = "16"
_STEPS = ("open", "ftruncate", "posix_fallocate", "pwrite", "unlink", "fchmod", "rename")


def group_of(server: str) -> str:
    return GROUPS[SERVERS.index(server) % len(GROUPS)]


class Guest:
    """A guest that runs, as libvirt shows it."""

    def __init__(self, path: Path) -> None:
        self.path, self.xml = path, path.read_text()

    def name(self) -> str:
        return self.path.name

    def UUIDString(self) -> str:
        return self.path.name

    def info(self) -> list[int]:
        return [1]

    def hasManagedSaveImage(self, flags: int) -> int:
        return 0

    def XMLDesc(self, flags: int) -> str:
        return self.xml


class Host:
    """The directory of a host: ``libvirt`` and ``shm``."""

    #: The XML of a guest without shared memory.
    bare = (
        "<domain><memory>262144</memory><cpu><numa><cell id='0'/></numa></cpu><devices/></domain>"
    )
    #: What may go wrong in libvirt while a guest is started or ended.
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, folder: Path) -> None:
        self.libvirt, self.shm = folder / "libvirt", folder / "shm"
        self.libvirt.mkdir(exist_ok=True)
        self.count = self.last = 0

    def step(self) -> None:
        """A step comes; the last one does not."""
        self.count += 1
        if self.count >= self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def is_over(self) -> bool:
        """Whether the service is to end between two servers, and not at a step."""
        return False

    def guests(self) -> Iterable[Any]:
        return [Guest(path) for path in sorted(self.libvirt.iterdir()) if path.suffix != ".new"]

    def has(self, server: str) -> bool:
        return (self.libvirt / server).exists()

    def start(self, server: str, xml: str) -> None:
        guest = self.libvirt / server
        new = guest.with_suffix(".new")
        new.write_text(xml)
        os.rename(new, guest)  # noqa: PTH104  a step

    def end(self, server: str) -> None:
        os.unlink(self.libvirt / server)  # noqa: PTH108  a step

    def domains(self) -> NodeGuestDomains:
        return guest_domains.read_guest_domains(self.guests, lambda error: False)

    def keeper(self) -> SegmentKeeper:
        folder = SegmentFolder(self.shm, bind=lambda file, size, node: None)
        return SegmentKeeper(self.domains, lambda: [0], folder, (POOL,))

    def mark(self, name: SegmentFileName, part: int) -> None:
        """The guest writes into its part whose memory it takes this for."""
        with (self.shm / str(name)).open("r+b") as file:
            file.seek(4 * MIB + part * name.shape.part_bytes)
            file.write(name.owner.encode())

    def marks(self, name: SegmentFileName) -> set[str]:
        """What guests have written into the parts."""
        found = set()
        with (self.shm / str(name)).open("rb") as file:
            for part in range(name.shape.parts):
                file.seek(4 * MIB + part * name.shape.part_bytes)
                found.add(file.read(36).rstrip(b"\0").decode())
        return found - {""}


def instance_of(server: str) -> objects.Instance:
    cell = objects.InstanceNUMACell(
        id=0,
        cpuset=set(),
        pcpuset={0},
        memory=256,
        cpu_policy=fields.CPUAllocationPolicy.DEDICATED,
    )
    flavor = objects.Flavor(
        vcpus=1, memory_mb=256, extra_specs={"hpc:shared_memory": "2"}, name="f", flavorid="f"
    )
    return objects.Instance(
        uuid=server,
        project_id="p",
        flavor=flavor,
        image_ref="",
        numa_topology=objects.InstanceNUMATopology(cells=[cell]),
        system_metadata={},
    )


def check_host(host: Host) -> int:
    """After the service has started anew; how many guests share memory."""
    used: dict[str, dict[int, str]] = {}
    for guest in host.domains().domains:
        for use in guest.live.segments:
            parts = used.setdefault(Path(use.path).name, {})
            assert use.part is not None
            assert use.part not in parts, "two guests have one part"
            parts[use.part] = guest.uuid
    files = {path.name for path in host.shm.iterdir()} if host.shm.exists() else set()
    assert files == set(used), "a file without a guest, or a guest without a file"
    for text, parts in used.items():
        name = segment_record.parse_file_name(text)
        assert name is not None
        assert {group_of(server) for server in parts.values()} == {name.owner}
        assert host.marks(name) <= {name.owner}, "a marker of another group"
        state = (host.shm / text).stat()
        assert state.st_size == state.st_blocks * 512 == name.shape.file_bytes
    keeper = host.keeper()
    state = keeper.read_state(host.domains(), None)  # type: ignore[arg-type]  for the log alone
    assert state is not None
    total = sum((host.shm / text).stat().st_size for text in files)
    assert state.charge_of(0) == total <= int(POOL) * MIB
    return sum(map(len, used.values()))


def run(host: Host, seed: int, last: int) -> None:
    """Start and end servers until the last step comes."""
    objects.register_all()
    chance = random.Random(seed)
    host.last = last
    sharing_group.find_sharing_group = lambda instance: SharingGroup(group_of(instance.uuid))
    segments = NodeSegments(host.keeper())

    def counted(plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **keywords: Any) -> Any:
            host.step()
            return plain(*args, **keywords)

        return step

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))
    segments.keeper.put_in_order()  # as when the service starts
    while not host.is_over():
        server = chance.choice(SERVERS)
        try:
            if host.has(server):
                host.end(server)
                segments.keeper.put_in_order()
            else:
                _start(host, segments, server)
        except (ClaimRefused, *host.errors):
            continue
    segments.keeper.put_in_order()


def _start(host: Host, segments: NodeSegments, server: str) -> None:
    instance = instance_of(server)
    with segments.starting(instance, anew=True):
        domain = GuestDomainXml(host.bare)
        told = segments.add_to(domain, instance)
        host.start(server, domain.text())
        if told is not None and "part" in told:
            outcome = segments.keeper.outcome_of(server)
            assert outcome is not None
            choice = outcome.choice
            assert choice is not None
            assert host.marks(choice.name) <= {group_of(server)}, "somebody else's memory"
            host.mark(choice.name, choice.part)


def run_until_killed(host: Host, seed: int, last: int) -> int:
    """Do it in a process of its own; how that has ended, as ``waitpid`` says."""
    child = os.fork()
    if child == 0:
        try:
            run(host, seed, last)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status
