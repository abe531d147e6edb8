# SPDX-License-Identifier: Apache-2.0
"""The backend for opensm, over a real opensm on a simulated fabric.

What opensm really does is read by the oracle of :mod:`tests.fabric.matrix`, which shares no code
with the backend.
"""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP, register_agent_options
from nova_hpc.fabric.partitions import port_reader
from nova_hpc.fabric.partitions.backends.base import (
    MemberState,
    StaleReadingError,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.choice import make_subnet_manager, read_capabilities
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember, PartitionPolicy
from nova_hpc.fabric.partitions.port_reader import PortReaderError
from nova_hpc_lab.fabric import simulator, subnet_manager
from nova_hpc_lab.fabric.net import FabricNet
from tests.fabric.bare_fabric import BareFabric, wait_until
from tests.fabric.matrix import FabricView, Sampler, guid_text

A, B = 0x101, 0x102
RIGHT, DIFFERENT, ABSENT = MemberState.AS_DESIRED, MemberState.DIFFERENT, MemberState.NOT_ON_FABRIC


class OtherNet(FabricNet):
    """A fabric of another shape."""

    def text(self):
        """The fabric in ibsim's own words."""
        return self.shape


class OneSwitch(OtherNet):
    """Adapters with two ports each at one switch; ibsim counts their GUIDs from the node's."""

    shape = """\
switchguid=0x2c90000020000
Switch 8 "leaf0"
[1] "manager"[1]
[2] "manager"[2]
[3] "two"[2]
[4] "two"[1]

caguid=0x2c90000100000
Hca 2 "manager"
[1] "leaf0"[1]
[2] "leaf0"[2]

caguid=0x2c90000200000
Hca 2 "two"
[1] "leaf0"[4]
[2] "leaf0"[3]
"""


class NoSwitch(OtherNet):
    """Two adapters with one cable."""

    shape = """\
caguid=0x2c90000100000
Hca 1 "manager"
[1] "one"[1]

caguid=0x2c90000200000
Hca 1 "one"
[1] "manager"[1]
"""


class Site:
    """A fabric, and agents' backends at its subnet manager."""

    def __init__(self, folder, net=None):
        self.folder = Path(folder)
        self.fabric = BareFabric.make(folder)
        if net is not None:
            self.fabric.net = net
        self.files = self.fabric.files
        self.guids = [port.guid for port in self.fabric.net.ports]
        self.tickets = 0
        self.opened = []

    def backend(self, **options):
        """A backend of its own, as an agent makes it."""
        conf = cfg.ConfigOpts()
        register_agent_options(conf)
        conf([], default_config_files=[])
        values = {
            "fabric": "main",
            "opensm_config": str(self.files.config),
            "opensm_pid_file": str(self.files.pid_file),
            "opensm_log": str(self.files.log),
            "partitions_file": str(self.files.partitions),
            "own_partitions_file": str(self.files.own_partitions),
            "state_path": str(self.folder / "state"),
            "simulated_host": "manager",
            "poll_interval": 0.5,
        } | options
        for name, value in values.items():
            conf.set_override(name, value, group=AGENT_GROUP)
        made = make_subnet_manager("opensm", conf.hpc_fabric_agent)
        self.opened.append(made)
        return made

    def desire(self, *members, **more):
        """A reading of the desired state; each has the next ticket."""
        self.tickets += 1
        return DesiredPartitions(self.tickets, members, **more)

    def hang_up(self):
        """What an administrator does by hand."""
        os.kill(int(self.files.pid_file.read_text()), signal.SIGHUP)

    def rest(self):
        """Everything back to nothing."""
        while self.opened:
            self.opened.pop().close()
        if self.fabric.pid("opensm") is None:
            self.fabric.start("opensm")
        self.files.own_partitions.write_text("# none\n")
        manager = self.backend()
        settle(manager, self.desire())
        self.opened.pop().close()


def member(row, guid, pkey=A, membership=Membership.FULL, wanted=True):
    """A row of Neutron's."""
    return PartitionMember(row, f"port{row}", guid, pkey, membership, wanted)


def states(reading):
    """Row -> state."""
    return {row: entry.state for row, entry in reading.members.items()}


def settle(manager, desired, seconds=10.0):
    """Enforce, look until no row is different; the last look, and all faults on the way."""
    manager.enforce(desired)
    return look(manager, desired, seconds)


def has_told(manager, desired):
    """Whether opensm is there and was told; one that has only begun cannot be."""
    try:
        manager.enforce(desired)
    except SubnetManagerError:
        return False
    return True


def look(manager, desired, seconds=10.0):
    """Look until no row is different and no fault is left."""
    end = time.monotonic() + seconds
    while True:
        reading = manager.read_back(desired)
        if DIFFERENT not in states(reading).values() and not reading.faults:
            return reading
        assert time.monotonic() < end, reading
        time.sleep(0.02)


@contextlib.contextmanager
def running_site(net=None):
    with (
        tempfile.TemporaryDirectory(prefix="nhf") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        made = Site(folder, net)
        try:
            made.fabric.up()
            patch.setenv("IBSIM_SOCKNAME", simulator.simulator_name(made.fabric.paths))
            yield made
        finally:
            for manager in made.opened:
                manager.close()
            made.fabric.down()


@pytest.fixture(scope="module")
def fabric_site():
    with running_site() as made:
        yield made


@pytest.fixture
def site(fabric_site):
    yield fabric_site
    fabric_site.rest()


@pytest.fixture
def view(site):
    with contextlib.closing(FabricView(site.fabric)) as found:
        yield found


def keys(view, *guids):
    """Entries of each port beside the default partition; None: the switch port has others."""
    read = view.tables([guid_text(guid) for guid in guids])
    sides = [read[guid_text(guid)] for guid in guids]
    return [
        set(port) - {0x7FFF} if port == facing and 0x7FFF in port else None
        for port, facing in sides
    ]


def wait_for_keys(view, guids, expected):
    """The same of ports of which no row says when they are right."""
    wait_until(lambda: keys(view, *guids) == expected, f"{expected} at {guids}")


def test_it_says_what_it_can_keep_apart():
    capabilities = read_capabilities("opensm")
    assert (capabilities.separates_functions, capabilities.limited_members) == (False, True)
    with pytest.raises(SubnetManagerError, match="'none' cannot be loaded"):
        read_capabilities("none")


def test_members_of_a_network_reach_each_other_and_nobody_else(site, view):
    manager = site.backend()
    one, two, three, four, limited, other, stranger, last = site.guids[:8]
    desired = site.desire(
        member(1, one),
        member(2, two),
        member(3, three, B),
        member(4, four, B),
        member(5, limited, A, Membership.LIMITED),
        member(6, other, A, Membership.LIMITED),
        policies={A: PartitionPolicy(rate=3)},
    )
    reading = settle(manager, desired)
    assert set(states(reading).values()) == {RIGHT}
    assert keys(view, one, three, limited, stranger) == [{0x8101}, {0x8102}, {0x0101}, set()]

    def path(source, target):
        return view.path(guid_text(source), guid_text(target))

    for source, target, pkey in [(one, two, 0x8101), (three, four, 0x8102), (limited, one, 0x8101)]:
        assert view.path_in_time(guid_text(source), guid_text(target)) & 0x7FFF == pkey & 0x7FFF
    for each in (one, three, limited, stranger):
        assert view.path_in_time(guid_text(each), view.manager)
    for source, target in [(one, three), (three, one), (limited, other), (one, stranger)]:
        assert path(source, target) is None
    assert path(stranger, last) is None
    # Nothing has changed: nothing is written, nobody is told.
    inode, signals = site.files.partitions.stat().st_ino, manager.signals
    assert manager.enforce(site.desire(*desired.members, policies=desired.policies)) is False
    assert (site.files.partitions.stat().st_ino, manager.signals) == (inode, signals)


def test_a_key_is_gone_before_the_row_is(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one), member(2, two)))
    leaving = site.desire(member(1, one), member(2, two, wanted=False))
    assert manager.enforce(leaving) is True
    assert states(look(manager, leaving)) == {1: RIGHT, 2: RIGHT}
    assert keys(view, one, two) == [{0x8101}, set()]


