# SPDX-License-Identifier: Apache-2.0
"""Erase an NVMe disk: a controller made of bytes, right and wrong, killed at every point."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.forbidden import ForbiddenDevices
from nova_hpc.tenancy.hygiene import clean_check, clean_nvme, nvme_commands
from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError
from nova_hpc.tenancy.hygiene.clean_nvme import NvmeNamespace
from nova_hpc.tenancy.hygiene.nvme_commands import SanitizeAction
from nova_hpc.tenancy.stage import device_stage, host
from nova_hpc.tenancy.stage.device_stage import DeviceStage, StageMode, StagePhase
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError
from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology import sysfs
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make
from tests.unit.tenancy.nvme_disk import BLOCK, erase, make_disk
from tests.unit.tenancy.stage_world import DEVICES, Killed, Service, World, killed_after

# --- commands as bytes ----------------------------------------------------------------------


def test_the_structure_of_the_kernel():
    """linux/nvme_ioctl.h: struct nvme_passthru_cmd has 72 bytes."""
    raw = nvme_commands.pack_command(nvme_commands.log_command(), 0x1122334455667788)
    assert len(raw) == 72
    assert raw[0] == 0x02
    assert struct.unpack_from("<I", raw, 4) == (0xFFFFFFFF,)
    assert struct.unpack_from("<Q", raw, 24) == (0x1122334455667788,)
    assert struct.unpack_from("<II", raw, 32) == (0, 512)
    assert struct.unpack_from("<I", raw, 40) == (0x007F0081,)
    assert struct.unpack_from("<I", raw, 64) == (30_000,)
    # _IOWR('N', 0x41, struct nvme_passthru_cmd)
    assert 3 << 30 | len(raw) << 16 | ord("N") << 8 | 0x41 == clean_nvme._ADMIN_IOCTL


def test_sanitize_is_by_crypto_or_block_and_restricted():
    for action, value in ((SanitizeAction.CRYPTO, 4), (SanitizeAction.BLOCK, 2)):
        command = nvme_commands.sanitize_command(action)
        assert (command.opcode, command.cdw10, command.nsid) == (0x84, value, 0)


@pytest.mark.parametrize(("by_key", "ses"), [(False, 1), (True, 2)])
def test_format_keeps_the_format(by_key, ses):
    body = bytearray(4096)
    body[26], body[29] = 0x13, 0b1010
    command = nvme_commands.format_command(7, bytes(body), by_key)
    assert (command.opcode, command.nsid) == (0x80, 7)
    assert command.cdw10 == 3 | 1 << 4 | 2 << 5 | 1 << 8 | ses << 9


@given(st.binary(max_size=600))
def test_whatever_a_log_holds_is_no_crash(body):
    try:
        state = nvme_commands.decode_sanitize_log(body)
    except UnableError:
        assert len(body) < 8
        return
    assert 0 <= state.percent <= 99
    assert not (state.is_done and state.is_running)


# --- one erase ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({}, "sanitize, crypto erase"),
        ({"sanicap": 2}, "sanitize, block erase"),
        ({"cmic": 2}, "sanitize, crypto erase"),
        ({"sanicap": 6}, "sanitize, block erase"),
        ({"sanicap": 0}, "format, user data erase"),
        ({"sanicap": 4, "fna": 4}, "format, crypto erase"),
        ({"sanicap": 0, "oacs": 0b1010}, "format, user data erase"),
    ],
)
def test_an_erase_that_is_proven(values, method):
    disk = make_disk(**values)
    done = erase(disk)
    assert done["method"] == method
    assert done["blocks"] >= 64
    assert done["proof"] == f"{method}; {done['blocks']} blocks read back"
    assert b"secret" not in disk.media[1]
    assert b"nova-hpc" not in disk.media[1]
    assert not disk.running


@pytest.mark.parametrize(
    ("values", "error", "why"),
    [
        # It says that it has erased, and has not, or not all.
        ({"does": "nothing"}, UncleanError, "holds after the erase what it held before"),
        ({"does": "half"}, UncleanError, "holds after the erase what it held before"),
        ({"does": "nothing", "sanicap": 0}, UncleanError, "holds after the erase"),
        ({"does": "half", "sanicap": 2}, UncleanError, "holds after the erase"),
        ({"does": "fail"}, UncleanError, "status 3 at the end"),
        ({"does": "another"}, UncleanError, "status 1 at the end"),
        # An overwrite is not enough; neither is nothing at all.
        ({"sanicap": 4, "oacs": 0}, UncleanError, "neither Sanitize"),
        ({"sanicap": 0, "oacs": 0b1010, "unallocated": 1}, UncleanError, "not reach all"),
        ({"sanicap": 0, "oacs": 0b1010, "detached": {2: bytearray(BLOCK)}}, UncleanError, "not re"),
        ({"cmic": 2, "controllers": 2}, UnableError, "other controllers"),
        ({"cmic": 2, "controllers": None}, UnableError, "other controllers"),
        ({"cmic": 4}, UnableError, "other controllers"),
    ],
)
def test_an_erase_that_is_not_proven(values, error, why):
    with pytest.raises(error, match=why):
        erase(make_disk(**values))


def test_a_disk_without_a_namespace():
    disk = make_disk()
    disk.media.clear()
    with pytest.raises(UncleanError, match="no namespace"):
        erase(disk)


def test_a_namespace_that_the_kernel_does_not_show():
    disk = make_disk(unseen=2, sanicap=0)
    disk.media[2] = bytearray(b"secret " * BLOCK)
    with pytest.raises(UnableError, match="does not show all"):
        erase(disk)


def test_data_of_deleted_namespaces_are_erased_as_well():
    disk = make_disk(detached={2: bytearray(b"secret " * BLOCK)})
    erase(disk)
    assert b"secret" not in disk.detached[2]


@pytest.mark.parametrize("looks", [1, 2, 20])
@pytest.mark.parametrize("action", [2, 3, 4])
@pytest.mark.parametrize("noted", ["own", "other", None])
def test_an_erase_that_is_under_way_is_waited_for(action, looks, noted, tmp_path):
    """The one of a killed service counts; one of the tenant and an overwrite do not."""
    disk = make_disk(looks=looks + 1)
    disk.begin(action)
    note = tmp_path / "run" / "note"
    if noted:
        note.parent.mkdir()
        note.write_text(str(action if noted == "own" else action + 8))
    done = erase(disk, note)
    counts = noted == "own" and action != 3
    assert ("begun earlier" in done["method"]) is counts
    assert disk.sent.count(nvme_commands.SANITIZE) == (not counts)
    assert b"secret" not in disk.media[1]
    assert not note.exists()


def test_an_erase_of_the_tenants_that_erases_nothing_is_no_proof(tmp_path):
    """Before: the log said that it was done, and the blocks were compared with nothing."""
    disk = make_disk(does="nothing")
    disk.begin(4)
    with pytest.raises(UncleanError, match="holds after the erase what it held before"):
        erase(disk)


def test_a_killed_erase_is_noted_before_it_is_sent(tmp_path):
    """The next process knows it; after its end nobody does."""
    note = tmp_path / "note"
    disk = make_disk(looks=4)

    def die(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        clean_nvme.erase_disk(disk, note, sleep=die)
    assert note.read_text() == "4"
    assert "begun earlier" in erase(disk, note)["method"]
    assert disk.sent.count(nvme_commands.SANITIZE) == 1
    assert not note.exists()


def test_one_that_was_under_way_and_failed_is_repeated():
    disk = make_disk(does="fail")
    disk.begin(4)
    with pytest.raises(UncleanError):
        erase(disk)
    disk.does = ""
    disk.begin(4)
    disk.does = "fail"
    with pytest.raises(UncleanError, match="status 3"):
        erase(disk)
    assert disk.sent.count(nvme_commands.SANITIZE) == 2


@pytest.mark.parametrize("blocks", [1, 2, 63, 64, 65, 100_000])
def test_first_and_last_block_are_among_the_fixed_ones(blocks):
    chosen = clean_nvme.choose_blocks(blocks)
    assert {0, blocks - 1} <= set(chosen)
    assert len(chosen) == min(blocks, 64)
    assert all(0 <= each < blocks for each in chosen)


def test_a_marker_names_its_block():
    space = NvmeNamespace(3, 512, 10)
    markers = {clean_nvme.make_marker(space, block) for block in range(10)}
    assert len(markers) == 10
    assert all(len(each) == 512 and b"nova-hpc erase marker 3 " in each for each in markers)


def test_a_folder_that_is_no_disk(tmp_path):
    for name, text in ((None, ""), ("class", "0x030200"), ("class", "0x010802")):
        if name:
            (tmp_path / name).write_text(f"{text}\n")
        with pytest.raises(UnableError):
            clean_nvme.open_kernel_disk(tmp_path)
    assert clean_nvme.read_erase_progress(tmp_path) is None
    (tmp_path / "nvme").mkdir()
    (tmp_path / "driver").symlink_to("/sys/bus/pci/drivers/nvme")
    with pytest.raises(UnableError, match="no controller"):
        clean_nvme.open_kernel_disk(tmp_path)


def test_blocks_of_a_file_are_read_and_written_past_the_cache(tmp_path):
    """What KernelDisk does with a namespace, on a file in the place of its device."""
    if not Path("/dev/null").exists():
        pytest.skip("no /dev")
    space = NvmeNamespace(1, 4096, 4, "nvme0n1")
    (tmp_path / "nvme0").touch()
    (tmp_path / "nvme0n1").write_bytes(bytes(4096 * 4))
    try:
        os.close(os.open(tmp_path / "nvme0n1", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system knows no O_DIRECT")
    disk = clean_nvme.KernelDisk(tmp_path, "nvme0", tmp_path)
    disk.write(space, 3, b"x" * 4096)
    assert disk.read(space, 3) == b"x" * 4096
    assert disk.read(space, 2) == bytes(4096)
    with pytest.raises(OSError, match="short read"):
        disk.read(space, 4)
    with pytest.raises(OSError, match="Inappropriate ioctl"):
        disk.send(nvme_commands.log_command())
    disk.close()


# --- tenants, and a service that is killed ---------------------------------------------------

#: 200 for the long run.
CHANGES = int(os.environ.get("NOVA_HPC_DISK_CHANGES", "40"))
ERASERS = Erasers({"nvme": ("0108",)})


class _NoTraces(dict):
    """The disk itself says whose data it holds."""

    def __setitem__(self, key, value):
        pass


class DiskService(Service):
    """A life of nova-compute whose devices are disks."""

    def __init__(self, world, disks):
        super().__init__(world, {"nvme": StageMode.HOST})
        runner = host.HostRunner(
            root=world.node.root,
            drivers={"nvme": "nvme"},
            checks=lambda role: ("nvme",),
            pins=lambda role: {},
            timeout=1.0,
            bind=self._bind,
            execute=self._execute,
        )
        self.disks = disks
        runners = {StageMode.SERVICE_VM: world, StageMode.HOST: runner}
        self.stage = attrs.evolve(self.stage, runners=runners)
        self.forbidden = ForbiddenDevices(
            root=world.node.root,
            read=lambda address: None,
            cache=world.node.root / "vpd",
            erasers=ERASERS,
        )

    def view(self):
        node = sysfs.read_sysfs_node(self.world.node.root)
        return NodeView(node, dict.fromkeys(DEVICES, "nvme"))

    def _bind(self, root, address, driver, timeout):
        self.world.tick()
        self.world.node.bind(address, driver)
        self.world.tick()

    def _execute(self, argv, timeout, more=None):
        folder, asked = argv[-2:]
        names = json.loads(asked)["checks"]
        assert (Path(folder) / "driver").resolve().name == "nvme"
        return json.dumps(clean_check.run_device_checks(Path(folder), names, {}))

    def start(self, server, *addresses):
        tenant = DeviceTenant(server, tuple(addresses), owners=self.world.owners())
        try:
            self.forbidden.before_start(tenant, self.view())
        except RefusedError:
            return False
        return super().start(server, *addresses)

    def update(self):
        found = self.forbidden.withhold(self.view(), self.world.owners()).findings
        assert not found
        return super().update()


@pytest.fixture
def disks(monkeypatch, tmp_path):
    """Address -> disk, as the check opens them."""
    known = {GPU: make_disk(), OTHER: make_disk(sanicap=2)}
    monkeypatch.setattr(clean_nvme, "_NOTES", tmp_path / "run")
    monkeypatch.setattr(clean_nvme, "_SCAN", 0.0)
    monkeypatch.setattr("nova_hpc.topology.atomic_files.os.fsync", lambda handle: None)
    monkeypatch.setattr("nova_hpc.tenancy.hygiene.reset.reset_device", lambda *_: None)
    monkeypatch.setattr(clean_nvme, "_PAUSE", 0.0)
    monkeypatch.setattr(clean_nvme, "open_kernel_disk", lambda folder: known[folder.name])
    return known


@pytest.fixture
def found(tmp_path, disks):
    node = make(tmp_path / "node")
    for address in DEVICES:
        node.write(address, "class", "0x010802")
        raw = bytearray((node.devices / address / "config").read_bytes())
        raw[9:12] = bytes((0x02, 0x08, 0x01))
        (node.devices / address / "config").write_bytes(raw)
    world = World(node, traces=_NoTraces())
    for disk in disks.values():
        disk.tick = world.tick
    return world


def entry_of(world, address=GPU):
    return device_stage.load_stage(world.node.ledger.device(address).stage)


def test_a_disk_is_erased_before_its_first_server(found, disks):
    service = DiskService(found, disks)
    assert not service.start("early", GPU)
    assert service.settle() == {}
    assert all(b"secret" not in disk.media[1] for disk in disks.values())
    entry = entry_of(found)
    assert entry.phase is StagePhase.CLEAN
    assert entry.proof.startswith("sanitize, crypto erase; ")
    assert entry_of(found, OTHER).proof.startswith("sanitize, block erase; ")
    assert service.start("first", GPU)
    assert entry_of(found).proof == ""


def test_a_stage_that_passed_without_an_erase_does_not_count(found, disks):
    """The role had another check before, or an older release has written the ledger."""
    service = DiskService(found, disks)
    service.settle()
    plain = DeviceStage(StagePhase.CLEAN, server="s", since=1.0, seconds=1.0)
    service.hygiene.records.change(
        lambda ledger: {GPU: attrs.evolve(ledger.device(GPU), stage=plain.dumps())}
    )
    disks[GPU].put(1, 5, b"secret again")
    assert not service.start("thief", GPU)
    assert GPU in service.update()
    service.attend()
    assert b"secret" not in disks[GPU].media[1]
    assert entry_of(found).proof


@pytest.mark.parametrize("does", ["nothing", "half", "fail"])
def test_a_disk_without_a_proof_is_never_offered(found, disks, does):
    disks[GPU].does = does
    service = DiskService(found, disks)
    service.settle()
    for _ in range(3):
        assert GPU in service.update() or GPU in found.node.ledger.quarantined
        assert not service.start("thief", GPU)
        service.attend()
        found.node.later(10_000.0)
    # The other one is not concerned.
    assert service.start("first", OTHER)


def test_changes_of_tenant_with_kills_in_the_erase(found, disks):
    """Of all marked blocks the next tenant reads none."""
    chance = random.Random(50)
    disk = disks[GPU]
    blocks = len(disk.media[1]) // BLOCK
    marked = killed = in_erase = thieves = 0
    DiskService(found, disks).settle()
    for number in range(CHANGES):
        service = DiskService(found, disks)
        assert service.update() == {}
        assert service.start(f"server-{number}", GPU), number
        assert b"tenant" not in disk.media[1], number
        for _ in range(50):
            disk.put(1, chance.randrange(blocks), b"tenant %d" % number)
            marked += 1
        if number % 10 == 0:
            disk.begin(chance.choice([3, 4]))  # a tenant may erase it, too, and be ended
        service.end(f"server-{number}")
        for _ in range(2):
            try:
                with killed_after(found, chance.randrange(1, 60)):
                    DiskService(found, disks).settle(2)
            except Killed:
                killed += 1
                in_erase += bool(disk.running)
            thief = DiskService(found, disks)
            thief.update()
            if thief.start("thief", GPU):
                assert b"tenant" not in disk.media[1]
                thieves += 1
                thief.end("thief")
        DiskService(found, disks).settle(6)
        assert entry_of(found).phase is StagePhase.CLEAN
        assert entry_of(found).proof
    assert marked == 50 * CHANGES
    assert killed > CHANGES / 2
    assert in_erase > CHANGES / 10
    assert b"tenant" not in disk.media[1]
    print(f"{marked} marked, {killed} kills, {in_erase} in an erase, {thieves} between")
