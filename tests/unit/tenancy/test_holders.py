# SPDX-License-Identifier: Apache-2.0
"""Who has a device by the kernel's own answer: VFIO groups, IOMMUFD, drivers of the host."""

import contextlib
import errno
import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from nova_hpc.tenancy import holders
from nova_hpc.tenancy.holders import BIND, BIND_ARGUMENT, KernelHolder, VfioDoor
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.reset import HeldError, ResetError

from .hygiene_node import GPU, OTHER, PF, VF, make

VFIO_H = Path("/usr/include/linux/vfio.h")


@pytest.fixture
def node(tmp_path):
    return make(tmp_path, GPU, OTHER)


def look(node, *addresses):
    return holders.find_kernel_holders(node.root, addresses or (GPU, OTHER))


def test_nobody_has_what_can_be_opened(node):
    assert look(node) == {}


def test_a_process_keeps_everybody_out(node):
    with node.held(GPU):
        found = look(node)
    assert found.keys() == {GPU}
    assert "/dev/vfio/1" in found[GPU].text
    assert look(node) == {}


# Without CAP_SYS_ADMIN, with which root may open what is exclusive. Another user would have to
# reach this interpreter, which may lie in root's own home.
ORDINARY = ("setpriv", "--bounding-set=-sys_admin")
EXCLUSIVE = """\
import json, pathlib, sys
from nova_hpc.tenancy import holders
from nova_hpc.tenancy.hygiene import reset
root = pathlib.Path(sys.argv[1])
one = holders.find_kernel_holders(root, [sys.argv[2]])[sys.argv[2]]
try:
    reset.reset_device(root, sys.argv[2], 20.0, root / "locks")
    raised = None
except reset.ResetError as error:
    raised = type(error).__name__, str(error)
print(json.dumps([one.text, one.certain, raised]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up a capability for a child")
def test_a_busy_group_is_held_and_not_reset(node):
    """EBUSY from the kernel itself: a terminal that is open exclusively."""
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCEXCL)
    door = node.door(GPU)
    door.unlink()
    door.symlink_to(os.ttyname(inner))
    argv = [*ORDINARY, sys.executable, "-c", EXCLUSIVE, str(node.root), GPU]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    os.close(inner)
    os.close(outer)
    assert done.returncode == 0, done.stderr
    text, certain, raised = json.loads(done.stdout)
    assert certain
    assert text.startswith("a process of this host has /dev/vfio/1 open")
    assert raised == ["HeldError", text]
    assert not node.resets(GPU)


def test_a_group_without_its_file_is_no_answer(node):
    node.door(GPU).unlink()
    found = look(node)[GPU]
    assert not found.certain
    assert "there is no" in found.text
    assert "needs the host's /dev/vfio" in found.text


def test_no_group_is_no_answer(node):
    (node.devices / GPU / "iommu_group").unlink()
    assert look(node)[GPU] == KernelHolder("it is bound to vfio-pci and in no IOMMU group", False)


def test_what_is_not_there_has_nobody(node):
    assert look(node, "0000:99:00.0") == {}


def test_a_loop_of_links_is_no_answer(node):
    link = node.devices / GPU / "iommu_group"
    link.unlink()
    link.symlink_to(link.name)
    assert not look(node)[GPU].certain


def test_functions_of_a_group_share_its_answer(node):
    node.regroup(OTHER, 1)
    with node.held(GPU):
        assert look(node).keys() == {GPU, OTHER}


# -- the reset holds the group ------------------------------------------------------------


def reset(node, address=GPU, timeout=20.0):
    hygiene_reset.reset_device(node.root, address, timeout, node.file.locks)


def test_a_device_that_somebody_has_is_not_reset(node):
    with node.held(GPU), pytest.raises(HeldError, match="/dev/vfio/1"):
        reset(node)
    assert not node.resets(GPU)
    reset(node)
    assert node.resets(GPU)


def test_no_group_no_reset(node):
    node.door(GPU).unlink()
    with pytest.raises(HeldError, match="there is no"):
        reset(node)
    assert not node.resets(GPU)


@pytest.mark.parametrize("driver", [None, "nvidia", "pci-stub"])
def test_without_vfio_there_is_no_group_to_hold(node, driver):
    node.bind(GPU, driver)
    node.door(GPU).unlink()
    reset(node)
    assert node.resets(GPU)


def test_the_group_is_open_while_the_device_is_being_reset(node):
    """Whoever comes during a reset finds the group open: seen from outside, in /proc."""
    node.hang(GPU)
    seen, stop = [], threading.Event()

    def watch():
        while not seen and not stop.wait(0.02):
            for each in Path("/proc").glob("[0-9]*/fd/*"):
                with contextlib.suppress(OSError):
                    if each.readlink() == node.door(GPU):
                        seen.append(each)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.raises(ResetError, match="did not answer within 3 seconds"):
            reset(node, timeout=3.0)
    finally:
        stop.set()
        thread.join()
    assert seen


def test_a_group_is_a_number(node):
    """What another name would open below /dev/vfio is no group's."""
    link = node.devices / GPU / "iommu_group"
    link.unlink()
    link.symlink_to(node.root / "sys/kernel/iommu_groups/devices")
    (node.root / "dev/vfio/devices").touch()
    with pytest.raises(HeldError, match="in no IOMMU group"):
        reset(node)
    assert not node.resets(GPU)


