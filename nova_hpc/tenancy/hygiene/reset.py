# SPDX-License-Identifier: Apache-2.0
"""Resets a device without blocking this process.

The kernel resets during the write to ``reset``, and a device that
does not recover can block that write for minutes or forever. So a separate
process makes the write, and is left behind when its time is up. It holds
a lock while it lives. So every process, also after a restart of the service,
sees which configuration spaces must not be read now: the
kernel would block the reader until the reset has ended. The process also
holds the device's VFIO group: a device in use is not reset, and
no server gets the device before the reset has ended.

The kernel saves the command register before a reset and before a device sleeps, and
restores it afterwards. So bus mastering that firmware left on outlives both. The process
wakes a device that no driver of the host has, switches the bit off, and then resets it.

A cleaner of a vendor may reset by a file of its own or by a program
(:mod:`nova_hpc.tenancy.hygiene.own_reset`): the same process then writes that file or starts
that program. The program inherits the lock and the group, so both last as long as it runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from nova_hpc.tenancy import holders
from nova_hpc.tenancy.hygiene.own_reset import OwnReset, ResetFile, ResetProgram
from nova_hpc.tenancy.programs import ends_in_time
from nova_hpc.topology import confspace, handles
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import normalise_address
from nova_hpc.topology.vfio import Vfio, vfio_of_driver
from nova_hpc_common.outside.text import printable_text

#: It also works on a locked-down kernel, which refuses writes to ``config``.
CURE_OF_MASTERING: Final = (
    "unbind it, write 1 and then 0 to its file enable, bind it, and run nova-hpc device release {}"
)
_NO_ANSWER: Final = "it did not answer within {:g} seconds"
#: Seconds for which the writer waits for the group: others of this project look at it.
_GROUP: Final = 2.0
#: Seconds that the writer waits for the lock: list_busy_resets() of another process holds it
#: for an instant.
_LOCK: Final = 2.0
#: Seconds after the deadline at which the writer ends a program by itself, because the service,
#: which does that first, was killed.
_SPARE: Final = 2.0
#: The kernel resets a device when this text is written.
_RESET_TEXT: Final = "1\n"
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
#: Writes without truncating or creating. It reports the failed step and the error's number in a
#: file of its own, because a program may print anything. Its caller passes open handles, so no
#: path is looked up again.
_WRITER: Final = f"""\
import errno, fcntl, os, struct, sys, time
path, text, folder, lock, group, iommu, config, power, report, seconds, *program = sys.argv[1:]
flags = os.O_RDWR | os.O_CLOEXEC
kept = []
def enter():
    if iommu:
        kept.append(os.open(iommu, flags))
    kept.append(os.open(group, flags))
    if iommu:
        size = struct.calcsize("{holders.BIND_ARGUMENT}")
        argument = struct.pack("{holders.BIND_ARGUMENT}", size, 0, kept[0], 0)
        fcntl.ioctl(kept[1], {holders.BIND}, argument)
def write(path, data, offset=None):
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(handle, data) if offset is None else os.pwrite(handle, data, offset)
    os.close(handle)
def read(path, size, offset=0):
    with open(path, "rb", 0) as file:
        return os.pread(file.fileno(), size, offset)
