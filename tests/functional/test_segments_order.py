# SPDX-License-Identifier: Apache-2.0
"""Members that start and end at the same moment, in each order of their steps.

The files are real, on a tmpfs. Libvirt is a table of the guests that run, which checks at each of
its own steps, and at each file that goes, what no order may break.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from nova import objects
from nova.virt import hardware

from nova_hpc.from_nova import sharing_group
from nova_hpc.from_nova.sharing_group import SharingGroup
from nova_hpc.placement.segment_shape import MIB
from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_choice import SegmentLack
from nova_hpc.tenancy.segments.segment_file import SegmentFolder
from nova_hpc.tenancy.segments.segment_record import SegmentFileName
from tests.functional import segments_process
from tests.functional.segments_process import GROUPS, SERVERS, Host
from tests.functional.thread_turns import BLOCKED, ENDED, ThreadTurns, TurnLock
from virt_driver_patches.domain.guest_domain import GuestDomainXml
from virt_driver_patches.driver import segment_keeper, segments
from virt_driver_patches.driver.segment_keeper import SegmentKeeper, SegmentOutcome
from virt_driver_patches.driver.segments import NodeSegments
from virt_driver_patches.errors import ClaimRefused

ORDERS: Final = int(os.environ.get("NOVA_HPC_SOAK", "1000"))
MEMBERS: Final = SERVERS[:4]
#: One part less than members.
PARTS: Final = 3
#: Room for two segments of so many parts of 2 MiB each.
POOL_MIB: Final = 2 * (4 + 2 * PARTS)
TRACED: Final = (segments.__file__, segment_keeper.__file__)


class _Guest:
    """A guest that runs, as libvirt shows it."""

    def __init__(self, server: str, xml: str) -> None:
        self.server, self.xml = server, xml

    def name(self) -> str:
        return self.server

    def UUIDString(self) -> str:
        return self.server

    def info(self) -> list[int]:
        return [1]

    def hasManagedSaveImage(self, flags: int) -> int:
        return 0

    def XMLDesc(self, flags: int) -> str:
        return self.xml


@attrs.frozen
class _CheckedFolder(SegmentFolder):
    """The directory, which looks at what it removes."""

    world: Any = None

    def remove_file(self, name: SegmentFileName) -> None:
        self.world.check_removed(name)
        super().remove_file(name)


class World:
    """A host with its libvirt, and what must hold there at each moment."""

    def __init__(self, path: Path, pool: int = POOL_MIB) -> None:
        self.turns = ThreadTurns(TRACED)
        self.guests: dict[str, _Guest] = {}
        #: Nova's records, which keep what a server's hardware has.
        self.instances = {server: segments_process.instance_of(server) for server in MEMBERS}
        #: Server -> inode of the file that it was started with.
        self.inodes: dict[str, int] = {}
        self.path = path
        folder = _CheckedFolder(path, bind=lambda file, size, node: None, world=self)
        keeper = SegmentKeeper(self.domains, lambda: [0], folder, (str(pool),))
        object.__setattr__(keeper, "lock", TurnLock(self.turns))
        self.pool = pool
        self.segments = NodeSegments(keeper)
        #: How many servers had a part, all in all.
        self.shared = 0

    # -- libvirt --------------------------------------------------------------------

    def domains(self) -> NodeGuestDomains:
        self.turns.point("ask")
        listing = guest_domains.read_guest_domains(
            lambda: list(self.guests.values()), lambda error: False
        )
        self.turns.point("listed")
        return listing

    def begin(self, server: str, xml: str) -> None:
        self.guests[server] = _Guest(server, xml)
        for name, _ in self.uses_of(server):
            self.inodes[server] = (self.path / str(name)).stat().st_ino
            self.shared += 1
        self.check()

    def end(self, server: str) -> None:
        del self.guests[server]
        self.inodes.pop(server, None)

    def uses_of(self, server: str) -> list[tuple[SegmentFileName, int]]:
        root = GuestDomainXml(self.guests[server].xml).root
        found = []
        for use in segment_record.read_segment_uses(root):
            name = segment_record.parse_file_name(Path(use.path).name)
            assert name is not None
            assert use.part is not None
            found.append((name, use.part))
        return found

    # -- what must hold -------------------------------------------------------------

    def check(self) -> None:
        """No part twice; each running guest has the file that it was started with."""
        owners: dict[tuple[SegmentFileName, int], str] = {}
        for server in self.guests:
            for name, part in self.uses_of(server):
                other = owners.setdefault((name, part), server)
                assert other == server, f"{other} and {server} have one part"
                file = self.path / str(name)
                assert file.exists(), f"the file of {server}, which runs, is gone"
                assert file.stat().st_ino == self.inodes[server], "the file is another one"

    def check_removed(self, name: SegmentFileName) -> None:
        """Clearing up raises nothing, so the error is for the end of the test."""
        for server in self.guests:
            if name in [used for used, _ in self.uses_of(server)]:
                error = AssertionError(f"the file of {server}, which runs, is removed")
                self.turns.errors.append(error)

    def check_account(self) -> None:
        """When no start is under way: files are those of guests, and so is the pool's account."""
        self.check()
        used = {str(name) for server in self.guests for name, _ in self.uses_of(server)}
        files = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        assert files == used
        total = sum((self.path / text).stat().st_blocks * 512 for text in files)
        state = self.segments.keeper.read_state(self.domains(), None)  # type: ignore[arg-type]
        assert state is not None
        assert not state.unclear
        assert state.charge_of(0) == total <= self.pool * MIB

    # -- what threads do ------------------------------------------------------------

    def start(self, server: str, fails: bool = False) -> None:
        """Start a server; it gets no part if there is none left."""
        instance = self.instances[server]
        with contextlib.suppress(ClaimRefused), self.segments.starting(instance, anew=True):
            domain = GuestDomainXml(Host.bare)
            self.segments.add_to(domain, instance)
            self.turns.point("boot")
            if fails:
                raise ClaimRefused("libvirt does not start it")
            self.begin(server, domain.text())
            self.turns.point("booted")

    def stop(self, server: str) -> None:
        self.end(server)
        self.turns.point("stopped")
        self.segments.keeper.put_in_order()

    def restart(self, server: str) -> None:
        """A soft reboot: the same domain, once more."""
        xml = self.guests[server].xml
        with self.segments.staying(self.instances[server]):
            self.end(server)
            self.turns.point("between")
            self.begin(server, xml)


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    objects.register_all()
    owner = SharingGroup(GROUPS[0])
    monkeypatch.setattr(sharing_group, "find_sharing_group", lambda instance: owner)
    monkeypatch.setattr(hardware, "get_cpu_dedicated_set", lambda: set(range(PARTS)))


