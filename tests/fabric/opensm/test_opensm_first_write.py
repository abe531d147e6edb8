# SPDX-License-Identifier: Apache-2.0
"""The first write on a fabric with partitions of its own, over a real opensm."""

import re
import stat

import attrs
import pytest

from nova_hpc.fabric.partitions.backends.base import AuditState, SubnetManagerError
from nova_hpc.fabric.partitions.hardening import list_open_rows
from nova_hpc.fabric.partitions.members import PartitionPolicy
from nova_hpc_lab.fabric import subnet_manager
from tests.fabric.bare_fabric import wait_until
from tests.fabric.matrix import FabricView, guid_text
from tests.fabric.opensm.opensm_site import keys, member, running_site, settle

LIMITED = "Default=0x7fff, ipoib, mtu=5, rate=12 : ALL=limited, SELF=full ;\n"


@pytest.fixture
def fresh():
    """A fabric that no agent has managed."""
    with running_site() as made:
        view = FabricView(made.fabric)
        yield made, view
        view.close()


def rows_of(manager):
    return {row.name: row for row in manager.audit()}


def write(site, view, text, guid, expected):
    site.files.partitions.write_text(text)
    site.hang_up()
    wait_until(lambda: keys(view, guid) == [expected], f"{expected} at {guid}")


def test_the_agent_waits_for_the_operators_word(fresh):
    site, view = fresh
    one, two = site.guids[:2]
    text = f"{LIMITED}0x8001 : {guid_text(one)}=full ;\n0x8002 : {guid_text(two)}=full ;\n"
    write(site, view, text, two, {0x8002})
    site.files.own_partitions.write_text(f"0x8001 : {guid_text(one)}=full ;\n")
    manager = site.backend()
    found = rows_of(manager)
    loss = f"would be lost: port {guid_text(two)}: 0x8002"
    for name in ("own_partitions", "first_write"):
        assert (found[name].state, found[name].found) == (AuditState.NOT_MET, loss)
        assert found[name] in list_open_rows(found.values())
    assert manager.accept_losses() == (loss.removeprefix("would be lost: "),)
    # The decision survives a restart, and covers no port that comes later.
    manager = site.backend()
    assert list_open_rows(manager.audit()) == ()
    other = text.replace(";\n", f";\n0x9 : {guid_text(site.guids[2])} ;\n", 1)
    write(site, view, other, site.guids[2], {0x0009})
    assert "0x0009" in rows_of(manager)["first_write"].found
    assert rows_of(manager)["first_write"].state is AuditState.NOT_MET
    write(site, view, text, site.guids[2], set())
    settle(manager, site.desire(member(1, two)))
    assert keys(view, one, two) == [{0x8001}, {0x8101}]
    # The site's IPoIB keeps its MTU.
    assert f"\n{LIMITED}" in site.files.partitions.read_text()
    with pytest.raises(SubnetManagerError, match="nothing to accept"):
        manager.accept_losses()
    # An agent that manages the fabric is not asked again, whatever became of its file.
    for other in (None, text, f"{site.files.partitions.read_text()}0x9 : ALL ;\n"):
        site.files.partitions.unlink(missing_ok=True)
        if other is not None:
            site.files.partitions.write_text(other)
        found = rows_of(site.backend())
        for name in ("own_partitions", "first_write"):
            assert found[name].state is AuditState.MET


def group_of(site, entry, node="manager"):
    """MTU and rate of the IPoIB group of a partition, as a member of it is told."""
    said = site.fabric.ask(node, "saquery", "MCMR", "--mgid", f"ff12:401b:{entry:04x}::ffff:ffff")
    # The two bits above say that it is exactly so.
    found = re.findall(r"^\s*(mtu|rate)\.+(0x\w+)$", said, re.MULTILINE)
    return {name: int(value, 16) & 0x3F for name, value in found}


def test_the_sites_ipoib_keeps_its_mtu_and_networks_have_theirs(fresh):
    site, _ = fresh
    site.fabric.stop("opensm")
    site.files.partitions.write_text(LIMITED)
    site.fabric.start("opensm")
    before = group_of(site, 0xFFFF)
    assert before == {"mtu": 5, "rate": 12}
    manager = site.backend()
    assert list_open_rows(manager.audit()) == ()
    one, two = site.fabric.net.ports[:2]
    desired = site.desire(
        member(1, one.guid, 0x101),
        member(2, two.guid, 0x102),
        policies={0x101: PartitionPolicy(mtu=5, rate=12)},
    )
    settle(manager, desired)
    # Groups that are there stay, so the next start of opensm shows what the file says.
    site.fabric.stop("opensm")
    site.fabric.start("opensm")
    assert group_of(site, 0xFFFF) == before
    assert group_of(site, 0x8101, one.name) == {"mtu": 5, "rate": 12}
    assert group_of(site, 0x8102, two.name)["mtu"] == 4
    # A damaged file while no agent runs: what was in force is kept beside it, too.
    settle(manager, desired)
    site.files.partitions.write_text("")
    again = site.backend()
    again.restore()
    assert f"\n{LIMITED}" in site.files.partitions.read_text()