def test_no_own_change_opens_the_fabric_for_a_moment(site):
    manager = site.backend()
    guids = site.guids[:6]
    allowed = {guid_text(guid): {A if at % 2 else B} for at, guid in enumerate(guids)}
    with Sampler(site.fabric, allowed) as sampler:
        for turn in range(12):
            rows = [
                member(at + 10 * turn, guid, A if at % 2 else B)
                for at, guid in enumerate(guids)
                if (turn >> at % 4) & 1
            ]
            settle(manager, site.desire(*rows))
    assert sampler.wrong == []
    assert sampler.rounds > 20


def test_hundreds_of_members_are_one_guid_a_line(site, view):
    manager = site.backend()
    absent = range(0x0002C900_00900000, 0x0002C900_00900000 + 1200)
    rows = [member(at, guid) for at, guid in enumerate((*absent, *site.guids[:3]))]
    reading = settle(manager, site.desire(*rows))
    assert list(states(reading).values()) == [ABSENT] * 1200 + [RIGHT] * 3
    assert keys(view, *site.guids[:4]) == [{0x8101}] * 3 + [set()]
    lines = site.files.partitions.read_text().splitlines()
    assert max(map(len, lines)) < 200


def test_a_long_line_of_the_administrators_is_refused_and_would_have_opened_the_fabric(site, view):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    long = "long=0x7001 : " + ", ".join(f"{guid:#018x}" for guid in range(1, 500)) + " ;\n"
    site.files.own_partitions.write_text(long)
    text = site.files.partitions.read_text()
    assert manager.enforce(site.desire(*desired.members)) is False
    assert site.files.partitions.read_text() == text
    (fault,) = manager.read_back(desired).faults
    assert f"{site.files.own_partitions}: line 1 has over 4000 bytes" in fault
    # An agent that has just started knows what is in force.
    again = site.backend()
    again.enforce(site.desire(*desired.members))
    assert fault in again.read_back(desired).faults
    assert keys(view, site.guids[0]) == [{0x8101}]
    # The trap is real: by hand it opens the fabric.
    site.files.partitions.write_text(long)
    site.hang_up()
    stranger = guid_text(site.guids[9])
    wait_until(lambda: 0xFFFF in view.tables([stranger])[stranger][0], "the fabric is open")
    site.files.own_partitions.write_text("# none\n")
    assert manager.enforce(site.desire(*desired.members)) is True
    look(manager, desired)
    assert keys(view, site.guids[0], site.guids[9]) == [{0x8101}, set()]