def run():
    import signal
    os.umask(0o022)
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(name), int(name) < 3 or int(name) in [handle, *kept])
        except OSError:
            pass
    end = time.monotonic() + float(seconds)
    words = {{"PATH": "{_PATH}", "LC_ALL": "C"}}
    child = os.posix_spawn(path, program, words, setsigdef=[signal.SIGPIPE])
    pause = 0.001
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.killpg(0, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
try:
    what = "lock"
    made = flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(lock, made, 0o644, dir_fd=int(folder))
    end = time.monotonic() + {_LOCK}
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno != errno.EAGAIN or time.monotonic() > end:
                raise
            time.sleep(0.02)
    what = "group"
    end = time.monotonic() + {_GROUP}
    while group:
        try:
            enter()
            break
        except OSError as error:
            while kept:
                os.close(kept.pop())
            busy = error.errno == errno.EBUSY or (iommu and error.errno == errno.EINVAL)
            if not busy or time.monotonic() > end:
                raise
            time.sleep(0.02)
    what = "reset"
    sleeps = read(power, 16) == b"auto\\n"
    if sleeps:
        write(power, b"on\\n")
    try:
        command = read(config, 2, {confspace.COMMAND})
        if command[:1] != b"\\xff" and len(command) == 2 and command[0] & {confspace.BUS_MASTER}:
            what = "master"
            command = bytes((command[0] & ~{confspace.BUS_MASTER}, command[1]))
            write(config, command, {confspace.COMMAND})
            what = "reset"
        if program:
            what = "program"
            status = run()
            if status:
                os.write(int(report), b"status %d" % status)
                os._exit(1)
        else:
            write(path, text.encode())
    finally:
        if sleeps:
            write(power, b"auto\\n")
except OSError as error:
    os.write(int(report), f"{{what}} {{error.errno or 0}}".encode())
    os._exit(1)
os._exit(0)
"""

_SUFFIX: Final = ".reset"
_GRACE: Final = 0.1
_LONGEST: Final = 1 << 16
_QUOTE: Final = 200


class ResetError(Exception):
    """A PCI device was not reset, or its state after the reset is unknown."""


class HeldError(ResetError):
    """A device was not touched, because it is in use, or may be in use."""


def run_with_deadline(
    argv: Sequence[str], timeout: float, passed: Collection[int] = ()
) -> tuple[int, str]:
    """Run a program that may never end.

    :param timeout: seconds; afterwards the program is killed, and left behind if the
        kernel does not release it.
    :param passed: open files that it inherits, by the same numbers.
    :returns: exit status and output.
    :raises ResetError: it did not end in time, or cannot be started.
    """
    # Use no pipe and no wait of the standard library: eventlet's version
    # raises other exceptions than documented.
    with os.fdopen(os.memfd_create("output"), "w+b") as output:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(passed),
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            )
        except OSError as error:
            raise ResetError(f"cannot start {argv[0]}: {error}") from error
        if not ends_in_time(process, timeout, _GRACE):
            raise ResetError(_NO_ANSWER.format(timeout))
        output.seek(0)
        return process.returncode, output.read(_LONGEST).decode("utf-8", "replace")


def list_busy_resets(*folders: Path) -> frozenset[str]:
    """Return the addresses of the devices whose reset has not ended.

    :param folders: the folders with the locks of :func:`reset_device`.
    """
    lock_paths: list[Path] = []
    for folder in folders:
        with contextlib.suppress(OSError):
            lock_paths += folder.glob(f"*{_SUFFIX}")
    return frozenset(path.name.removesuffix(_SUFFIX) for path in lock_paths if _is_locked(path))


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def reset_device(
    root: Path, address: str, timeout: float, folder: Path, own: OwnReset | None = None
) -> None:
    """Reset the device at *address*, without bus mastering if it is unused.

    :param root: where ``sys`` is.
    :param timeout: seconds.
    :param folder: where the locks are kept; made when it is not there.
    :param own: the reset that the device's cleaner declares; None: the kernel's.
    :raises HeldError: it is in use, or that is unknown; nothing was done.
    :raises ResetError: there is no way, it failed, or took too long.
    """
    address = normalise_address(address)
    tree = FileTree(root)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_hold_target(root, address, own))
        try:
            mended = [
                stack.enter_context(handles.kernel_file(root, f"{DEVICES}/{address}/{name}"))
                for name in ("config", "power/control")
                # A driver of the host masters the bus by right.
                if _is_unused_by_host(tree, address)
            ] or [None, None]
            there = holders.find_vfio_door(tree, root, address)
        except FileError as error:
            raise HeldError(str(error)) from error
        if (
            there is None
            and (user := holders.find_kernel_holders(root, [address]).get(address)) is not None
        ):
            raise HeldError(user.text)
        try:
            locks = stack.enter_context(handles.hold_folder(folder, make=True))
        except OSError as error:
            raise ResetError(f"cannot make the directory of locks {folder}: {error}") from error
        report = stack.enter_context(os.fdopen(os.memfd_create("report"), "w+b")).fileno()
        nodes = ["", ""] if there is None else [there.path, there.iommu or ""]
        program = own.argv(address) if isinstance(own, ResetProgram) else []
        argv = [program[0] if file is None else handles.path_of_handle(file)]
        argv += [own.text if isinstance(own, ResetFile) else _RESET_TEXT]
        argv += [str(locks), f"{address}{_SUFFIX}", *nodes]
        argv += [os.devnull if each is None else handles.path_of_handle(each) for each in mended]
        argv += [str(report), str(timeout + _SPARE), *program]
        passed = [locks, report, *(each for each in (file, *mended) if each is not None)]
        status, output = run_with_deadline(
            [sys.executable, "-I", "-S", "-c", _WRITER, *argv], timeout, passed
        )
        failure = os.pread(report, _LONGEST, 0).decode("ascii", "replace")
    if status == 0:
        return
    what, _, text = failure.partition(" ")
    number = int(text) if text.isascii() and text.removeprefix("-").isdigit() else 0
    if what == "group" and there is not None:
        raise HeldError(holders.explain_closed_door(there, number).text)
    if what == "lock" and number == errno.EAGAIN:
        raise ResetError("its last reset has not ended")
    if what == "status":
        said = printable_text(" ".join(output.split()))[:_QUOTE]
        raise ResetError(f"its reset by {own} failed with status {number}: {said or 'no message'}")
    reason = os.strerror(number).lower() if number else f"status {status}"
    if what == "master":
        cure = CURE_OF_MASTERING.format(address)
        raise ResetError(f"bus mastering is on and cannot be switched off ({reason}): {cure}")
    raise ResetError(f"its reset{'' if own is None else f' by {own}'} failed: {reason}")


def reset_call(root: Path, timeout: float, folder: Path) -> Callable[..., None]:
    """Return :func:`reset_device` with the settings of a node, as cleaners call it."""

    def reset(address: str, own: OwnReset | None = None, /) -> None:
        reset_device(root, address, timeout, folder, own)

    return reset


@contextlib.contextmanager
def _hold_target(root: Path, address: str, own: OwnReset | None) -> Iterator[int | None]:
    """Hold the file to which a reset is written; None if it is a program, which is checked.

    :raises ResetError: it is not there, or cannot be trusted.
    """
    folder = f"{DEVICES}/{address}"
    with contextlib.ExitStack() as stack:
        file = None
        try:
            if isinstance(own, ResetProgram):
                handles.expect_program_of_root(own.path)
            elif own is not None:
                file = stack.enter_context(handles.device_file(root, folder, own.path))
            else:
                file = stack.enter_context(handles.kernel_file(root, f"{folder}/reset"))
        except FileError as error:
            raise ResetError(str(error)) from error
        if file is None and not isinstance(own, ResetProgram):
            missing = "the kernel knows no way to reset it"
            raise ResetError(missing if own is None else f"it has no {own}, which resets it")
        yield file


def _is_unused_by_host(tree: FileTree, address: str) -> bool:
    """Return whether no host driver uses the device: it has none, or a VFIO driver for guests.

    The configuration space is not read, unlike in the function of this name in ``snapshots``.
    """
    base = f"{DEVICES}/{address}"
    targets = [tree.target(f"{base}/{link}") for link in ("driver", "physfn/driver")]
    driver, parent = (target and target.rpartition("/")[2] for target in targets)
    names = tree.names(f"{base}/vfio-dev")
    return driver is None or vfio_of_driver(tree, driver, names, parent) is Vfio.GUEST
