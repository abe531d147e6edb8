# SPDX-License-Identifier: Apache-2.0
"""What install leaves, and the command as a single file."""

from __future__ import annotations

import ast
import base64
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from nova_hpc_guest import build, install
from tests.unit.guest.servers import fw_cfg_of, gpu_of, remove, run
from tests.unit.topology import nccl_reader


def test_install_and_what_it_leaves(guest):
    (guest.root / "etc").mkdir()
    (guest.root / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN")
    status, out, _ = run(guest, "install", "--profile")
    assert status == 0
    assert "added NCCL_TOPO_FILE to /etc/nccl.conf" in out
    assert (guest.root / "etc/nccl.conf").read_text() == (
        "NCCL_DEBUG=WARN\nNCCL_TOPO_FILE=/run/nova-hpc/nccl-topology.xml\n"
    )
    environment = guest.root / "run/nova-hpc/environment"
    assert environment.read_text() == "NCCL_TOPO_FILE=/run/nova-hpc/nccl-topology.xml\n"
    profile = guest.root / "etc/profile.d/nova-hpc.sh"
    subprocess.run(["sh", "-n", profile], check=True)
    # A second time nothing changes, and nothing is said.
    assert run(guest, "install", "--profile") == (0, "", "")
    # Those who are not root have a copy.
    fw_cfg = guest.root / "sys/firmware/qemu_fw_cfg"
    fw_cfg.rename(guest.root / "elsewhere")
    assert run(guest, "check")[0] == 0
    # Booted without a document: the old topology must not stay.
    (guest.root / "run/nova-hpc/guest.json").unlink()
    assert run(guest, "install", "--if-present") == (0, "", "")
    assert list((guest.root / "run/nova-hpc").iterdir()) == []


def test_install_leaves_the_choice_of_others(guest):
    (guest.root / "etc").mkdir()
    (guest.root / "etc/nccl.conf").write_text("NCCL_TOPO_FILE=/opt/mine.xml\n")
    status, out, _ = run(guest, "install")
    assert status == 0
    assert "/etc/nccl.conf names another NCCL_TOPO_FILE already" in out
    assert (guest.root / "etc/nccl.conf").read_text() == "NCCL_TOPO_FILE=/opt/mine.xml\n"


def test_install_does_not_follow_a_link(guest, tmp_path):
    (guest.root / "etc").mkdir()
    other = tmp_path / "other"
    other.write_text("mine\n")
    (guest.root / "etc/nccl.conf").symlink_to(other)
    status, _, err = run(guest, "install")
    assert status == 2
    assert err == ("nova-hpc-guest: /etc/nccl.conf: a symbolic link; it is not overwritten\n")
    assert other.read_text() == "mine\n"


def test_a_device_that_is_not_there_is_not_in_the_topology(guest):
    remove(guest, gpu_of(guest), None)
    status, out, _ = run(guest, "install")
    assert status == 0
    assert "device 0 is not in /run/nova-hpc/nccl-topology.xml" in out
    text = (guest.root / "run/nova-hpc/nccl-topology.xml").read_text()
    assert nccl_reader.devices(nccl_reader.read(text)).keys() == {"0000:24:00.0", "0000:31:00.0"}


def test_fill_leaves_what_is_no_placeholder():
    text = '<pci busid="ffff:ff:01.0">\n  <pci busid="device-1" class="0x03"/>\n</pci>\n'
    assert install.fill_in_addresses(text, {}) == ('<pci busid="ffff:ff:01.0">\n</pci>\n', [1])


# -- packed ----------------------------------------------------------------------


def test_the_single_file_needs_nothing_but_python(guest, tmp_path):
    target = tmp_path / "nova-hpc-guest"
    assert build.main([str(target)]) == 0
    assert target.read_bytes() == build.single_file()
    for arguments, status in ((["check"], 0), (["show"], 0), (["install"], 0)):
        done = subprocess.run(
            # No site-packages, no environment, nothing of this checkout.
            [sys.executable, "-I", "-S", target, *arguments, "--root", guest.root],
            capture_output=True,
            text=True,
            cwd="/",
            env={},
        )
        assert (done.returncode, done.stderr) == (status, "")
    executed = subprocess.run([target, "check", "--root", guest.root, "--quiet"], cwd="/")
    assert executed.returncode == 0
    # Neither a document nor the copy that install made.
    fw_cfg_of(guest).unlink()
    (guest.root / "run/nova-hpc/guest.json").unlink()
    assert subprocess.run([target, "check", "--root", guest.root], cwd="/").returncode == 2


def test_all_modules_are_packed():
    assert {f"{name}.py" for name in build._MODULES} == {
        module.name for module in Path(build.__file__).parent.glob("*.py")
    } - {"build.py", "completion.py", "hatch_build.py"}


def test_the_user_data(tmp_path):
    target = tmp_path / "user-data"
    assert build.main([str(target), "--cloud-config"]) == 0
    text = target.read_text()
    assert text.startswith("#cloud-config\n")
    found = yaml.safe_load(text)
    files = {
        each["path"]: gzip.decompress(base64.b64decode(each["content"]))
        for each in found["write_files"]
    }
    assert files[build.COMMAND] == build.single_file(accept=False)
    assert f"ExecStart={build.COMMAND} install".encode() in files[build.UNIT]
    shared = files[build.SHARED_UNIT]
    assert f"ExecStart={build.COMMAND} install --shared-memory".encode() in shared
    assert found["groups"] == ["hpc"]
    assert len(base64.b64encode(text.encode())) < 65536  # Nova's limit
    assert zipfile.is_zipfile(io.BytesIO(files[build.COMMAND]))
    # Twice the same: a user's data must not change by itself.
    assert build.cloud_config() == text


@pytest.mark.parametrize("name", build._MODULES)
def test_user_data_have_the_same_code(name):
    """Without comments and docstrings: the user data have no room for them."""

    def code_of(text):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, build._DOCUMENTED):
                if ast.get_docstring(node) is not None:
                    node.body[:1] = []
                node.body[:] = [each for each in node.body if not isinstance(each, ast.Pass)]
        return ast.dump(tree)

    text = (Path(build.__file__).parent / f"{name}.py").read_text()
    short = build.drop_comments(text)
    assert code_of(short) == code_of(text)
    assert short.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert '"""' not in short
    assert short.count("#") <= text.count("#")
    assert len(short) <= len(text)