def test_tables_decide_and_not_the_file_alone(fresh):
    site, view = fresh
    guid = site.guids[0]
    write(site, view, f"{LIMITED}a=2 : {guid_text(guid)}=full ;\n", guid, {0x8002})
    # Someone prepares the file, and opensm has not read it yet.
    site.files.partitions.write_text(LIMITED)
    found = rows_of(site.backend())
    assert found["own_partitions"].state is AuditState.MET
    assert found["first_write"].found == f"would be lost: port {guid_text(guid)}: 0x8002"


def test_an_agent_that_stands_by_takes_no_key_of_a_network_away(fresh):
    site, _ = fresh
    guid = site.guids[0]
    desired = site.desire(member(1, guid))
    settle(site.backend(), desired)
    files = subnet_manager.prepare_manager(site.fabric.paths, "opensm2")
    files.partitions.write_text(LIMITED)
    second = site.backend(
        partitions_file=str(files.partitions),
        own_partitions_file=str(files.own_partitions),
        opensm_config=str(files.config),
        opensm_pid_file=str(files.pid_file),
        state_path=str(site.folder / "state2"),
    )
    row = rows_of(second)["first_write"]
    assert (row.state, "0x8101" in row.found) == (AuditState.NOT_MET, True)
    second.plan_first_write(desired)
    assert rows_of(second)["first_write"].state is AuditState.MET


def test_a_fabric_that_cannot_be_read_is_not_written(fresh):
    site, _ = fresh
    manager = site.backend()
    site.fabric.stop("opensm")
    site.fabric.stop("ibsim")
    row = rows_of(manager)["first_write"]
    assert (row.state, row.needed) == (AuditState.UNKNOWN, True)


def test_the_command_line_of_the_manager_wins(fresh):
    site, _ = fresh
    manager = site.backend()
    assert rows_of(manager)["sm_key"].state is AuditState.MET
    site.fabric.stop("opensm")
    service = site.fabric.services()["opensm"]
    words = (*service.argv, "--smkey", "1", "-Z", "off", "-P", "/elsewhere")
    attrs.evolve(service, argv=words).start(site.fabric.stopping)
    config = site.files.config
    with pytest.raises(SubnetManagerError, match="reads its partitions from /elsewhere"):
        site.backend()
    found = rows_of(manager)
    for name in ("sm_key", "part_enforce", "partition_config_file"):
        assert found[name].state is AuditState.NOT_MET, name
        assert "command line" in found[name].found
    assert found["sm_key"].found.startswith("the well-known default")
    copy = config.with_name("copy.conf")
    copy.write_text(config.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager._conf, "opensm_config", str(copy), raising=False)
        assert rows_of(manager)["opensm_config"].found.endswith(str(config))


def test_keys_in_files_that_all_can_read_are_named(fresh):
    site, _ = fresh
    manager = site.backend()
    # The lab starts opensm so that its log is the owner's alone.
    assert stat.S_IMODE(site.files.log.stat().st_mode) == 0o600
    assert stat.S_IMODE(site.files.config.stat().st_mode) == 0o600
    assert rows_of(manager)["key_files"].state is AuditState.MET
    site.files.log.chmod(0o644)
    folders = [path for path in site.files.log.parents if not path.stat().st_mode & stat.S_IXOTH]
    # Folders of the lab keep others out, whatever the mode of a file is.
    assert folders
    assert rows_of(manager)["key_files"].state is AuditState.MET
    before = {folder: folder.stat().st_mode for folder in folders}
    try:
        for folder in folders:
            folder.chmod(0o711)
        row = rows_of(manager)["key_files"]
        assert (row.state, str(site.files.log) in row.found) == (AuditState.NOT_MET, True)
    finally:
        for folder, mode in before.items():
            folder.chmod(mode)


def test_a_manager_with_another_key_is_named(fresh):
    site, _ = fresh
    paths = site.fabric.paths
    files = subnet_manager.prepare_manager(paths, "rogue")
    text = re.sub(r"^sm_key .*$", "sm_key 0x5ec7e75ec7e75ec7", files.config.read_text(), flags=re.M)
    files.config.write_text(text)
    service = subnet_manager.opensm_service(paths, "rogue", "spare1")
    service.process.spawn(service.argv, service.environ)
    try:
        wait_until(lambda: files.log.exists() and "MASTER" in files.log.read_text(), "it is up")
        # opensm meets it where it looks at the whole fabric, such as at its start.
        site.fabric.stop("opensm")
        site.fabric.start("opensm")
        manager = site.backend()
        guid = site.fabric.net.spare_ports()[1].guid
        said = f"another subnet manager is at port {guid_text(guid)}"

        def named():
            # It writes tables, too: what they have is not the question here.
            faults = manager.read_back(site.desire()).faults
            return [fault for fault in faults if said in fault]

        (fault,) = wait_until(named, "it is named")
        assert "its sm_key is another one" in fault
        # The log has its key; the sentence does not.
        assert "5ec7e75e" in site.files.log.read_text()
        assert "5ec7e75e" not in fault
    finally:
        service.process.stop(10.0)
