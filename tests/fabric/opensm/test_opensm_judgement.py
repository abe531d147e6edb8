# SPDX-License-Identifier: Apache-2.0
"""What the backend says of a fabric: forged GUIDs, stale keys, other shapes, settings."""

import contextlib
import os
import signal
import time

import pytest

from nova_hpc.fabric.partitions import port_reader
from nova_hpc.fabric.partitions.backends.base import (
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.members import PartitionPolicy
from nova_hpc.fabric.partitions.port_reader import PortReaderError
from nova_hpc_lab.fabric import subnet_manager
from tests.fabric.bare_fabric import wait_until
from tests.fabric.matrix import FabricView, guid_text
from tests.fabric.opensm.opensm_site import (
    DIFFERENT,
    RIGHT,
    A,
    B,
    NoSwitch,
    OneSwitch,
    has_told,
    keys,
    look,
    member,
    running_site,
    settle,
    states,
)


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


def test_a_damaged_file_is_closed_without_any_network(site, view):
    """Neutron does not answer: an older copy could give a key to a port that another has now."""
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one)))
    # The row of *two* is never right, so no copy of the whole file would be renewed.
    site.files.partitions.write_text("damaged")
    again = site.backend()
    again.restore()
    wait_until(lambda: keys(view, one, two) == [set(), set()], "no port has a key")
    assert again.enforce(site.desire(member(3, one, B))) is True
    wait_until(lambda: keys(view, one) == [{0x8102}], "the desired state is back")
    # Another agent has written it meanwhile: nothing is closed.
    again.restore()
    time.sleep(0.5)
    assert keys(view, one) == [{0x8102}]


def test_a_file_that_no_agent_has_written_is_left_alone():
    with running_site() as site:
        before = site.files.partitions.read_text()
        with pytest.raises(SubnetManagerError, match="no agent has written"):
            site.backend().restore()
        assert site.files.partitions.read_text() == before


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
        assert any("which it was not given" in one for one in manager.read_back(desired).faults)


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
