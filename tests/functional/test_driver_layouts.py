# SPDX-License-Identifier: Apache-2.0
"""The driver loads in every layout in which Nova and this project are installed.

The virtual environments are real, and so is pip; only Nova is not copied, but
linked from the environment that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import nova
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEEDED = (
    "LICENSE",
    "README.rst",
    "etc",
    "nova_hpc",
    "pyproject.toml",
    "requirements.txt",
    "scheduler_filters",
    "setup.cfg",
    "setup.py",
    "virt_driver_patches",
)
LOAD = """
from nova import monkey_patch
monkey_patch.patch()
from oslo_utils import importutils
cls = importutils.import_class("nova.virt.hpc.HpcLibvirtDriver")
from nova.virt.libvirt.driver import LibvirtDriver
assert issubclass(cls, LibvirtDriver)
import nova.virt.hpc
print(nova.virt.hpc.__file__)
"""


def call(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words],
        cwd="/",
        env=variables | {"PBR_VERSION": "0.0.1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def pip(python: Path, *words: object) -> None:
    done = call(sys.executable, "-m", "pip", "-q", "--python", python, *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of this project's source: building writes into it."""
    copy = tmp_path_factory.mktemp("source")
    for name in NEEDED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = call(
        sys.executable,
        "-m",
        "pip",
        "-q",
        "wheel",
        "--no-deps",
        "-w",
        folder,
        source,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def link_nova(folder: Path) -> None:
    """A Nova in *folder*: its two outer packages real, what is in them linked."""
    origin = Path(nova.__file__).parent
    for package in ("", "virt"):
        (folder / "nova" / package).mkdir(parents=True)
        for each in (origin / package).iterdir():
            target = folder / "nova" / package / each.name
            if each.name not in ("virt", "hpc.py", "__pycache__"):
                target.symlink_to(each)


@pytest.fixture
def venv(tmp_path) -> tuple[Path, Path]:
    """An environment with Nova's dependencies; its Python and site-packages."""
    home = tmp_path / "venv"
    done = call(sys.executable, "-m", "venv", "--without-pip", home)
    assert done.returncode == 0, done.stderr
    (site,) = (home / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python", site


def loaded_from(python: Path) -> Path:
    """The file that was loaded, on green and on native threads."""
    found = set()
    for native in ("false", "true"):
        done = call(python, "-c", LOAD, OS_NOVA_DISABLE_EVENTLET_PATCHING=native)
        assert done.returncode == 0, done.stderr
        found.add(Path(done.stdout.strip().splitlines()[-1]))
    (path,) = found
    return path


def shim(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from nova_hpc_tools.main import main; sys.exit(main())"
    return call(python, "-c", code, "install-shim", "--python", python, *words)


def test_the_wheel_has_the_one_file_and_no_package_of_nova(wheel) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("nova/")]
        assert names == ["nova/virt/hpc.py"]
        assert archive.read(names[0]) == (ROOT / "virt_driver_patches/shim/hpc.py").read_bytes()


def test_a_wheel_in_the_environment_of_nova(wheel, venv) -> None:
    python, site = venv
    link_nova(site)
    pip(python, "install", "--no-deps", wheel)
    assert loaded_from(python) == site / "nova/virt/hpc.py"
    assert shim(python, "--check").returncode == 0


def test_an_editable_installation(source, venv) -> None:
    python, site = venv
    link_nova(site)
    pip(python, "install", "--no-deps", "-e", source)
    # Recent setuptools find the file by a hook of their own, older ones do not;
    # neither hides the real Nova, and the command makes it work with both.
    done = call(python, "-c", "import nova.virt; print(nova.virt.__file__)")
    assert done.stdout.strip() == str(site / "nova/virt/__init__.py")
    assert shim(python, "--check").returncode == 1
    done = shim(python)
    assert done.returncode == 0, done.stderr
    assert loaded_from(python) == site / "nova/virt/hpc.py"
    assert shim(python, "--check").returncode == 0
    assert shim(python, "--remove").returncode == 0
    assert not (site / "nova/virt/hpc.py").exists()


@pytest.mark.parametrize("first", [False, True])
def test_a_nova_in_another_folder(wheel, venv, tmp_path, first) -> None:
    """As beside a distribution's Nova, before or behind it on the path."""
    python, site = venv
    distribution = tmp_path / "dist-packages"
    link_nova(distribution)
    line = f"import sys; sys.path.insert(0, {str(distribution)!r})" if first else str(distribution)
    (site / "a-distribution.pth").write_text(line + "\n")
    pip(python, "install", "--no-deps", wheel)
    # The wheel has put the file where the real package never looks.
    assert (site / "nova/virt/hpc.py").exists()
    assert "No module named 'nova.virt.hpc'" in call(python, "-c", LOAD).stderr
    done = shim(python)
    assert done.returncode == 0, done.stderr
    assert loaded_from(python) == distribution / "nova/virt/hpc.py"
