# SPDX-License-Identifier: Apache-2.0
"""What the node's disks are made of."""

import configparser
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import confdisk, debian, image, python_env
from nova_hpc_lab.node.qemu import GPU_IDS, NVME_IDS, WIDE_GPU_IDS
from nova_hpc_lab.node.shape import Shape
from nova_hpc_lab.state import Paths
from tools.wheels import read_wheels

ONE_LINE = """\
deb [arch=amd64 signed-by=/k a] http://one/debian bookworm main contrib # why
#deb http://no x y
"""
STANZAS = """\
# a comment
Types: deb deb-src
URIs: http://two/debian
 http://three/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
Enabled: no
URIs: http://four/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://five/debian
Suites: bookworm
Components: main
"""


def test_apts_own_files_are_read(tmp_path):
    (tmp_path / "sources.list").write_text(ONE_LINE)
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "a.sources").write_text(STANZAS)
    (parts / "b.list").write_text("deb http://six/ ./\ndeb-src http://seven/ bookworm main\n")
    (parts / "c.list").write_bytes(b"\xff\xfe")
    assert list(debian.parse_sources(tmp_path)) == [
        ("http://one/debian", "bookworm", "main"),
        ("http://one/debian", "bookworm", "contrib"),
        ("http://two/debian", "bookworm", "main"),
        ("http://two/debian", "bookworm-updates", "main"),
        ("http://three/debian", "bookworm", "main"),
        ("http://three/debian", "bookworm-updates", "main"),
    ]


def test_a_machine_without_apt_has_no_repositories(tmp_path):
    assert list(debian.parse_sources(tmp_path)) == []


def test_the_mirror_is_an_address():
    assert debian.mirror().partition("://")[0] in ("http", "https", "file", "copy", "mirror+http")


def test_a_failing_mmdebstrap_is_told_with_its_words(tmp_path, monkeypatch):
    program = tmp_path / "mmdebstrap"
    program.write_text("#!/bin/sh\ncat >/dev/null\necho 'E: no such mirror' >&2\nexit 25\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LabError, match=r"status 25.*\n.*no such mirror"):
        debian.bootstrap(tmp_path / "root.tar", tmp_path / "log")


def test_a_machine_without_mmdebstrap_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="apt-get install mmdebstrap"):
        debian.bootstrap(tmp_path / "root.tar", tmp_path / "log")


@pytest.fixture
def venv(tmp_path):
    """An environment whose packages require each other as Nova's do."""
    packages = tmp_path / "venv/lib/python3.11/site-packages"

    def add(name, *requires, files=(), requires_extra=()):
        module = packages / name.replace("-", "_")
        module.mkdir(parents=True)
        (module / "__init__.py").write_text(f"NAME = {name!r}\n")
        for extra in files:
            path = packages / extra
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1\n")
        info = packages / f"{module.name}-1.0.dist-info"
        info.mkdir()
        lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {one}" for one in requires)]
        lines += [f"Requires-Dist: {one}; extra == {extra!r}" for extra, one in requires_extra]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, "", ""]))
        record = [f"{module.name}/__init__.py,,", "../../../bin/script,,", *files]
        (info / "RECORD").write_text("\n".join(f"{one}" for one in record) + "\n")

    add(
        "nova",
        "oslo-service[threading]>=4",
        "numpy",
        "Absent",
        'colorama; sys_platform == "win32"',
        files=("nova/tests/big.py", "nova/virt/driver.py", "loads-everything.pth"),
    )
    add(
        "oslo.service", "Pbr", requires_extra=[("threading", "cotyledon"), ("eventlet", "eventlet")]
    )
    for name in ("pbr", "cotyledon", "eventlet", "numpy", "colorama", "keystone", "cliff"):
        add(name)
    add("nova-hpc", "cliff", requires_extra=[("simulate", "keystone")])
    return tmp_path / "venv"


def test_the_node_gets_what_nova_and_the_project_require(venv):
    assert list(python_env.distributions(venv)) == [
        "cliff",
        "cotyledon",
        "nova",
        "oslo-service",
        "pbr",
    ]


def test_the_copy_runs_and_holds_neither_tests_nor_path_files(venv, tmp_path):
    root = tmp_path / "root"
    python_env.copy(venv, root)
    packages = root / python_env.PREFIX[1:] / "lib/python3.11/site-packages"
    assert (packages / "nova/virt/driver.py").exists()
    assert list((packages / "cotyledon/__pycache__").iterdir())
    assert not (packages / "nova/tests").exists()
    assert [path.name for path in packages.glob("*.pth")] == ["nova-hpc-project.pth"]
    assert not (packages / "nova_hpc").exists()
    script = root / python_env.PREFIX[1:] / "bin/nova-compute"
    assert script.read_text().startswith(f"#!{python_env.PREFIX}/bin/python\n")
    assert script.stat().st_mode & 0o111


def test_an_environment_without_nova_is_refused(tmp_path):
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    with pytest.raises(LabError, match=r"holds no Nova; .* pip install nova_hpc\*.whl"):
        python_env.distributions(tmp_path)