def test_a_bad_file_at_the_first_start_writes_nothing(site):
    site.files.own_partitions.write_text("Default=0x7fff : ALL=full ;\n")
    site.files.partitions.write_text("# by hand\nDefault=0x7fff, ipoib : ALL=limited, SELF=full ;")
    (site.folder / "state" / "partitions.last-good.conf").unlink(missing_ok=True)
    text = site.files.partitions.read_text()
    with pytest.raises(SubnetManagerError, match="line 1: ALL in the default partition"):
        site.backend().enforce(site.desire(member(1, site.guids[0])))
    assert site.files.partitions.read_text() == text


def test_own_partitions_stay_and_their_keys_are_nobodys(site, view):
    manager = site.backend()
    storage = site.guids[10]
    own = f"storage=0x0200, ipoib : ALL=limited, {guid_text(storage)}=full, SELF=full ;\n"
    site.files.own_partitions.write_text(own)
    reading = settle(manager, site.desire(member(1, site.guids[0])))
    assert states(reading) == {1: RIGHT}
    assert manager.foreign_pkeys() == {0x200}
    wait_for_keys(view, [site.guids[0], storage], [{0x8101, 0x0200}, {0x8200}])
    assert own in site.files.partitions.read_text()
    # A network with such a P_Key does not get it, and stops nobody.
    desired = site.desire(member(1, site.guids[0]), member(2, site.guids[1], 0x200))
    manager.enforce(desired)
    reading = manager.read_back(desired)
    assert states(reading) == {1: RIGHT, 2: DIFFERENT}
    assert "one of the administrator's own partitions" in reading.members[2].reason
    # It is not lost with its file, nor when that is emptied.
    for lose in (site.files.own_partitions.unlink, site.files.own_partitions.touch):
        lose()
        manager.enforce(site.desire(member(1, site.guids[0])))
        reading = manager.read_back(site.desire(member(1, site.guids[0])))
        assert "partitions of it are in force" in reading.faults[0]
        assert own in site.files.partitions.read_text()
    site.files.own_partitions.write_text("# none any more\n")
    settle(manager, site.desire(member(1, site.guids[0])))
    wait_for_keys(view, [site.guids[0], storage], [{0x8101}, set()])


