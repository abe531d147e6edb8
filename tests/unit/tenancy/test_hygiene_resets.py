# SPDX-License-Identifier: Apache-2.0
"""Resets that are refused, hang, or leave another device behind, or none."""

import concurrent.futures
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.topology import sysfs
from nova_hpc.wire.ledger import DeviceState
from tests.unit.tenancy.hygiene_node import GPU, OTHER, record, sweep, why

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def test_a_reset_that_the_kernel_refuses(node):
    node.step().give(ONE, node.candidates(GPU))
    (node.devices / GPU / "reset").unlink()
    assert "no way to reset" in node.step().take_back(ONE, {})[GPU]
    assert "no way to reset" in why(node)
    (node.devices / GPU / "reset").mkdir()
    with pytest.raises(hygiene_reset.ResetError, match="not a file"):
        hygiene_reset.reset_device(node.root, GPU, 20, node.root / "locks")


def test_a_reset_that_hangs_is_left_behind(node):
    step = node.step(timeout=1.0)
    step.give(ONE, node.candidates(GPU, OTHER))
    node.hang(GPU)
    found = step.take_back(ONE, {})
    assert list(found) == [GPU]  # the other is clean
    assert "did not answer within 1 seconds" in found[GPU]
    assert record(node).server is None


def test_a_reset_that_does_not_end_keeps_readers_away(node):
    """A process in the kernel cannot be killed: here one that ends when it wants to."""
    folder = node.root / "locks"
    node.hang(GPU)
    worker = threading.Thread(target=hygiene_reset.reset_device, args=(node.root, GPU, 20, folder))
    worker.start()
    try:
        while not hygiene_reset.list_busy_resets(folder):
            time.sleep(0.01)
        busy = hygiene_reset.list_busy_resets(folder)
        assert busy == {GPU}
        function = sysfs.read_sysfs_node(node.root, busy).function(GPU)
        assert function.unknown == "its reset has not ended"
        assert sysfs.read_sysfs_node(node.root, busy).function(OTHER).unknown is None
        with pytest.raises(hygiene_reset.ResetError, match="last reset has not ended"):
            hygiene_reset.reset_device(node.root, GPU, 20, folder)
    finally:
        # Read what it writes, and the reset is over.
        handle = os.open(node.devices / GPU / "reset", os.O_RDONLY)
        os.read(handle, 10)
        os.close(handle)
        worker.join()
    assert hygiene_reset.list_busy_resets(folder) == frozenset()


def test_a_process_that_looks_for_resets_does_not_fail_one(node):
    """It holds the lock for an instant, which is longer on a busy machine."""
    folder = node.root / "locks"
    hygiene_reset.reset_device(node.root, GPU, 20, folder)
    node.forget(GPU)
    with (folder / f"{GPU}.reset").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        argv = (node.root, GPU, 20, folder)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            reset = pool.submit(hygiene_reset.reset_device, *argv)
            while not _is_open_elsewhere(Path(lock.name)) and not reset.done():
                time.sleep(0.01)
            time.sleep(0.3)
            fcntl.flock(lock, fcntl.LOCK_UN)
            reset.result()
    assert node.resets(GPU)


def _is_open_elsewhere(path):
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if handle.parts[2] != str(os.getpid()) and handle.readlink() == path:
                return True
    return False


def test_a_device_that_disappears(node):
    sweep(node)
    node.step().give(ONE, node.candidates(GPU))
    shutil.rmtree(node.devices / GPU)
    assert node.step().take_back(ONE, {})[GPU] == "it has disappeared"
    node.add(GPU)
    assert node.step().give(TWO, node.candidates(GPU)) == {GPU: "suspect: it has disappeared"}
    assert record(node).server == ONE
    node.forget(GPU)
    assert sweep(node) == {}
    assert node.resets(GPU)
    assert (record(node).server, record(node).last_server) == (None, ONE)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda n: n.config(GPU, device=0x1FF0), "product_id is 1ff0"),
        (lambda n: shutil.rmtree(n.devices / GPU), "disappeared in its reset"),
        (lambda n: (_ for _ in ()).throw(RuntimeError("oops")), "cleaner failed: RuntimeError"),
    ],
)
def test_what_a_reset_can_leave_behind(node, damage, text):
    sweep(node)
    step = node.step(reset=lambda address: damage(node))
    step.give(ONE, node.candidates(GPU))
    assert text in step.take_back(ONE, {})[GPU]
    assert text in record(node).reason
    if "failed" in text:
        assert record(node).state is DeviceState.QUARANTINED
    else:
        # It was not clean, so it is cleaned again before anybody gets it.
        assert (record(node).state, record(node).server) == (DeviceState.SUSPECT, ONE)


