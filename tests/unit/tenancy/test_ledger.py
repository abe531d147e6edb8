# SPDX-License-Identifier: Apache-2.0
"""The file of the ledger: quarantine, locks, broken files, and what is believed."""

import json
import multiprocessing
import os
import threading
import time

import attrs
import fasteners
import pytest

from nova_hpc.tenancy import ledger
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile, copy_of
from nova_hpc.topology.model import AddressError
from nova_hpc.wire.ledger import (
    SOMEBODY,
    DeviceState,
    Ledger,
    LedgerDevice,
)

GPU, OTHER = "0000:41:00.0", "0000:42:00.0"


@pytest.fixture
def file(tmp_path):
    return LedgerFile(tmp_path / "ledger.json", of_compute=True)


# -- quarantine --------------------------------------------------------------------


def test_no_file(file):
    assert file.read() == Ledger()


def test_quarantine_and_release(file):
    file.quarantine({GPU.upper(): "failed its reset", OTHER: ""})
    now = file.read()
    assert now.quarantined == {GPU: "failed its reset", OTHER: ""}
    assert now.why(None, GPU) == "failed its reset"
    assert now.why(OTHER) == "no reason given"
    assert now.why("0000:43:00.0") is None
    file.quarantine({GPU: "another"}, anew=False)
    assert file.read().why(GPU) == "failed its reset"
    file.quarantine({GPU: "another"})
    assert file.read().why(GPU) == "another"
    assert file.release(GPU)
    assert not file.release(GPU)
    left = file.read().device(OTHER)
    assert attrs.evolve(left, trial=None) == LedgerDevice(state=DeviceState.QUARANTINED)
    assert abs(left.trial.since - time.time()) < 600
    assert file.read().devices.keys() == {OTHER}
    names = {file.path.name, f".{file.path.name}.copy", f".{file.path.name}.lock"}
    assert {each.name for each in file.path.parent.iterdir()} == names


def test_a_release_keeps_what_else_is_known(file):
    known = LedgerDevice(hardware="serial:1", server="one", baseline={"width": 16}, cleaned=3)
    file.change(lambda now: now.put({GPU: known}))
    file.quarantine({GPU: "x"})
    file.release(GPU)
    assert file.read().device(GPU) == known


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "{", "[" * 100000, '"x"', "\x00", '{"v": 2, "devices": {}}', '{"v": true}'],
)
def test_a_broken_file_is_reported_and_never_overwritten(file, text):
    file.path.write_text(text)
    found = file.read()
    assert not found.devices
    assert found.lost
    assert str(file.path) in found.problems[0]
    assert str(file.path) in found.why(GPU)
    with pytest.raises(LedgerError, match="repair or remove it first"):
        file.quarantine({GPU: "x"})
    assert file.path.read_text() == text


def test_an_unreadable_place(tmp_path):
    assert LedgerFile(tmp_path).read().problems
    with pytest.raises(LedgerError, match="No such file"):
        LedgerFile(tmp_path / "none" / "file").quarantine({GPU: "x"})
    with pytest.raises(AddressError):
        LedgerFile(tmp_path / "file").quarantine({"gpu 3": "x"})


@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_a_file_that_is_cut_is_read_from_its_copy(file, keep):
    file.quarantine({GPU: "failed its reset"})
    file.path.write_bytes(file.path.read_bytes()[:-2][:keep])
    found = file.read()
    assert found.why(GPU) == "failed its reset"
    assert "its copy is used" in found.problems[0]
    # The next change repairs it.
    file.quarantine({OTHER: "x"})
    assert file.read().problems == ()
    assert file.read().quarantined == {GPU: "failed its reset", OTHER: "x"}


def test_a_file_that_an_operator_removes_is_empty(file):
    file.quarantine({GPU: "x"})
    file.path.unlink()
    assert file.read() == Ledger()


# -- locks -----------------------------------------------------------------------------