def test_an_own_partition_with_a_networks_key_is_refused_by_name(site, view):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    site.files.own_partitions.write_text(f"mine={A:#x} : {guid_text(site.guids[5])}=full ;\n")
    manager.enforce(site.desire(*desired.members))
    assert "P_Key 0x0101 is one that a network has" in manager.read_back(desired).faults[0]
    assert keys(view, site.guids[0], site.guids[5]) == [{0x8101}, set()]


def test_own_partitions_are_tried_on_a_fabric_of_their_own(site, view):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    # For the reader it is a group; for opensm it is an error.
    site.files.own_partitions.write_text("mine=0x7001, ipoib : mgid=12::1\n SELF=full ;\n")
    manager.enforce(site.desire(*desired.members))
    (fault,) = manager.read_back(desired).faults
    assert "opensm does not take it on a simulated fabric" in fault
    assert "gid is not multicast" in fault
    assert "0x7001" not in site.files.partitions.read_text()


def test_a_port_has_31_networks_and_loses_all_but_one_without_a_stale_key(site, view):
    manager = site.backend()
    guid = site.guids[0]
    rows = [member(row, guid, 0x200 + row) for row in range(32)]
    desired = site.desire(*rows)
    manager.enforce(desired)
    wait_until(
        lambda: set(states(manager.read_back(desired)).values()) != {DIFFERENT}, "31 are right"
    )
    reading = manager.read_back(desired)
    assert [row for row, state in states(reading).items() if state is DIFFERENT] == [31]
    assert "is in 31 partitions already" in reading.members[31].reason
    assert keys(view, guid) == [{0x8200 + row for row in range(31)}]
    shrunk = site.desire(rows[7], *(member(row, guid, 0x200 + row, wanted=False) for row in (1, 2)))
    assert set(states(settle(manager, shrunk)).values()) == {RIGHT}
    assert keys(view, guid) == [{0x8207}]


@pytest.mark.parametrize("text", ["", None, "# nothing\n"])
def test_a_file_that_is_emptied_opens_the_fabric_and_is_healed(site, view, text):
    manager = site.backend()
    guid, stranger = site.guids[0], guid_text(site.guids[9])
    desired = site.desire(member(1, guid))
    settle(manager, desired)
    if text is None:
        site.files.partitions.unlink()
    else:
        site.files.partitions.write_text(text)
    site.hang_up()
    wait_until(lambda: 0xFFFF in view.tables([stranger])[stranger][0], "the fabric is open")
    reading = manager.read_back(desired)
    assert states(reading) == {1: DIFFERENT}
    time.sleep(0.6)
    assert any("the fabric is open" in fault for fault in manager.read_back(desired).faults)
    begun = time.monotonic()
    assert manager.enforce(site.desire(*desired.members)) is True
    assert any("it was written again" in fault for fault in manager.read_back(desired).faults)
    look(manager, desired)
    assert time.monotonic() - begun < 3.0
    assert keys(view, guid, site.guids[9]) == [{0x8101}, set()]