def test_an_environment_of_another_python_is_refused(tmp_path):
    (tmp_path / "lib/python3.99/site-packages").mkdir(parents=True)
    with pytest.raises(LabError, match=r"an environment of Python 3\.11"):
        python_env.distributions(tmp_path)


def test_another_set_of_packages_is_another_image(venv):
    paths = Paths(state=venv / "s", cache=venv / "c", venv=venv)
    before = image.image_name(paths)
    assert image.image_name(paths) == before
    metadata = venv / "lib/python3.11/site-packages/pbr-1.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    assert image.image_name(paths) != before


def test_an_image_that_was_not_made_is_told(venv):
    with pytest.raises(LabError, match="run: nova-hpc lab up"):
        image.find_image(Paths(state=venv / "s", cache=venv / "c", venv=venv))


def needs(program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def read_disk(disk, name):
    done = subprocess.run(["debugfs", "-R", f"cat {name}", disk], capture_output=True, check=True)
    return done.stdout.decode()


def make_disk(folder, files):
    target = folder / "config.disk"
    confdisk.make(target, "hpc2", 2, Shape.load("two-socket"), files, folder)
    return target


@pytest.fixture
def folder(tmp_path):
    needs("debugfs")
    needs("ssh-keygen")
    path = tmp_path / "hpc2"
    path.mkdir()
    return path


def test_the_configuration_disk_tells_the_node_what_to_be(folder):
    disk = make_disk(
        folder, {"nova.conf": "[DEFAULT]\nhost = hpc2\n", "nova.conf.d/x.conf": "#x\n"}
    )
    assert read_disk(disk, "nova/nova.conf") == "[DEFAULT]\nhost = hpc2\n"
    assert read_disk(disk, "nova/nova.conf.d/x.conf") == "#x\n"
    node = json.loads(read_disk(disk, "node.json"))
    assert (node["name"], node["gpus"], node["gpu_ids"]) == ("hpc2", 3, list(GPU_IDS))
    assert (node["wide_gpus"], node["wide_gpu_ids"]) == (0, list(WIDE_GPU_IDS))
    assert (node["nvmes"], node["nvme_ids"]) == (0, list(NVME_IDS))
    assert node["hugepages"] == [384, 640]
    assert [one["vfs"] for one in node["adapters"]] == [
        ["52:54:00:02:00:00", "52:54:00:02:00:01"],
        ["52:54:00:02:01:00", "52:54:00:02:01:01"],
        ["52:54:00:02:02:00", "52:54:00:02:02:01"],
    ]
    assert [(one["name"], one["network"], one["rail"]) for one in node["adapters"]] == [
        ("hca0", None, None),
        ("hca1", None, None),
        ("hca2", "physnet1", None),
    ]
    assert node["rail_network"] == "ibrail{n}"
    settings = configparser.ConfigParser()
    settings.read_string(read_disk(disk, "lab.conf"))
    assert settings["libvirt"]["cpu_mode"] == "host-passthrough"
    shared = int(settings["hpc"]["shared_memory_mb"]) * 2
    assert 0 < shared < int(settings["DEFAULT"]["reserved_host_memory_mb"])


def test_the_configuration_disk_carries_the_code_that_runs_now(folder):
    disk = make_disk(folder, {"nova.conf": ""})
    for package in (*read_wheels()["nova-hpc"].packages, "nova_hpc_common", "nova_hpc_tools"):
        if package == "neutron_drivers":
            continue
        here = Path(sys.modules["nova_hpc"].__file__).parents[1] / package / "__init__.py"
        assert read_disk(disk, f"project/{package}/__init__.py") == here.read_text()
    agent = Path(confdisk.__file__).parent / "inside" / "agent.py"
    assert read_disk(disk, "inside/agent.py") == agent.read_text()


def test_secrets_are_for_the_owner_only(folder):
    disk = make_disk(folder, {"nova.conf": "password"})
    for name in ("config.disk", "ssh-key", "ssh-host-key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert read_disk(disk, "keys/authorized") == (folder / "ssh-key.pub").read_text()
    assert read_disk(disk, "keys/host") == (folder / "ssh-host-key").read_text()


def test_a_node_stays_the_same_node(folder):
    first = json.loads(read_disk(make_disk(folder, {"nova.conf": ""}), "node.json"))["uuid"]
    key = (folder / "ssh-key").read_text()
    again = json.loads(read_disk(make_disk(folder, {"nova.conf": ""}), "node.json"))["uuid"]
    assert again == first
    assert (folder / "ssh-key").read_text() == key
    # Half a key pair, as an interruption leaves it, is replaced by a whole one.
    (folder / "ssh-key.pub").unlink()
    disk = make_disk(folder, {"nova.conf": ""})
    assert read_disk(disk, "keys/authorized") == (folder / "ssh-key.pub").read_text()
    assert (folder / "ssh-key").read_text() != key


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x"])
def test_files_stay_below_novas_folder(folder, name):
    with pytest.raises(LabError, match="no name of a file below /etc/nova"):
        make_disk(folder, {"nova.conf": "", name: ""})


def test_a_cloud_without_configuration_is_refused(folder):
    with pytest.raises(LabError, match=r"gave the node no nova\.conf"):
        make_disk(folder, {"other.conf": ""})
    assert not (folder / "config.disk").exists()