def test_a_function_that_the_host_uses_is_not_reset(node):
    node.bind(GPU, "ice")
    net = node.devices / GPU / "net/ens1"
    net.mkdir(parents=True)
    (net / "flags").write_text("0x1003\n")
    (net / "master").symlink_to("/sys/class/net/bond0")
    with pytest.raises(HeldError, match="the host uses its network interface ens1"):
        reset(node)
    assert not node.resets(GPU)


def test_a_reset_that_fails_is_no_holder(node):
    path = node.devices / GPU / "reset"
    path.unlink()
    path.mkdir()
    with pytest.raises(ResetError, match="reset: not a file") as raised:
        reset(node)
    assert not isinstance(raised.value, HeldError)


# -- IOMMUFD ------------------------------------------------------------------------------


@pytest.fixture
def cdev(node):
    """A kernel that has the files of devices, and none of groups."""
    node.door(GPU).unlink()
    (node.devices / GPU / "vfio-dev/vfio7").mkdir(parents=True)
    (node.root / "dev/vfio/devices").mkdir()
    (node.root / "dev/vfio/devices/vfio7").touch()
    (node.root / "dev/iommu").touch()
    node.write(GPU, "enable", "1")
    return node


def test_the_number_of_the_call_is_the_kernels():
    # _IO(';', 100 + 18), and four times 32 bits.
    assert (BIND, struct.calcsize(BIND_ARGUMENT)) == (0x3B76, 16)
    if VFIO_H.exists():
        text = VFIO_H.read_text()
        assert "#define VFIO_TYPE\t(';')" in text
        assert "#define VFIO_BASE\t100" in text


@pytest.mark.parametrize(
    ("number", "certain"),
    [(errno.EBUSY, True), (errno.EINVAL, True), (errno.EPERM, False), (errno.ENOTTY, False)],
)
def test_a_device_that_is_bound_is_held(cdev, monkeypatch, number, certain):
    calls = []

    def ioctl(handle, request, argument):
        size, flags, iommu, _ = struct.unpack(BIND_ARGUMENT, argument)
        names = [str(Path(f"/proc/self/fd/{each}").readlink()) for each in (handle, iommu)]
        calls.append((names, request, size, flags))
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = look(cdev, GPU)[GPU]
    assert found.certain is certain
    assert "/dev/vfio/devices/vfio7" in found.text
    files = [str(cdev.root / "dev/vfio/devices/vfio7"), str(cdev.root / "dev/iommu")]
    assert calls[0] == (files, BIND, 16, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_device_that_can_be_bound_is_free(cdev, monkeypatch):
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: 0)
    assert look(cdev, GPU) == {}


def test_a_device_that_nobody_has_enabled_is_not_bound(cdev, monkeypatch):
    """Binding resets, which no look may do every minute."""
    monkeypatch.setattr(fcntl, "ioctl", pytest.fail)
    cdev.write(GPU, "enable", "0")
    assert look(cdev, GPU) == {}


def test_the_kernel_refuses_to_bind_a_file_that_is_no_device(cdev):
    """The real call on what is no device of VFIO's: no answer, and no reset."""
    assert look(cdev, GPU)[GPU].certain is False
    with pytest.raises(HeldError, match="vfio7 cannot be opened"):
        reset(cdev)
    assert not cdev.resets(GPU)


def test_the_group_comes_before_the_device(cdev):
    cdev.door(GPU).touch()
    assert holders.find_vfio_door(holders.FileTree(cdev.root), cdev.root, GPU) == VfioDoor(
        str(cdev.door(GPU))
    )


# -- drivers of the host --------------------------------------------------------------------


@pytest.mark.parametrize("driver", [None, "nvidia", "mlx5_core", "pci-stub"])
def test_a_driver_that_nobody_uses(node, driver):
    node.bind(GPU, driver)
    node.door(GPU).unlink()
    assert look(node) == {}


