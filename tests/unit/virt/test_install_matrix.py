# SPDX-License-Identifier: Apache-2.0
"""nova-compute finds the driver however Nova and this project are installed.

The environments, pip and setuptools are real, and so is this project; Nova is a toy with the
same layout, and so is our driver's module, which would import all of Nova.
``tests/functional/test_driver_layouts.py`` has the real ones.
"""

from __future__ import annotations

import itertools
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.install_layouts import NOVA, OURS, Layout, copy_project, pip, run_clean

#: Each installs with pip.
pytestmark = pytest.mark.long

#: Ours and Nova as devstack has them, as packages do, and as a developer's.
USUAL = (("editable", "editable"), ("wheel", "plain"), ("wheel", "editable"))

NOVA_FILES = {
    "setup.py": "import setuptools\nsetuptools.setup()\n",
    # Nova's own way: packages without package_dir, so that an editable one has a finder.
    "setup.cfg": "[metadata]\nname = nova\nversion = 34.0.0\n[options]\npackages = find:\n",
    "nova/__init__.py": "RAN = True\n",
    "nova/virt/__init__.py": "",
    "nova/virt/driver.py": '''
import importlib

class ComputeDriver:
    def __init__(self, virtapi):
        self.virtapi = virtapi

def load_compute_driver(virtapi, compute_driver):
    """Nova's own lines, without its log."""
    module, _, name = ("nova.virt.%s" % compute_driver).rpartition(".")
    driver = getattr(importlib.import_module(module), name)(virtapi)
    assert isinstance(driver, ComputeDriver)
    return driver
''',
}
DRIVER = """
from nova.virt import driver

class HpcLibvirtDriver(driver.ComputeDriver):
    def init_host(self, host):
        print("init_host", host)
"""
COMPUTE = """
import nova
assert nova.RAN and nova.__file__, "nova is a namespace"
from nova.virt import driver
driver.load_compute_driver(None, "hpc.HpcLibvirtDriver").init_host("gpu1")
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A toy Nova, and this project with a driver that needs nothing else of it."""
    top = tmp_path_factory.mktemp("sources")
    for name, text in NOVA_FILES.items():
        path = top / "nova" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ours = copy_project(top / "ours")
    (ours / "virt_driver_patches" / "driver" / "hpc_libvirt.py").write_text(DRIVER)
    return top / "nova", ours


@pytest.fixture(scope="module")
def layout(sources: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Layout:
    nova, ours = sources
    return Layout(nova, ours, tmp_path_factory.mktemp("built"))


@pytest.mark.parametrize(
    ("ours", "nova"),
    [
        pytest.param(*pair, id="-".join(pair), marks=() if pair in USUAL else pytest.mark.slow)
        for pair in itertools.product(OURS, NOVA)
    ],
)
def test_nova_compute_gets_as_far_as_init_host(
    layout: Layout, tmp_path: Path, nova: str, ours: str
) -> None:
    python = layout.install(tmp_path / "venv", nova, ours)
    command = python.parent / "nova-hpc"
    done = run_clean(command, "install-shim", "--python", python)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_clean(python, "-c", COMPUTE)
    assert (done.returncode, done.stdout) == (0, "init_host gpu1\n"), done.stderr
    # Without this project, Nova is what it was, but for the one file.
    pip(python, "uninstall", "-y", "nova-hpc")
    done = run_clean(python, "-c", "import nova; print(nova.RAN, nova.__file__ is not None)")
    assert done.stdout == "True True\n", done.stderr


def test_our_wheel_has_nothing_of_the_package_nova(layout: Layout) -> None:
    for built in (layout.wheel_of("ours"), layout.wheel_of("ours", "sdist")):
        with zipfile.ZipFile(built) as archive:
            names = archive.namelist()
        assert [name for name in names if name.split("/")[0] == "nova"] == []
        assert "virt_driver_patches/shim/hpc.py" in names


def test_an_older_wheel_beside_an_editable_nova_is_named(layout: Layout, tmp_path: Path) -> None:
    """A folder without ``__init__.py`` hides Nova, and the cure is to take it away."""
    python = layout.install(tmp_path / "venv", "editable", "wheel")
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "nova" / "virt").mkdir(parents=True)
    shutil.copy(layout.ours / "virt_driver_patches" / "shim" / "hpc.py", site / "nova" / "virt")
    done = run_clean(python.parent / "nova-hpc", "install-shim", "--python", python)
    assert done.returncode == 2
    assert f"{site / 'nova'} has no __init__.py and hides Nova" in done.stdout + done.stderr