def test_a_stranger_written_in_by_hand_is_seen_and_goes(site, view):
    manager = site.backend()
    guid, stranger = site.guids[0], site.guids[9]
    desired = site.desire(member(1, guid))
    settle(manager, desired)
    line = f" {guid_text(guid)}=full;"
    text = site.files.partitions.read_text()
    assert line in text
    site.files.partitions.write_text(text.replace(line, f" {guid_text(stranger)}=full,\n{line}"))
    site.hang_up()
    wait_until(lambda: keys(view, stranger) == [{0x8101}], "the stranger is in")
    time.sleep(0.6)
    reading = manager.read_back(desired)
    assert f"port {guid_text(stranger)} has the P_Key 0x0101, too" in reading.members[1].reason
    assert manager.enforce(site.desire(*desired.members)) is True
    look(manager, desired)
    assert keys(view, guid, stranger) == [{0x8101}, set()]


def test_opensm_that_starts_with_an_old_file_is_put_right(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one)))
    old = site.files.partitions.read_text()
    settle(manager, site.desire(member(2, two)))
    site.fabric.stop("opensm")
    site.files.partitions.write_text(old)
    site.fabric.start("opensm")
    wait_until(lambda: keys(view, one, two) == [{0x8101}, set()], "the old file is in force")
    desired = site.desire(member(1, one, wanted=False), member(2, two))
    assert states(manager.read_back(desired)) == {1: DIFFERENT, 2: DIFFERENT}
    assert manager.enforce(desired) is True
    look(manager, desired)
    assert keys(view, one, two) == [set(), {0x8101}]


def test_an_agent_that_wakes_late_puts_nothing_back(site, view):
    old, new = site.backend(), site.backend()
    one, two = site.guids[:2]
    settle(old, site.desire(member(1, one)))
    late = site.desire(member(1, one), member(2, two))
    settle(new, site.desire(member(1, one)))
    # The reading in between has changed nothing, and is later all the same.
    text = site.files.partitions.read_text()
    with pytest.raises(StaleReadingError, match="another agent is at work"):
        old.enforce(late)
    with pytest.raises(StaleReadingError, match="another agent is at work"):
        old.restore()
    assert site.files.partitions.read_text() == text
    # It reads again, and goes on.
    settle(old, site.desire(member(1, one), member(2, two)))
    # What the other one wrote was not written by hand.
    desired = site.desire(member(1, one), member(2, two, wanted=False))
    new.enforce(desired)
    assert look(new, desired).faults == ()
    assert keys(view, one, two) == [{0x8101}, set()]


def test_opensm_that_is_dead_gets_the_file_when_it_starts(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one)))
    site.fabric.kill("opensm")
    desired = site.desire(member(1, one, wanted=False), member(2, two))
    for _ in range(2):
        with pytest.raises(SubnetManagerError, match="opensm does not run"):
            manager.enforce(desired)
        assert states(manager.read_back(desired)) == {1: DIFFERENT, 2: DIFFERENT}
    site.fabric.start("opensm")
    assert manager.enforce(desired) is True
    look(manager, desired)
    assert keys(view, one, two) == [set(), {0x8101}]
    assert manager.enforce(site.desire(*desired.members)) is False