@contextlib.contextmanager
def _make_world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield World(Path(path) / "shm")


@pytest.fixture
def world() -> Iterator[World]:
    with _make_world() as made:
        yield made


def test_a_start_that_ends_while_the_next_one_looks(world: World) -> None:
    """The next one has libvirt's answer of before: it must not miss the first one's part."""
    first, second = MEMBERS[:2]
    turns = world.turns
    turns.add("first", lambda: world.start(first))
    turns.add("second", lambda: world.start(second))
    turns.run_to("first", "boot")
    turns.run_to("second", "listed")
    # The first one's domain runs, and its start is over, as far as it can be.
    assert turns.run_on("first") in (BLOCKED, ENDED)
    while turns.places["second"] != ENDED:
        turns.run_on("second")
        if turns.places["first"] != ENDED:
            turns.run_on("first")
    turns.raise_first()
    world.segments.keeper.put_in_order()
    world.check_account()
    assert sorted(part for server in (first, second) for _, part in world.uses_of(server)) == [0, 1]


def test_a_start_that_ends_while_files_are_put_in_order(world: World) -> None:
    """The round has libvirt's answer of before: it must not take the file for nobody's."""
    (first, *_) = MEMBERS
    turns = world.turns
    turns.add("first", lambda: world.start(first))
    turns.add("round", world.segments.keeper.put_in_order)
    turns.run_to("first", "boot")
    turns.run_to("round", "listed")
    assert turns.run_on("first") in (BLOCKED, ENDED)
    while turns.places["round"] != ENDED:
        turns.run_on("round")
    if turns.places["first"] != ENDED:
        turns.run_on("first")
    turns.raise_first()
    world.check_account()
    assert len(world.uses_of(first)) == 1


