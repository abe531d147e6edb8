# SPDX-License-Identifier: Apache-2.0
"""Resets that a vendor's cleaner declares: files, programs, and what must not be either."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from nova_hpc.tenancy.hygiene import cleaner, own_reset
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.own_reset import ADDRESS, ResetFile, ResetProgram
from nova_hpc.topology import handles
from nova_hpc.topology.files import FileError
from tests.unit.tenancy.hygiene_node import GPU, OTHER, has_ended, record, why

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
FILE = ResetFile("engines", "acme/reset_engines", "all\n")

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="a program has to belong to root")


@pytest.fixture
def acme(node):
    """The node, whose devices have the file; its path on one of them."""
    for address in (GPU, OTHER):
        (node.devices / address / "acme").mkdir()
        (node.devices / address / FILE.path).write_text("")
    return node.devices / GPU / FILE.path


def reset(node, own, timeout=20.0):
    hygiene_reset.reset_device(node.root, GPU, timeout, node.file.locks, own)


def program(folder, body, mode=0o755):
    path = folder / "acme-reset"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return path


def tool(path, *arguments):
    return ResetProgram("tool", str(path), arguments)


# -- declarations -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../0000:42:00.0/reset",
        "/sys/kernel/reboot",
        "acme/../../reset",
        "",
        "acme//reset",
        "acme/reset/",
        ".",
        "acme/.",
        "0000:42:00.0/reset",
        "0000:42:00.0",
        "acme/\n",
        "acme/re set",
        "\u0661",
        "/".join("abcdefghi"),
        None,
        b"acme",
    ],
)
def test_a_path_that_leaves_the_device(path):
    assert own_reset.explain_bad_declaration((ResetFile("a", path),)) is not None


@pytest.mark.parametrize("text", ["", "\n", "a\nb\n", "a\0", "\u0661", "x" * 4096, None, b"1"])
def test_a_text_that_no_file_of_a_device_takes(text):
    assert own_reset.explain_bad_declaration((ResetFile("a", "reset_a", text),)) is not None


@pytest.mark.parametrize(
    "own",
    [
        ResetProgram("a", "acme-reset"),
        ResetProgram("a", "./acme-reset"),
        ResetProgram("a", "/usr/../tmp/acme"),
        ResetProgram("a", "/"),
        ResetProgram("a", ""),
        ResetProgram("a", None),
        ResetProgram("a", "/usr/sbin/acme", ["-a"]),
        ResetProgram("a", "/usr/sbin/acme", (1,)),
        ResetProgram("a", "/usr/sbin/acme", ("a\nb",)),
        ResetProgram("a", "/usr/sbin/acme", ("a",) * 33),
        ResetProgram("A b", "/usr/sbin/acme"),
        ResetProgram(None, "/usr/sbin/acme"),
        "/usr/sbin/acme",
        None,
    ],
)
def test_a_program_that_is_none(own):
    assert own_reset.explain_bad_declaration((own,)) is not None


def test_declarations():
    program = ResetProgram("tool", "/usr/sbin/acme-reset", ("-d", f"pci={ADDRESS}", "{other} $x"))
    assert own_reset.explain_bad_declaration(()) is None
    assert own_reset.explain_bad_declaration((FILE, program)) is None
    assert program.argv(GPU) == ["/usr/sbin/acme-reset", "-d", f"pci={GPU}", "{other} $x"]
    assert "another reset" in own_reset.explain_bad_declaration((FILE, FILE))
    assert "no tuple" in own_reset.explain_bad_declaration([FILE])


# -- files ------------------------------------------------------------------------------


def test_a_file_of_the_device(node, acme):
    node.config(GPU, master=True)
    (node.devices / GPU / "reset").unlink()
    reset(node, FILE)
    assert acme.read_text() == "all\n"
    assert (node.devices / OTHER / FILE.path).read_text() == ""
    assert not node.masters(GPU)


def _link_file(device, acme):
    acme.unlink()
    acme.symlink_to(device.parent / OTHER / "reset")


def _link_folder(device, acme):
    acme.unlink()
    acme.parent.rmdir()
    acme.parent.symlink_to(device.parent / OTHER / "acme")


def _folder(device, acme):
    acme.unlink()
    acme.mkdir()


def _file_as_folder(device, acme):
    acme.unlink()
    acme.parent.rmdir()
    acme.parent.write_text("")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_link_file, "reset_engines is a link, which may lead to another device"),
        (_link_folder, "acme is a link, which may lead to another device"),
        (_folder, "not a file"),
        (_file_as_folder, "it has no file acme/reset_engines, which resets it"),
        (lambda device, acme: acme.unlink(), "it has no file acme/reset_engines"),
    ],
)
def test_a_file_that_is_not_the_devices(node, acme, damage, text):
    damage(node.devices / GPU, acme)
    with pytest.raises(hygiene_reset.ResetError, match=text):
        reset(node, FILE)
    assert own_reset.explain_unready_reset(node.root, GPU, FILE) is not None
    assert not node.resets(GPU)
    assert not node.resets(OTHER)
    assert (node.devices / OTHER / FILE.path).read_text() == ""


@pytest.mark.parametrize("name", ["..", f"../{OTHER}/reset", "acme/../reset", "", "acme//x", "."])
def test_parts_that_lead_up(node, acme, name):
    with (
        pytest.raises(FileError, match="out of the device's directory"),
        handles.device_file(node.root, f"/sys/bus/pci/devices/{GPU}", name),
    ):
        pass


def test_a_file_of_the_physical_function(node, acme):
    (node.devices / GPU / "physfn").symlink_to(node.devices / OTHER)
    with pytest.raises(hygiene_reset.ResetError, match="physfn is a link"):
        reset(node, ResetFile("pf", "physfn/reset"))
    assert not node.resets(OTHER)


def test_a_write_that_hangs_keeps_the_lock(node, acme):
    acme.unlink()
    os.mkfifo(acme)
    worker = threading.Thread(target=reset, args=(node, FILE))
    worker.start()
    try:
        while hygiene_reset.list_busy_resets(node.file.locks) != {GPU}:
            time.sleep(0.01)
        for own in (None, FILE):
            with pytest.raises(hygiene_reset.ResetError, match="last reset has not ended"):
                reset(node, own)
    finally:
        with acme.open() as reader:
            assert reader.read() == "all\n"
        worker.join()
    with pytest.raises(hygiene_reset.ResetError, match=r"did not answer within 0\.5 seconds"):
        reset(node, FILE, timeout=0.5)
    assert hygiene_reset.list_busy_resets(node.file.locks) == frozenset()


@only_root
def test_a_device_that_a_process_has_is_not_reset(node, acme, tmp_path):
    path = program(tmp_path, f"touch {tmp_path}/ran")
    with node.held(GPU):
        for own in (FILE, tool(path)):
            with pytest.raises(hygiene_reset.HeldError, match="/dev/vfio/"):
                reset(node, own)
    assert acme.read_text() == ""
    assert not (tmp_path / "ran").exists()


def test_a_file_that_refuses(node, acme, monkeypatch):
    # /dev/full refuses every write; the tests have it in the place of a file of sysfs.
    monkeypatch.setattr(handles, "_expect_kernels", lambda *_: None)
    acme.unlink()
    subprocess.run(["mknod", str(acme), "c", "1", "7"], check=False)
    if not acme.exists():
        pytest.skip("only root makes device nodes")
    with pytest.raises(hygiene_reset.ResetError, match="by file acme/reset_engines failed: no sp"):
        reset(node, FILE)


# -- programs ---------------------------------------------------------------------------


@only_root
def test_a_program(node, tmp_path):
    body = 'echo "$0 $*"; umask; env; ls -l /proc/self/fd | sed "s/.* -> //"; exit 3'
    path = program(tmp_path, body)
    with pytest.raises(hygiene_reset.ResetError) as raised:
        reset(node, tool(path, "--device", ADDRESS))
    text = str(raised.value)
    begin = f"its reset by program {path} failed with status 3: {path} --device {GPU} 0022 "
    assert text.startswith(begin)
    # What it inherits besides: the lock and the group, for as long as it runs.
    path = program(tmp_path, f'ls -l /proc/self/fd | sed "s/.* -> //" >{tmp_path}/files')
    reset(node, tool(path))
    files = (tmp_path / "files").read_text().split()
    assert str(node.file.locks / f"{GPU}.reset") in files
    assert str(node.door(GPU)) in files
    assert not [each for each in files if each.startswith((str(node.devices), "/memfd:report"))]
    assert not node.resets(GPU)


@only_root
def test_bus_mastering_ends_before_a_program(node, tmp_path):
    node.config(GPU, master=True)
    path = program(tmp_path, f"od -An -tx1 -j4 -N1 {node.devices}/$1/config >{tmp_path}/command")
    reset(node, tool(path, ADDRESS))
    assert (tmp_path / "command").read_text().strip() == "00"


@only_root
def test_words_of_a_program_cannot_be_taken_for_ours(node, tmp_path):
    for body in ("printf 'lock 11'; exit 1", "printf 'group 16'; exit 1"):
        with pytest.raises(hygiene_reset.ResetError, match="failed with status 1: ") as raised:
            reset(node, tool(program(tmp_path, body)))
        assert not isinstance(raised.value, hygiene_reset.HeldError)
    path = program(tmp_path, r"printf '\033[2J\nevil'; exit 1")
    with pytest.raises(hygiene_reset.ResetError, match=r"status 1: \\u001b\[2J evil"):
        reset(node, tool(path))
    path = program(tmp_path, "kill -9 $$")
    with pytest.raises(hygiene_reset.ResetError, match="failed with status -9: no message"):
        reset(node, tool(path))


@only_root
def test_a_program_that_hangs_is_killed_with_its_children(node, tmp_path):
    path = program(tmp_path, f"sleep 600 & echo $! >{tmp_path}/child; wait")
    # Long enough for a busy machine to start it.
    with pytest.raises(hygiene_reset.ResetError, match="did not answer within 5 seconds"):
        reset(node, tool(path), timeout=5.0)
    child = int((tmp_path / "child").read_text())
    assert has_ended(child)
    # The kernel ends the members of the group one by one.
    while hygiene_reset.list_busy_resets(node.file.locks):
        time.sleep(0.01)


@only_root
def test_a_process_that_a_program_leaves_keeps_the_device(node, tmp_path):
    path = program(tmp_path, f"setsid sleep 600 & echo $! >{tmp_path}/child")
    reset(node, tool(path))
    assert hygiene_reset.list_busy_resets(node.file.locks) == {GPU}
    with pytest.raises(hygiene_reset.ResetError, match="last reset has not ended"):
        reset(node, FILE if (node.devices / GPU / FILE.path).exists() else None)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    while hygiene_reset.list_busy_resets(node.file.locks):
        time.sleep(0.01)


SERVICE = """\
import pathlib, sys
from nova_hpc.tenancy.hygiene import reset
from nova_hpc.tenancy.hygiene.own_reset import ResetProgram
root, address, locks, path = sys.argv[1:]
own = ResetProgram("tool", path)
reset.reset_device(pathlib.Path(root), address, 8.0, pathlib.Path(locks), own)
"""


@only_root
def test_a_program_ends_in_time_although_the_service_was_killed(node, tmp_path):
    path = program(tmp_path, f"echo $$ >{tmp_path}/pid; sleep 600")
    argv = [sys.executable, "-c", SERVICE, str(node.root), GPU, str(node.file.locks), str(path)]
    with subprocess.Popen(argv) as service:
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
            assert service.poll() is None
            time.sleep(0.01)
        service.kill()
    assert hygiene_reset.list_busy_resets(node.file.locks) == {GPU}
    assert has_ended(int((tmp_path / "pid").read_text()), 60.0)
    while hygiene_reset.list_busy_resets(node.file.locks):
        time.sleep(0.01)


def _not_roots(folder, path):
    os.chown(path, 65534, 65534)


def _folder_not_roots(folder, path):
    os.chown(folder, 65534, 65534)


def _link_of_another_user(folder, path):
    path.rename(folder / "real")
    path.symlink_to(folder / "real")
    os.lchown(path, 65534, 65534)


def _link_to_what_others_have(folder, path):
    path.unlink()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    elsewhere.chmod(0o777)
    path.symlink_to(program(elsewhere, "exit 0"))


@only_root
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_not_roots, "acme-reset does not belong to root"),
        (_folder_not_roots, "tools does not belong to root"),
        (lambda folder, path: path.chmod(0o775), "others than root may write acme-reset"),
        (lambda folder, path: path.chmod(0o757), "others than root may write acme-reset"),
        (lambda folder, path: folder.chmod(0o775), "others than root may write tools"),
        (lambda folder, path: path.chmod(0o644), "it is no program"),
        (lambda folder, path: path.unlink(), "no such file"),
        (_link_of_another_user, "acme-reset does not belong to root"),
        (_link_to_what_others_have, "others than root may write elsewhere"),
    ],
)
def test_a_program_that_another_user_may_change(node, tmp_path, damage, text):
    folder = tmp_path / "tools"
    folder.mkdir(mode=0o755)
    path = program(folder, f"touch {tmp_path}/ran")
    damage(folder, path)
    with pytest.raises(hygiene_reset.ResetError, match=text):
        reset(node, tool(path))
    assert text in own_reset.explain_unready_reset(node.root, GPU, tool(path))
    assert not (tmp_path / "ran").exists()
    assert not node.resets(GPU)


@only_root
def test_a_program_behind_links_of_root(node, tmp_path):
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    path = program(folder, f"touch {tmp_path}/ran")
    (tmp_path / "link").symlink_to("sticky/../sticky")
    reset(node, tool(tmp_path / "link/acme-reset"))
    assert (tmp_path / "ran").exists()
    (folder / "loop").symlink_to("loop")
    with pytest.raises(hygiene_reset.ResetError, match="a loop of symbolic links"):
        reset(node, tool(folder / "loop"))
    # The kernel refuses it, so its error is told.
    path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(hygiene_reset.ResetError, match="acme-reset failed: no such file"):
        reset(node, tool(path))


# -- a cleaner between two servers ------------------------------------------------------


@pytest.fixture
def cleaners(vendor):
    """The cleaners of the example distribution, by their entry points."""

    def load(node, name):
        tools = cleaner.CleanerTools(
            root=node.root,
            timeout=20.0,
            reset=hygiene_reset.reset_call(node.root, 20.0, node.file.locks),
        )
        return cleaner.load_cleaners({"gpu": name} if name else {}, tools)

    return load


ROLES = {GPU: "gpu", OTHER: "gpu"}


def without_kernel_reset(node):
    for address in (GPU, OTHER):
        for name in ("reset", "reset_method"):
            (node.devices / address / name).unlink()


def test_a_device_is_cleaned_by_its_own_reset(node, acme, cleaners):
    without_kernel_reset(node)
    step = node.step(cleaners=cleaners(node, "acme"))
    assert step.give(ONE, node.candidates(GPU)) == {}
    assert step.take_back(ONE, ROLES) == {}
    assert acme.read_text() == "all\n"
    assert record(node).server is None
    assert step.give(TWO, node.candidates(GPU)) == {}


def test_a_cleaner_that_is_removed_while_its_device_waits(node, acme, cleaners):
    without_kernel_reset(node)
    assert node.step(cleaners=cleaners(node, "acme")).give(ONE, node.candidates(GPU)) == {}
    plain = node.step(cleaners=cleaners(node, None))
    assert "no way to reset" in plain.take_back(ONE, ROLES)[GPU]
    assert "no way to reset" in why(node)
    assert list(plain.give(TWO, node.candidates(GPU))) == [GPU]
    assert acme.read_text() == ""
    # It comes back, and an operator releases the device: it is cleaned first.
    step = node.step(cleaners=cleaners(node, "acme"))
    step.release(node.candidates(GPU)[GPU])
    assert acme.read_text() == "all\n"
    assert step.give(TWO, node.candidates(GPU)) == {}


def test_a_cleaner_with_two_resets(node, acme, cleaners):
    card, state = acme.parent / "reset_card", acme.parent / "state"
    card.write_text("")
    state.write_text("idle\n")
    step = node.step(cleaners=cleaners(node, "acme-choosy"))
    step.give(ONE, node.candidates(GPU))
    assert step.take_back(ONE, ROLES) == {}
    assert (card.read_text(), acme.read_text()) == ("1\n", "")
    assert not node.resets(GPU)
    step.give(ONE, node.candidates(GPU))
    state.write_text("busy\n")
    assert "firmware is not idle" in step.take_back(ONE, ROLES)[GPU]
    assert "firmware is not idle" in why(node)