def test_opensm_that_does_nothing_makes_no_member_right(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    absent = 0x0002C900_00900000
    settle(manager, site.desire(member(1, one)))
    desired = site.desire(member(1, one, wanted=False), member(2, two), member(3, absent))
    with site.fabric.frozen("opensm"):
        assert manager.enforce(desired) is True
        time.sleep(0.5)
        reading = manager.read_back(desired)
        assert {row: states(reading)[row] for row in (1, 2)} == {1: DIFFERENT, 2: DIFFERENT}
        assert "has to be 0x7fff 0x8101" in reading.members[2].reason
        assert keys(view, one, two) == [{0x8101}, set()]
    assert states(look(manager, desired)) == {1: RIGHT, 2: RIGHT, 3: ABSENT}


def test_a_port_that_comes_late_has_its_key_from_the_file_in_force(site, view):
    manager = site.backend()
    port = site.fabric.net.ports[20]
    site.fabric.tell_simulator(f'Unlink "{port.name}"')
    try:
        desired = site.desire(member(1, port.guid))
        manager.enforce(desired)
        wait_until(lambda: states(manager.read_back(desired)) == {1: ABSENT}, "it is absent", 40)
        # Not without the file.
        text = site.files.partitions.read_text()
        site.files.partitions.write_text(text.replace("=full;", "=limited;"))
        assert "is not as it was written" in manager.read_back(desired).members[1].reason
        site.files.partitions.write_text(text)
    finally:
        site.fabric.tell_simulator(f'ReLink "{port.name}"')
    wait_until(lambda: states(manager.read_back(desired)) == {1: RIGHT}, "it is right", 20)
    view.look_again()
    assert keys(view, port.guid) == [{0x8101}]


def test_a_cable_that_is_moved_is_not_judged_by_where_it_was(site, view):
    manager = site.backend()
    port = site.fabric.net.ports[30]
    desired = site.desire(member(1, port.guid))
    settle(manager, desired)
    # The last place of the last leaf is free; the table of the old one stays as it was.
    last = f"leaf{site.fabric.net.leaf_count() - 1}"
    site.fabric.tell_simulator(f'Unlink "{port.name}"', f'Link "{port.name}"[1] "{last}"[38]')
    try:
        time.sleep(1.1)
        assert states(manager.read_back(desired)) == {1: DIFFERENT}
        wait_until(lambda: states(manager.read_back(desired)) == {1: RIGHT}, "it is right", 40)
        view.look_again()
        assert keys(view, port.guid) == [{0x8101}]
        assert view.topology[guid_text(port.guid)][2] == 38
    finally:
        leaf, place = divmod(1 + 30, site.fabric.net.on_a_leaf)
        site.fabric.tell_simulator(
            f'Unlink "{port.name}"', f'Link "{port.name}"[1] "leaf{leaf}"[{place + 3}]'
        )


def test_a_switch_that_dies_in_a_change_leaves_no_key_behind(site, view):
    manager = site.backend()
    near, other, far = site.guids[0], site.guids[1], site.guids[50]
    assert view.topology[guid_text(near)][1] != view.topology[guid_text(far)][1]
    settle(manager, site.desire(member(1, near), member(2, far)))
    site.fabric.tell_simulator('Unlink "leaf1"')
    try:
        desired = site.desire(member(1, near), member(2, far, wanted=False), member(3, other, B))
        manager.enforce(desired)
        # What hangs on the dead switch is never right: it is gone when the fabric says so.
        seen = set()

        def has_settled():
            read = states(manager.read_back(desired))
            seen.add(read[2])
            return read == {1: RIGHT, 2: ABSENT, 3: RIGHT}

        wait_until(has_settled, "the others are right", 40)
        assert seen <= {DIFFERENT, ABSENT}
    finally:
        site.fabric.tell_simulator('ReLink "leaf1"')
    wait_until(lambda: states(manager.read_back(desired))[2] is RIGHT, "it is without the key", 40)
    view.look_again()
    assert keys(view, near, other, far) == [{0x8101}, {0x8102}, set()]


def test_the_manager_that_stands_by_has_the_same_in_force():
    with running_site() as site, contextlib.closing(FabricView(site.fabric)) as view:
        paths = site.fabric.paths
        files = subnet_manager.prepare_manager(paths, "opensm2")
        with files.config.open("a") as stream:
            stream.write("sminfo_polling_timeout 500\npolling_retry_number 2\n")
        service = subnet_manager.opensm_service(paths, "opensm2", "spare1")
        first = site.backend()
        second = site.backend(
            opensm_config=str(files.config),
            opensm_pid_file=str(files.pid_file),
            opensm_log=str(files.log),
            partitions_file=str(files.partitions),
            own_partitions_file=str(files.own_partitions),
            state_path=str(site.folder / "state2"),
            simulated_host="spare1",
        )
        one, two = site.guids[:2]
        desired = site.desire(member(1, one))
        settle(first, desired)
        # It stands by, and so is never up: nothing of the lab's waits for it.
        service.process.spawn(service.argv, service.environ)
        try:
            wait_until(lambda: has_told(second, site.desire(member(1, one))), "it is told")
            assert states(look(second, desired)) == {1: RIGHT}
            site.fabric.kill("opensm")
            change = site.desire(member(1, one, wanted=False), member(2, two))
            second.enforce(change)
            assert states(look(second, change, 30)) == {1: RIGHT, 2: RIGHT}
            assert keys(view, one, two) == [set(), {0x8101}]
            spare = site.fabric.net.spare_ports()[1]
            assert second.reader.read_ports().manager == spare.guid
        finally:
            service.process.stop(10.0)


def test_a_forged_guid_is_named_and_nobody_is_right_by_it(site, view):
    """opensm sweeps on and on and changes nothing while two nodes have one GUID (ERR 0D01)."""
    manager = site.backend()
    guid, other = site.guids[:2]
    forger = site.fabric.net.spare_ports()[1]
    # The port's is counted from the node's.
    site.fabric.tell_simulator(f'Guid "{forger.name}" {guid - 1:#x}')
    try:
        desired = site.desire(member(1, guid), member(2, other))
        manager.enforce(desired)
        time.sleep(3.1)
        reading = manager.read_back(desired)
        assert states(reading) == {1: DIFFERENT, 2: DIFFERENT}
        sentence = f"more than one port of the fabric has the GUID {guid_text(guid)}: port "
        assert sentence in reading.members[1].reason
        assert [fault.startswith(sentence) for fault in reading.faults] == [True]
        assert keys(view, guid, other) == [set(), set()]
    finally:
        site.fabric.tell_simulator(f'Guid "{forger.name}" {forger.guid - 1:#x}')
    reading = look(manager, desired, 40)
    assert states(reading) == {1: RIGHT, 2: RIGHT}


def test_the_last_good_file_comes_back_without_who_has_left(site, view):
    manager = site.backend()
    one, two, three = site.guids[:3]
    settle(manager, site.desire(member(1, one), member(2, two)))
    desired = site.desire(member(1, one), member(2, two, wanted=False), member(3, three, B))
    manager.enforce(desired)
    manager.restore()
    wait_until(lambda: keys(view, one, two, three) == [{0x8101}, set(), set()], "it is put back")
    assert manager.enforce(site.desire(*desired.members)) is True
    look(manager, desired)
    assert keys(view, one, two, three) == [{0x8101}, set(), {0x8102}]


def test_nothing_was_ever_right(site):
    manager = site.backend(state_path=str(site.folder / "none"))
    with pytest.raises(SubnetManagerError, match="nothing was ever right"):
        manager.restore()


def test_service_levels_that_opensm_drops_are_named(site):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]), policies={A: PartitionPolicy(service_level=2)})
    manager.enforce(desired)
    wait_until(lambda: states(manager.read_back(desired)) == {1: RIGHT}, "the member is right")
    assert f"set qos TRUE in {site.files.config}" in manager.read_back(desired).faults[-1]


