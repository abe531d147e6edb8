# SPDX-License-Identifier: Apache-2.0
"""What tools/release.py compares; ``tox run -e release`` builds and installs for real."""

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.wheels import read_wheels

TOP = Path(__file__).resolve().parents[3]
WHEELS = read_wheels()
VERSION = WHEELS["nova-hpc-lab"].version


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release_tool", TOP / "tools/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tracked():
    done = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git repository")
    return done.stdout.splitlines()


def test_each_package_and_each_sample_is_expected_in_the_wheel(release, tracked):
    guest = release.list_expected_files(WHEELS["nova-hpc-guest"], tracked, VERSION)
    assert guest["nova_hpc_guest/accept/published.json"]
    assert not {f"nova_hpc_guest/{name}" for name in release.NOT_PACKED} & guest.keys()
    page = f"nova_hpc_guest-{VERSION}.data/data/share/man/man1/nova-hpc-guest.1"
    assert guest[page] == "nova_hpc_guest/man/nova-hpc-guest.1"
    expected = release.list_expected_files(WHEELS["nova-hpc"], tracked, VERSION)
    data = f"nova_hpc-{VERSION}.data/data/etc/nova-hpc"
    assert expected[f"{data}/metadefs/nova-hpc.json"] == "etc/metadefs/nova-hpc.json"
    assert expected[f"{data}/prometheus/nova-hpc.rules.yml"]
    assert expected["virt_driver_patches/shim/hpc.py"] == "virt_driver_patches/shim/hpc.py"
    assert not [name for name in expected if name.startswith("nova/")]
    assert not [name for name in expected if name.startswith(("tests/", "lab/", "nova_hpc_"))]
    lab = release.list_expected_files(WHEELS["nova-hpc-lab"], tracked, VERSION)
    assert lab["nova_hpc_lab/node/inside/agent.py"] == "lab/nova_hpc_lab/node/inside/agent.py"
    assert not [name for name in lab if not name.startswith("nova_hpc_lab/")]


def test_a_wheel_that_lacks_a_file_or_has_another_is_found(release):
    expected = {"a/__init__.py": "setup.py", "a/data.json": "setup.cfg"}
    whole = {name: (TOP / source).read_bytes() for name, source in expected.items()}
    assert release.compare_wheel(whole, expected, TOP) == []
    assert release.compare_wheel({**whole, "a/data.json": b""}, expected, TOP) == [
        "a/data.json is another file than setup.cfg"
    ]
    del whole["a/__init__.py"]
    assert release.compare_wheel(whole, expected, TOP) == ["a/__init__.py is missing"]


def test_two_wheels_are_the_same_but_for_how_they_were_packed(release):
    one = {"a.py": b"1", "a-1.dist-info/RECORD": b"x", "a-1.dist-info/pbr.json": b"x"}
    other = {**one, "a-1.dist-info/RECORD": b"y", "a-1.dist-info/pbr.json": b"y"}
    assert release.compare_wheels(one, other) == []
    assert release.compare_wheels(one, {**other, "a.py": b"2", "b.py": b""}) == ["a.py", "b.py"]


def test_archives_are_read_below_their_folder(release, tmp_path):
    (tmp_path / "inside").write_text("x")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "inside", "a-1/folder/inside")
    assert release.list_source_files(tmp_path / "a.tar.gz") == {"folder/inside"}
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("folder/inside", b"x")
    assert release.read_wheel(tmp_path / "a.whl") == {"folder/inside": b"x"}


def test_a_version_that_a_wheel_does_not_have_is_refused():
    words = [sys.executable, TOP / "tools/release.py", "build", "9.9.9"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"release: nova_hpc_common/pyproject.toml has the version {VERSION}, not 9.9.9\n"
    )


def test_both_distributions_carry_the_licence():
    assert (TOP / "lab" / "LICENSE").read_bytes() == (TOP / "LICENSE").read_bytes()