def test_threads_and_processes_wait_for_each_other(file):
    """One lock for both: the locks of POSIX know no threads."""
    taken = pytest.raises(LedgerError, match="is locked by another")
    with file.locked(GPU), taken, file.locked(GPU, 0.1):
        pass
    with file.locked(GPU), file.locked(OTHER, 0):
        pass
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()

    def hold():
        with file.locked(GPU):
            ready.set()
            done.wait(20)

    other = context.Process(target=hold)
    other.start()
    assert ready.wait(20)
    with pytest.raises(LedgerError, match=f"device {GPU} is locked"), file.locked(GPU, 0.1):
        pass
    # It ends with its process, however that ends.
    other.kill()
    other.join()
    with file.locked(GPU, 5):
        pass


def test_no_change_is_lost(file):
    def count(address):
        for _ in range(20):
            file.change(lambda now: now.put({address: more(now.device(address))}))

    def more(device):
        return attrs.evolve(device, cleaned=device.cleaned + 1)

    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=count, args=(GPU,)) for _ in range(2)]
    for each in workers:
        each.start()
    threads = [threading.Thread(target=count, args=(GPU,)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in [*threads, *workers]:
        each.join()
    assert file.read().device(GPU).cleaned == 100


def test_a_lock_follows_no_link(file, tmp_path):
    target = tmp_path / "target"
    file.locks.mkdir()
    (file.locks / GPU).symlink_to(target)
    with pytest.raises(LedgerError, match="cannot lock"), file.locked(GPU):
        pass
    assert not target.exists()


def test_what_is_in_the_place_of_a_lock(file):
    file.locks.mkdir()
    os.mkfifo(file.locks / GPU)
    with pytest.raises(LedgerError, match="not a file"), file.locked(GPU):
        pass


@pytest.fixture
def of_nova(tmp_path):
    """A ledger in the folder of a service that is another user; this is root."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user, too")
    folder = tmp_path / "nova"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    return LedgerFile(folder / "ledger.json")


def test_locks_that_root_makes_are_the_services(of_nova):
    with of_nova.locked(GPU):
        pass
    assert of_nova.locks.stat().st_uid == (of_nova.locks / GPU).stat().st_uid == 65534


@pytest.mark.parametrize("what", ["locks", "file", "ledger's"])
def test_root_gives_nothing_away_by_a_link(of_nova, tmp_path, what):
    """What the service puts in the place of a lock is neither made nor given to it."""
    target = tmp_path / "of-root"
    if what == "locks":
        target.mkdir()
        of_nova.locks.symlink_to(target)
    else:
        target.write_text("")
        if what == "file":
            of_nova.locks.mkdir()
        place = of_nova.locks / GPU if what == "file" else of_nova.path.parent
        place = place if what == "file" else place / ".ledger.json.lock"
        place.symlink_to(target)
    touch = of_nova.locked(GPU).__enter__ if what != "ledger's" else of_nova.expect_room
    with pytest.raises(LedgerError, match="cannot"):
        touch()
    assert target.stat().st_uid == 0
    assert not target.is_dir() or not list(target.iterdir())


def test_root_gives_nothing_away_by_a_second_name(of_nova, tmp_path):
    target = tmp_path / "of-root"
    target.write_text("")
    of_nova.locks.mkdir()
    os.link(target, of_nova.locks / GPU)
    with of_nova.locked(GPU):
        pass
    assert target.stat().st_uid == 0


def test_a_link_that_takes_the_place_of_a_lock_meanwhile(of_nova, tmp_path, monkeypatch):
    """Between its making and its locking: nothing is made where the link leads."""
    target = tmp_path / "of-root"
    real = fasteners.InterProcessLock

    def slow(path, **other):
        (of_nova.locks / GPU).unlink()
        (of_nova.locks / GPU).symlink_to(target)
        return real(path, **other)

    monkeypatch.setattr(fasteners, "InterProcessLock", slow)
    with of_nova.locked(GPU):
        pass
    assert not target.exists()


# -- what is believed -----------------------------------------------------------------


def names(file):
    return {each.name for each in file.path.parent.iterdir() if not each.name.endswith(".lock")}


def _compared(file):
    file.change(lambda now: attrs.evolve(now, compared=True))


def test_only_what_this_process_has_written_last_is_believed(file):
    command = attrs.evolve(file, of_compute=False)
    assert not file.read().compared
    _compared(file)
    old = file.path.read_bytes()
    assert file.read().compared
    # A command changes it, and it is the same ledger.
    command.quarantine({GPU: "ticket"})
    assert file.read().compared
    file.quarantine({OTHER: "x"})
    assert file.read().compared
    for each in (file.path, copy_of(file.path)):
        each.write_bytes(old)
    assert not file.read().compared
    assert command.read().compared  # it has only the file's word
    # What is written meanwhile makes it no better.
    file.quarantine({OTHER: "x"})
    assert not file.read().compared
    _compared(file)
    assert file.read().compared
    # Another life of the service compares for itself.
    assert not attrs.evolve(file).read().compared
    file.path.unlink()
    assert not file.read().compared


def test_what_could_not_be_written_is_not_believed(file, monkeypatch):
    _compared(file)

    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_replace_file", full)
        with pytest.raises(LedgerError, match="No space left"):
            file.quarantine({GPU: "x"})
    assert not file.read().compared


def test_room_is_tried_out(file, monkeypatch):
    before = names(file)
    file.expect_room()
    assert names(file) - before == set()

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger, "_write_file_beside", full)
    with pytest.raises(LedgerError, match=r"cannot write the ledger .*: .*No space left"):
        file.expect_room()


def test_readers_beside_a_writer_believe_it(file):
    """However often the file is replaced while they read."""
    _compared(file)
    found, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            found.append(file.read().compared)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for each in threads:
        each.start()
    for number in range(60):
        file.quarantine({GPU: f"number {number}"})
    stop.set()
    for each in threads:
        each.join()
    assert len(found) > 10
    assert all(found)


# -- neighbours in an upgrade -----------------------------------------------------------


def test_keys_of_a_later_release_stay(file):
    file.quarantine({GPU: "x"})
    body = json.loads(file.path.read_text())
    body["fabric"] = {"leaf": 3}
    body["devices"][GPU]["score"] = {"worth": 7}
    file.path.write_text(json.dumps(body))
    file.quarantine({OTHER: "y"})
    file.release(GPU)
    body = json.loads(file.path.read_text())
    assert body["fabric"] == {"leaf": 3}
    assert body["devices"][GPU] == {"state": "offered", "score": {"worth": 7}}


def test_a_later_version_is_not_replaced_by_its_copy(file):
    file.quarantine({GPU: "x"})
    body = json.loads(file.path.read_text())
    file.path.write_text(json.dumps({**body, "v": 2}))
    assert file.read().lost
    assert "update nova-hpc" in file.read().problems[0]
    with pytest.raises(LedgerError):
        file.release(GPU)


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"state": "sold"},
        {},
        {"state": "offered", "server": 3},
        {"state": "offered", "counts": {"cleaned": "x"}},
        {"state": "offered", "counted": 10**400},
    ],
)
def test_a_damaged_entry_is_that_of_a_device_that_nobody_may_have(file, entry):
    file.quarantine({OTHER: "x"})
    body = json.loads(file.path.read_text())
    body["devices"][GPU] = entry
    file.path.write_text(json.dumps(body))
    now = file.read()
    assert now.why(GPU) == "its entry in the ledger is damaged"
    assert now.marked == {GPU: SOMEBODY}
    assert GPU in now.problems[0]
    # The others are none the worse.
    assert now.quarantined[OTHER] == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_file_of_another_user(file):
    """Nothing is known of any device, and nothing is written over."""
    file.quarantine({GPU: "x"})
    for path in (file.path, copy_of(file.path)):
        path.chmod(0o600)
    folder = file.path.parent
    for each in (folder, *folder.parents[:3]):
        each.chmod(0o755)
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def look():
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
        found = file.read()
        said.put((found.lost, found.why(OTHER)))
        try:
            file.quarantine({OTHER: "y"})
        except LedgerError as error:
            said.put(str(error))
        else:
            said.put("written")

    other = context.Process(target=look)
    other.start()
    lost, why = said.get()
    error = said.get()
    other.join()
    assert lost
    assert "Permission denied" in why
    assert error != "written"
    assert file.read().quarantined == {GPU: "x"}