def test_a_domain_that_returns_while_the_next_one_looks(world: World) -> None:
    """Its part is free until it is held; between reading and holding, nobody may take it."""
    first, second = MEMBERS[:2]
    world.start(first)
    xml = world.guests[first].xml
    instance = world.instances[first]
    world.start(MEMBERS[2])  # the file outlives the first one's end
    world.stop(first)
    turns = world.turns

    def come_back() -> None:
        with (
            contextlib.suppress(ClaimRefused),
            world.segments.returning(instance, lambda: xml),
        ):
            turns.point("boot")
            world.begin(first, xml)

    turns.add("first", come_back)
    turns.add("second", lambda: world.start(second))
    turns.run_to("first", "unlock")  # it has found its part free
    turns.run_on("second")
    turns.run_on("first")
    turns.raise_first()
    world.segments.keeper.put_in_order()
    world.check_account()


def test_one_server_in_two_operations(world: World) -> None:
    """The end of one of them gives back nothing that the other needs."""
    (first, *_) = MEMBERS
    world.start(first)
    instance = world.instances[first]
    ((name, _),) = world.uses_of(first)
    xml = world.guests[first].xml
    keeper = world.segments.keeper
    with contextlib.ExitStack() as outer:
        outer.enter_context(world.segments.staying(instance))
        with world.segments.starting(instance, anew=False):
            inner = contextlib.ExitStack()
            inner.enter_context(world.segments.starting(instance, anew=False))
            outer.close()
            world.end(first)
            keeper.put_in_order()
            assert (world.path / str(name)).exists()
        keeper.put_in_order()
        assert (world.path / str(name)).exists()
        world.begin(first, xml)
        inner.close()
    world.check_account()


def test_a_part_of_two_domains(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Started behind Nova's back: it is reported, and the segment is given to no other server."""
    first, second, third = MEMBERS[:3]
    world.start(first)
    ((name, part),) = world.uses_of(first)
    world.guests[second] = _Guest(second, world.guests[first].xml)
    with caplog.at_level(logging.ERROR):
        with world.segments.starting(world.instances[third], anew=True):
            assert world.segments.keeper.outcome_of(third) == SegmentOutcome(
                lack=SegmentLack.UNKNOWN
            )
        world.segments.keeper.put_in_order()
    texts = [record.getMessage() for record in caplog.records]
    (text,) = [text for text in texts if "have the same part" in text]
    assert f"servers {first} and {second} have the same part {part} of {name}" in text
    assert "stop one of them (openstack server stop), and start it again" in text
    # The restart of one of the two cannot repair it: its part stays the other's, too.
    with pytest.raises(ClaimRefused, match="cannot be made again on the host"):
        world.segments.check_restart(world.instances[first])
    assert (world.path / str(name)).exists()
    world.stop(second)
    world.start(third)
    assert [used for used, _ in world.uses_of(third)] == [name]
    world.check_account()


def test_random_orders() -> None:
    """A few for the standard set."""
    for seed in range(60):
        with _make_world() as world:
            _run_in_random_order(world, seed)


@pytest.mark.slow
def test_many_random_orders() -> None:
    """``NOVA_HPC_SOAK`` is their number."""
    shared = 0
    for seed in range(ORDERS):
        with _make_world() as world:
            _run_in_random_order(world, seed)
            shared += world.shared
    assert shared > ORDERS, "too little was shared for this to say anything"


def _run_in_random_order(world: World, seed: int) -> None:
    """Four members start, end, fail and restart while files are put in order."""
    chance = random.Random(seed)
    plans = {
        server: [
            chance.choice(("start", "start", "fail")),
            *chance.choices(("stop", "restart"), k=2),
        ]
        for server in MEMBERS
    }

    def live(server: str) -> None:
        for word in plans[server]:
            if word in ("start", "fail"):
                world.start(server, fails=word == "fail")
            elif server in world.guests:
                (world.stop if word == "stop" else world.restart)(server)

    for server in MEMBERS:
        world.turns.add(server, lambda server=server: live(server))
    for number in range(2):
        world.turns.add(f"round {number}", world.segments.keeper.put_in_order)
    world.turns.run_all(chance)
    world.segments.keeper.put_in_order()
    world.check_account()