def test_another_file_than_opensms_is_refused(site):
    with pytest.raises(SubnetManagerError, match="name one file in both"):
        site.backend(partitions_file=str(site.folder / "other.conf"))


def test_a_reader_that_dies_or_hangs_is_replaced(site):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    process = manager.reader._process
    process.terminate()
    process.wait()
    time.sleep(1.1)
    look(manager, desired)
    assert manager.reader._process is not process
    hung = manager.reader._process
    os.kill(hung.pid, signal.SIGSTOP)
    time.sleep(1.1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ProcessLookupError))
        stack.callback(os.kill, hung.pid, signal.SIGCONT)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(port_reader, "_SECONDS", 0.3)
        patch.setattr(port_reader, "_MARGIN", 0.2)
        with pytest.raises(PortReaderError, match="no answer in"):
            manager.read_back(desired)
    look(manager, desired)
    site.fabric.free_places()


def test_all_that_protects_is_audited(site):
    manager = site.backend()
    settle(manager, site.desire())
    rows = {row.name: row for row in manager.audit()}
    assert [row.name for row in rows.values() if row.needed and row.state != "met"] == []
    assert rows["default_partition"].state == "met"


def test_a_stale_key_on_the_switch_alone_is_seen():
    """opensm forgets the second block of a table that shrinks below 33 entries.

    What it leaves there stays until the switch is started again, so the fabric is one of its own.
    """
    with running_site() as site, contextlib.closing(FabricView(site.fabric)) as view:
        manager = site.backend()
        guid, other = site.guids[:2]
        settle(manager, site.desire(member(1, other)))
        by_hand = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n" + "".join(
            f"x{number}={0x300 + number:#x} : {guid_text(guid)}=full ;\n" for number in range(40)
        )
        site.files.partitions.write_text(by_hand)
        site.hang_up()
        text = guid_text(guid)
        wait_until(lambda: [len(side) for side in view.tables([text])[text]] == [41, 41], "40 keys")
        desired = site.desire(member(1, other), member(2, guid))
        manager.enforce(desired)
        wait_until(lambda: view.tables([text])[text][0] == [0x7FFF, 0x8101], "the port is right")
        port, facing = view.tables([text])[text]
        assert (port, {0x7FFF, 0x8101} < set(facing)) == ([0x7FFF, 0x8101], True)
        reading = manager.read_back(desired)
        # Whoever asks for the key alone, or at the port alone, is content.
        assert states(reading) == {1: RIGHT, 2: DIFFERENT}
        assert "of the switch with LID" in reading.members[2].reason
        time.sleep(3.1)
        assert any("which nobody has given it" in one for one in manager.read_back(desired).faults)