def test_the_file_cannot_be_written(tmp_path, capsys):
    assert build.main([str(tmp_path / "no" / "where")]) == 2
    assert "No such file" in capsys.readouterr().err


# -- the element of diskimage-builder ----------------------------------------------


def element(capsys):
    assert build.main(["--elements"]) == 0
    return Path(capsys.readouterr().out.strip()) / "nova-hpc-guest"


def test_the_element_takes_the_command_its_unit_and_a_script_for_drivers(tmp_path, capsys):
    drivers = tmp_path / "my-drivers"
    drivers.write_text("#!/bin/sh\necho drivers\n")
    subprocess.run(
        [element(capsys) / "extra-data.d/50-nova-hpc-guest"],
        check=True,
        cwd="/",
        env={
            **os.environ,
            "TMP_HOOKS_PATH": str(tmp_path),
            "NOVA_HPC_PYTHON": sys.executable,
            "NOVA_HPC_DRIVERS": str(drivers),
            "NOVA_HPC_SHM_PACKAGE": str(drivers),
            "PYTHONPATH": str(Path(build.__file__).parents[1]),
        },
    )
    found = tmp_path / "nova-hpc"
    assert (found / "nova-hpc-guest").read_bytes() == build.single_file()
    assert f"ExecStart={build.COMMAND} install" in (found / "nova-hpc-guest.service").read_text()
    shared = (found / "nova-hpc-shared-memory.service").read_text()
    assert f"ExecStart={build.COMMAND} install --shared-memory" in shared
    assert all((found / unit).read_text() for unit in build.CLUSTER_UNITS)
    assert (found / "shm-package").read_bytes() == drivers.read_bytes()
    assert os.access(found / "drivers", os.X_OK)


@pytest.mark.parametrize(("name", "count"), [("nova-hpc-guest", 2), ("nova-hpc-cluster", 2)])
def test_the_hooks_of_an_element_are_programs(name, count, capsys):
    folder = element(capsys).parent / name
    hooks = [path for path in folder.rglob("*") if path.parent.name.endswith(".d")]
    assert len(hooks) == count
    for hook in (*hooks, *folder.glob("drivers/*")):
        assert os.access(hook, os.X_OK), hook
        assert subprocess.run(["bash", "-n", hook], check=False).returncode == 0


def test_other_names_of_packages_are_of_packages_that_the_element_installs(capsys):
    """A name that is in no list would leave the package of the other distributions out."""
    folder = element(capsys).parent / "nova-hpc-cluster"
    packages = {line.rstrip(":") for line in (folder / "package-installs.yaml").read_text().split()}
    families = json.loads((folder / "pkg-map").read_text())["family"]
    assert set(families) == {"debian", "redhat"}
    for names in families.values():
        assert set(names) < packages
    # It stands for packages whose names differ everywhere.
    assert all("network-setup" in names for names in families.values())


def test_a_file_has_to_be_named(capsys):
    with pytest.raises(SystemExit):
        build.main([])
    assert "FILE is missing" in capsys.readouterr().err


# -- where others could write --------------------------------------------------------


@pytest.mark.parametrize("link", ["run/nova-hpc", "run", "etc"])
def test_install_follows_no_link_to_a_directory(guest, tmp_path, link):
    other = tmp_path / "other"
    other.mkdir()
    (other / "guest.json").write_text("mine\n")
    place = guest.root / link
    if place.exists():
        place.rename(tmp_path / "before")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(other)
    status, _, err = run(guest, "install")
    assert status == 2
    assert err == f"nova-hpc-guest: /{link}: a symbolic link; it is not followed\n"
    assert {each.name for each in other.iterdir()} == {"guest.json"}
    assert (other / "guest.json").read_text() == "mine\n"
    # Nor is anything removed there, when the machine was given no document.
    fw_cfg_of(guest).unlink()
    run(guest, "install", "--if-present")
    assert (other / "guest.json").read_text() == "mine\n"


