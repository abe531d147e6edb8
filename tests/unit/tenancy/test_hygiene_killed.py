# SPDX-License-Identifier: Apache-2.0
"""The service is killed at every step of what it writes; nothing is lost or given twice.

A child process lives through two servers and a failing device, and kills itself
with SIGKILL at its n-th system call on state files and locks, for every n. A
new service then has to find whole files and to bring everything in order.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import threading

import pytest

from nova_hpc.tenancy import ledger
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.topology import atomic_files
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make

ONE, TWO = "server-1", "server-2"
#: Devices are cleaned side by side, and what is dirty is one file.
_ONE_BY_ONE = threading.Lock()
COUNTED = ("open", "write", "fsync", "close", "replace", "chown", "fchown", "fchmod")


class Deadly:
    """The module os, as the module of the state files sees it, until call *left*."""

    def __init__(self, left):
        self.left = left

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in COUNTED:
            return real

        def call(*arguments, **keywords):
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return real(*arguments, **keywords)

        return call


class World:
    """What outlives the service: the devices, Nova's records, the guests' traces."""

    def __init__(self, root):
        root.mkdir()
        self.node = make(root)
        (root / "claimed").write_text("")
        (root / "dirty").write_text("")

    def reset(self, address):
        with _ONE_BY_ONE:
            if address in self.words("dirty"):
                if address == OTHER:
                    text = "its reset failed: inappropriate ioctl for device"
                    raise hygiene_reset.ResetError(text)
                self._write("dirty", self.words("dirty") - {address})

    def words(self, name):
        return frozenset((self.node.root / name).read_text().split())

    def _write(self, name, words):
        beside = self.node.root / f"{name}.new"
        beside.write_text(" ".join(words))
        beside.replace(self.node.root / name)

    def claimed(self):
        return self.words("claimed")

    def step(self):
        return self.node.step(reset=self.reset)

    def start(self, server, *addresses):
        """What Nova does: it claims, the driver checks, the guest runs."""
        self._write("claimed", self.claimed() | set(addresses))
        refused = self.step().give(server, self.node.candidates(*addresses))
        if not refused:
            assert not self.words("dirty") & set(addresses), "given with another server's traces"
            self._write("dirty", self.words("dirty") | set(addresses))
        return refused

    def end(self, server, *addresses):
        dirty = self.step().take_back(server, {})
        self._write("claimed", self.claimed() - set(addresses))
        return dirty

    def update(self):
        return self.step().sweep(self.node.candidates(GPU, OTHER), self.claimed)

    def life(self):
        self.update()
        assert self.start(ONE, GPU, OTHER) == {}
        self.update()
        assert set(self.end(ONE, GPU, OTHER)) == {OTHER}
        self.update()
        assert self.start(TWO, GPU) == {}
        self.end(TWO, GPU)
        self.update()


def live(world, kill_at):
    """Live in a child process; whether it came to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ledger.os = atomic_files.os = Deadly(kill_at)
            world.life()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


def in_order(world):
    """A new service starts, and every server of the old one is deleted."""
    assert world.node.ledger.problems == ()
    # Nothing is given twice, and nobody's device is touched.
    traces = world.words("dirty")
    held = traces & world.claimed()
    marked = world.node.ledger.marked
    assert held <= marked.keys() | world.node.ledger.quarantined.keys()
    world.update()
    assert held <= world.words("dirty")
    # Nova frees what it has recorded, without the driver's help.
    world._write("claimed", ())
    world.update()
    assert GPU not in world.words("dirty")
    assert world.node.ledger.why(GPU) is None
    # A device is not lost, and one that cannot be reset is not given.
    assert world.start(TWO, GPU) == {}
    if OTHER in traces:
        assert "inappropriate ioctl" in world.node.ledger.why(OTHER)
        assert "in quarantine" in world.start(TWO, OTHER)[OTHER]


@pytest.mark.long
def test_killed_at_every_step(tmp_path, record_property):
    steps = 0
    while True:
        world = World(tmp_path / str(steps))
        done = live(world, steps)
        if done:
            break
        in_order(world)
        shutil.rmtree(world.node.root)
        steps += 1
    in_order(world)
    record_property("steps", steps)
    assert steps > 80
    print(f"RESULT: killed at each of {steps} steps: state whole, no device lost or given twice")


@pytest.mark.long
def test_killed_twice(tmp_path):
    """Also while it brings in order what the first kill has left."""
    for first in range(15, 80, 20):
        for second in range(0, 40, 13):
            world = World(tmp_path / f"{first}-{second}")
            assert not live(world, first)
            world.life = world.update
            live(world, second)
            in_order(world)


# -- the disk is full -------------------------------------------------------------


def test_a_disk_that_fills_up_at_any_step(tmp_path, monkeypatch):
    """Each write in turn fails; whatever was not done is done later."""
    writes, failed = [], []

    class Full:
        def __getattr__(self, name):
            return self.write if name == "write" else getattr(os, name)

        def write(self, handle, data):
            writes.append(len(data))
            if len(writes) == failed[0]:
                # As a disk does: some of it fits.
                os.write(handle, bytes(data)[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.write(handle, data)

    monkeypatch.setattr(atomic_files, "os", Full())
    errors = 0
    for number in range(1, 30):
        writes.clear()
        failed[:] = [number]
        world = World(tmp_path / str(number))
        for step, arguments in (
            (world.update, ()),
            (world.start, (ONE, GPU, OTHER)),
            (world.end, (ONE, GPU, OTHER)),
            (world.update, ()),
        ):
            with contextlib.suppress(LedgerError):
                step(*arguments)
                continue
            errors += 1
        if number > len(writes):
            break
        in_order(world)
        left = [each.name for each in world.node.root.iterdir() if each.name.startswith(".led")]
        assert set(left) <= {
            ".ledger.json.copy",
            ".ledger.json.lock",
            ".ledger.json.locks",
        }
    else:
        pytest.fail("it writes without end")
    assert errors > 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_real_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        path = disk / "ledger.json"
        file = LedgerFile(path)
        file.quarantine({GPU: "failed its reset"})
        before = path.read_bytes()
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(b"x" * 4096):
                pass
        with pytest.raises(LedgerError, match="No space left"):
            file.quarantine({OTHER: "failed its reset"})
        assert path.read_bytes() == before
        assert file.read().why(GPU) == "failed its reset"
        (disk / "filler").unlink()
        file.quarantine({OTHER: "failed its reset"})
        assert set(file.read().quarantined) == {GPU, OTHER}
    finally:
        subprocess.run(["umount", str(disk)], check=True)