@pytest.mark.parametrize("driver", ["uio_pci_generic", "igb_uio"])
def test_uio_says_nothing(node, driver):
    node.bind(GPU, driver)
    found = look(node)[GPU]
    assert not found.certain
    assert driver in found.text


ROUTES = "Iface\tDestination\tGateway\n{name}\t00000000\t0101A8C0\n"
ADDRESS = "20010db8000000000000000000000001 04 40 {scope} 80    ens3v0\n"


@pytest.mark.parametrize(
    ("flags", "link", "routes", "addresses", "how"),
    [
        ("0x1003", "upper_bond0", ROUTES.format(name="eth0"), "", "part of another interface"),
        ("0x1003", "master", ROUTES.format(name="eth0"), "", "part of another interface"),
        ("0x1003", None, ROUTES.format(name="ens3v0"), "", "has a route"),
        ("0x1003", None, "", ADDRESS.format(scope="00"), "has an address"),
        ("0x1003", None, None, "", "/proc/net/route cannot be read"),
        ("", None, ROUTES.format(name="ens3v0"), "", "has a route"),
        ("x", None, ROUTES.format(name="ens3v0"), "", "has a route"),
        # A network manager has brought it up, and nobody uses it.
        ("0x1003", None, ROUTES.format(name="ens3v01"), ADDRESS.format(scope="20"), None),
        ("0x1002", "master", ROUTES.format(name="ens3v0"), ADDRESS.format(scope="00"), None),
    ],
)
def test_an_interface_that_the_host_uses(node, flags, link, routes, addresses, how):
    node.add(PF)
    node.add(VF, physfn=PF)
    node.bind(VF, "mlx5_core")
    folder = node.devices / VF / "net/ens3v0"
    folder.mkdir(parents=True)
    (folder / "flags").write_text(f"{flags}\n")
    if link is not None:
        (folder / link).symlink_to("../bond0")
    proc = node.root / "proc/net"
    proc.mkdir(parents=True, exist_ok=True)
    if routes is not None:
        (proc / "route").write_text(routes)
    (proc / "if_inet6").write_text(addresses)
    found = look(node, VF)
    assert bool(found) is (how is not None)
    if how is not None:
        assert "ens3v0" in found[VF].text
        assert how in found[VF].text


def test_disks(node, monkeypatch):
    node.bind(GPU, "nvme")
    disk = node.devices / GPU / "nvme/nvme0/nvme0n1"
    disk.mkdir(parents=True)
    folder = node.root / "sys/class/block"
    folder.mkdir(parents=True)
    (folder / "nvme0n1").symlink_to(os.path.relpath(disk.resolve(), folder))
    assert look(node)[GPU].certain is False  # its file is not there
    (node.root / "dev/nvme0n1").touch()
    assert look(node) == {}
    plain = os.open

    def busy(path, flags, *rest):
        if str(path).endswith("nvme0n1") and flags & os.O_EXCL:
            raise OSError(errno.EBUSY, "busy")
        return plain(path, flags, *rest)

    monkeypatch.setattr(os, "open", busy)
    assert look(node)[GPU] == KernelHolder(
        "the host uses its disk nvme0n1: it is mounted, or part of another"
    )


def test_an_infiniband_interface_that_is_up(node):
    """The host needs no address to speak InfiniBand by it."""
    node.bind(GPU, "mlx5_core")
    net = node.devices / GPU / "net/ib0"
    net.mkdir(parents=True)
    (net / "type").write_text("32\n")
    (net / "flags").write_text("0x1002\n")
    assert look(node) == {}
    (net / "flags").write_text("0x1003\n")
    assert "up and an InfiniBand interface" in look(node)[GPU].text


def test_a_disk_of_several_controllers_is_used(node):
    """Below none of them: the kernel's own multipath of NVMe."""
    node.bind(GPU, "nvme")
    controller = node.devices / GPU / "nvme/nvme0"
    controller.mkdir(parents=True)
    subsystem = node.root / "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    disk = subsystem / "nvme0n1"
    disk.mkdir(parents=True)
    (subsystem / "nvme0").symlink_to(os.path.relpath(controller, subsystem))
    for kind, name, place in (
        ("nvme-subsystem", "nvme-subsys0", subsystem),
        ("block", "nvme0n1", disk),
    ):
        folder = node.root / "sys/class" / kind
        folder.mkdir(parents=True)
        (folder / name).symlink_to(os.path.relpath(place, folder))
    assert "/dev/nvme0n1 cannot be opened" in look(node)[GPU].text
    (node.root / "dev/nvme0n1").touch()
    assert look(node) == {}