@pytest.mark.parametrize("what", ["link", "writable", "folder", "fifo"])
def test_a_copy_that_others_could_have_written_is_not_believed(guest, what):
    """For those who cannot read fw_cfg."""
    assert run(guest, "install")[0] == 0
    folder = guest.root / "run/nova-hpc"
    copy = folder / "guest.json"
    (guest.root / "sys/firmware/qemu_fw_cfg").rename(guest.root / "elsewhere")
    assert run(guest, "check")[0] == 0
    if what == "link":
        copy.rename(folder / "other.json")
        copy.symlink_to("other.json")
    elif what == "writable":
        copy.chmod(0o666)
    elif what == "folder":
        folder.chmod(0o777)
    else:
        copy.unlink()
        os.mkfifo(copy)
    status, _, err = run(guest, "check")
    assert status == 2
    words = {"link": "symbolic link", "fifo": "not a file"}.get(what, "others may write it")
    assert words in err


def test_what_others_could_have_written_is_replaced(guest):
    assert run(guest, "install")[0] == 0
    copy = guest.root / "run/nova-hpc/guest.json"
    copy.chmod(0o666)
    status, out, _ = run(guest, "install")
    assert (status, out) == (0, "wrote /run/nova-hpc/guest.json\n")
    assert copy.stat().st_mode & 0o777 == 0o644
    (guest.root / "run/nova-hpc").chmod(0o777)
    status, _, err = run(guest, "install")
    assert (status, err) == (2, "nova-hpc-guest: /run/nova-hpc: others may write it\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
@pytest.mark.parametrize("what", ["run/nova-hpc", "run/nova-hpc/guest.json"])
def test_what_is_of_another_user_is_not_used(guest, what):
    assert run(guest, "install")[0] == 0
    os.chown(guest.root / what, 65534, 65534)
    (guest.root / "sys/firmware/qemu_fw_cfg").rename(guest.root / "elsewhere")
    status, _, err = run(guest, "check")
    assert status == 2
    assert "of user 65534" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
@pytest.mark.parametrize(("group", "mode", "good"), [(65534, 0o664, False), (65534, 0o644, True)])
def test_what_another_group_may_write_is_not_used(guest, group, mode, good):
    assert run(guest, "install")[0] == 0
    copy = guest.root / "run/nova-hpc/guest.json"
    os.chown(copy, 0, group)
    copy.chmod(mode)
    (guest.root / "sys/firmware/qemu_fw_cfg").rename(guest.root / "elsewhere")
    status, _, err = run(guest, "check")
    assert status == (0 if good else 2)
    assert ("others may write it" in err) is not good


def test_a_umask_hides_nothing_from_users(guest):
    before = os.umask(0o077)
    try:
        assert run(guest, "install", "--profile")[0] == 0
    finally:
        os.umask(before)
    for name in ("run/nova-hpc", "etc/profile.d"):
        assert (guest.root / name).stat().st_mode & 0o777 == 0o755


def test_a_write_that_fails_leaves_nothing(guest, monkeypatch):
    assert run(guest, "install")[0] == 0
    copy = guest.root / "run/nova-hpc/guest.json"
    before = copy.read_bytes()
    copy.write_text("older\n")

    def full(*arguments, **names):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    status, _, err = run(guest, "install")
    assert status == 2
    assert "cannot be written: no space left on device" in err
    assert copy.read_text() == "older\n"
    assert not list(copy.parent.glob(".nova-hpc-*"))
    monkeypatch.undo()
    assert run(guest, "install")[0] == 0
    assert copy.read_bytes() == before


# -- the unit ------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_is_confined(tmp_path):
    text = (Path(build.__file__).parent / "data/nova-hpc-guest.service").read_text()
    unit = tmp_path / "nova-hpc-guest.service"
    unit.write_text(text.replace(f"{build.COMMAND} ", "/bin/true ").replace("slurmd", "basic"))
    seen = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (seen.returncode, seen.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--json=short", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in judged.stderr:
        pytest.skip("this systemd cannot judge a unit that is not loaded")
    # Others do not apply to root.
    bad = {each["name"] for each in json.loads(judged.stdout) if float(each["exposure"] or 0) > 0}
    # It is root, in the machine's own directory, and what it writes is for all to read.
    assert bad <= {
        "RootDirectory=/RootImage=",
        "User=/DynamicUser=",
        "PrivateMounts=",
        "RestrictAddressFamilies=~AF_UNIX",
        "ProcSubset=",
        "PrivateUsers=",
        "DeviceAllow=",
        "UMask=",
    }


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its capabilities")
def test_the_command_needs_no_capability(guest, tmp_path):
    """As its unit lets it run: root, and nothing of what root may."""
    target = tmp_path / "nova-hpc-guest"
    build.main([str(target)])
    argv = ["setpriv", "--bounding-set=-all", "--no-new-privs", "--reset-env"]
    done = subprocess.run(
        [*argv, sys.executable, "-I", "-S", target, "install", "--root", guest.root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (guest.root / "run/nova-hpc/guest.json").exists()