#: Tells which files a program opens for writing, in their order.
TRACE = """\
import os, sys
def trace(event, arguments):
    if event == "open" and arguments[2] & os.O_WRONLY:
        os.write(2, f"{os.path.basename(arguments[0])} ".encode())
sys.addaudithook(trace)
"""


@pytest.mark.parametrize(
    ("master", "control", "written"),
    [
        (True, "auto", ["control", "config", "reset", "control"]),
        (True, "on", ["config", "reset"]),
        (False, "auto", ["control", "reset", "control"]),
    ],
)
def test_bus_mastering_ends_before_the_reset_of_a_device_that_is_awake(
    node, master, control, written
):
    """The kernel restores the bit after a reset, and when the device wakes up."""
    power = node.devices / GPU / "power/control"
    power.parent.mkdir()
    node.write(GPU, "power/control", control)
    node.config(GPU, master=master)
    folder = os.open(node.root, os.O_RDONLY)
    reset, config = (str(node.devices / GPU / name) for name in ("reset", "config"))
    argv = [reset, "1\n", str(folder), "lock", "", "", config, str(power), "1", "20"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", TRACE + hygiene_reset._WRITER, *argv],
        capture_output=True,
        text=True,
        check=False,
        pass_fds=[folder],
        timeout=120,
    )
    os.close(folder)
    assert (done.returncode, done.stdout, done.stderr.split()) == (0, "", written)
    assert power.read_text() == f"{control}\n"
    assert not node.masters(GPU)
    assert node.resets(GPU)


def test_a_reset_finds_the_files_by_which_bus_mastering_ends(node):
    (node.devices / GPU / "power").mkdir()
    node.write(GPU, "power/control", "auto")
    node.config(GPU, master=True)
    hygiene_reset.reset_device(node.root, GPU, 20, node.root / "locks")
    assert not node.masters(GPU)
    assert (node.devices / GPU / "power/control").read_text() == "auto\n"
    assert node.resets(GPU)


@pytest.mark.parametrize("driver", ["nvme", "mlx5_core", "uio_pci_generic"])
def test_a_reset_leaves_bus_mastering_to_a_driver_of_the_host(node, driver):
    node.bind(GPU, driver)
    node.config(GPU, master=True)
    try:
        hygiene_reset.reset_device(node.root, GPU, 20, node.root / "locks")
    except hygiene_reset.HeldError:
        assert driver == "uio_pci_generic"
    assert node.masters(GPU)


@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, b"\xff" * 5])
def test_a_command_register_that_is_unknown_is_not_written(node, content):
    (node.devices / GPU / "config").write_bytes(content)
    hygiene_reset.reset_device(node.root, GPU, 20, node.root / "locks")
    assert (node.devices / GPU / "config").read_bytes() == content


REFUSED = """\
import pathlib, sys
from nova_hpc.tenancy.hygiene import reset
root = pathlib.Path(sys.argv[1])
try:
    reset.reset_device(root, sys.argv[2], 20.0, root / "locks")
except reset.ResetError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up a capability for a child")
def test_bus_mastering_that_the_kernel_does_not_let_go(node):
    """As a kernel that is locked down; here the file may not be written."""
    node.config(GPU, master=True)
    (node.devices / GPU / "config").chmod(0o444)
    argv = ["setpriv", "--bounding-set=-dac_override", sys.executable, "-c", REFUSED]
    argv += [str(node.root), GPU]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    text = "bus mastering is on and cannot be switched off (permission denied): unbind it, "
    assert done.stdout.startswith(text), done.stderr
    assert not node.resets(GPU)