def test_adapters_with_two_ports_are_two_ports():
    with running_site(OneSwitch(())) as site:
        manager = site.backend()
        desired = site.desire(member(1, 0x2C90000200001), member(2, 0x2C90000200002, B))
        assert set(states(settle(manager, desired)).values()) == {RIGHT}
        fabric = manager.reader.read_ports()
        assert fabric.manager == 0x2C90000100001
        switch = fabric.ports[0x2C90000020000]
        facing = {guid: port.facing for guid, port in fabric.ports.items() if port.kind == "ca"}
        assert facing == {
            0x2C90000100001: (switch.lid, 1),
            0x2C90000100002: (switch.lid, 2),
            0x2C90000200001: (switch.lid, 4),
            0x2C90000200002: (switch.lid, 3),
        }
        assert (fabric.ports[0x2C90000200002].number, fabric.doubled) == (2, {})
        tables = manager.reader.read_tables([fabric.ports[0x2C90000200002]])[0x2C90000200002]
        assert tables.own == tables.facing == {0x7FFF, 0x8102}


def test_adapters_without_a_switch_are_judged_by_their_own_tables():
    with running_site(NoSwitch(())) as site:
        manager = site.backend()
        desired = site.desire(member(1, 0x2C90000200001))
        assert states(settle(manager, desired)) == {1: RIGHT}
        fabric = manager.reader.read_ports()
        assert fabric.manager == 0x2C90000100001
        assert {port.facing for port in fabric.ports.values()} == {None}
        assert len(fabric.ports) == 2
