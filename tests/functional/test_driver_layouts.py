# SPDX-License-Identifier: Apache-2.0
"""nova-compute starts with the driver however Nova and this project are installed.

The environments are real, and so are pip and nova-compute up to the driver's ``init_host``; only
Nova's modules are not copied, but linked from the environment that runs the tests.
"""

from __future__ import annotations

from pathlib import Path

import nova
import pytest
from nova import version

from tests.install_layouts import (
    NOVA,
    OURS,
    Layout,
    copy_project,
    make_environment,
    pip,
    run_clean,
)

pytestmark = pytest.mark.slow

SETUP = f"""
import os, setuptools
folders = [top for top, _, files in os.walk("nova", followlinks=True) if "__init__.py" in files]
packages = [top.replace(os.sep, ".") for top in folders if not top.startswith("nova/tests")]
setuptools.setup(
    name="nova",
    version="{version.version_string()}",
    packages=packages,
    package_data={{"": ["*"]}},
)
"""
#: nova.cmd.compute.main, without a conductor and a Placement to wait for.
COMPUTE = """
import os
import sys
from nova import monkey_patch
monkey_patch.patch()
from unittest import mock
from nova import objects, service, utils
from nova.cmd import compute
from nova.conductor import api
from nova.scheduler.client import report
from nova.virt.libvirt import driver as libvirt_driver

class Reached(BaseException):
    pass

def init_host(self, host):
    print(type(self).__module__, type(self).__name__, host, sys.modules["nova.virt.hpc"].__file__)
    raise Reached

import virt_driver_patches.driver.hpc_libvirt as ours
sys.argv = ["nova-compute", "--config-file", sys.argv[1]]
with (
    mock.patch.object(api.API, "wait_until_ready"),
    mock.patch.object(utils, "raise_if_old_compute"),
    mock.patch.object(report.SchedulerReportClient, "_create_client"),
    mock.patch.object(objects.Service, "enable_min_version_cache"),
    mock.patch.object(objects.Service, "get_by_host_and_binary", return_value=None),
    mock.patch.object(ours.HpcLibvirtDriver, "init_host", init_host),
    mock.patch.object(service, "serve", lambda server, **more: server.start()),
):
    try:
        compute.main()
    except Reached:
        sys.stdout.flush()
        os._exit(0)
"""
CONF = """
[DEFAULT]
compute_driver = hpc.HpcLibvirtDriver
host = gpu1
transport_url = fake://
state_path = {state}
"""


def link_nova(folder: Path) -> Path:
    """A Nova in *folder*: its two outer packages real, what is in them linked."""
    origin = Path(nova.__file__).parent
    for package in ("", "virt"):
        (folder / "nova" / package).mkdir(parents=True)
        for each in (origin / package).iterdir():
            target = folder / "nova" / package / each.name
            if each.name not in ("virt", "hpc.py", "__pycache__"):
                target.symlink_to(each)
    return folder


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    top = tmp_path_factory.mktemp("sources")
    checkout = link_nova(top / "nova")
    (checkout / "setup.py").write_text(SETUP)
    return Layout(checkout, copy_project(top / "ours"), tmp_path_factory.mktemp("built"))


def start_compute(python: Path, state: Path, **environment: str) -> list[str]:
    """What the driver's init_host says of itself."""
    conf = state / "nova.conf"
    conf.write_text(CONF.format(state=state))
    done = run_clean(python, "-c", COMPUTE, conf, **environment)
    assert done.returncode == 0, done.stderr
    # Its log is on the same stream.
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("how_nova", NOVA)
@pytest.mark.parametrize("how_ours", OURS)
def test_nova_compute_starts(layout: Layout, tmp_path: Path, how_nova: str, how_ours: str) -> None:
    python = layout.install(tmp_path / "venv", how_nova, how_ours)
    command = python.parent / "nova-hpc"
    assert run_clean(command, "install-shim", "--check", "--python", python).returncode == 1
    done = run_clean(command, "install-shim", "--python", python)
    assert done.returncode == 0, done.stderr
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    folder = layout.nova if how_nova == "editable" else site
    shim = folder / "nova" / "virt" / "hpc.py"
    # On green and on native threads.
    for native in ("false", "true"):
        said = start_compute(python, tmp_path, OS_NOVA_DISABLE_EVENTLET_PATCHING=native)
        assert said == [
            "virt_driver_patches.driver.hpc_libvirt",
            "HpcLibvirtDriver",
            "gpu1",
            str(shim),
        ]
    assert run_clean(command, "install-shim", "--check", "--python", python).returncode == 0
    assert run_clean(command, "install-shim", "--remove", "--python", python).returncode == 0
    assert not shim.exists()


@pytest.mark.parametrize("first", [False, True])
def test_a_nova_of_the_distribution(layout: Layout, tmp_path: Path, first: bool) -> None:
    """In a folder of its own, before or behind the environment's on the path."""
    python = make_environment(tmp_path / "venv")
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    distribution = link_nova(tmp_path / "dist-packages")
    line = f"import sys; sys.path.insert(0, {str(distribution)!r})" if first else str(distribution)
    (site / "a-distribution.pth").write_text(line + "\n")
    pip(python, "install", "--no-deps", layout.wheel_of("ours"))
    layout.install_others(python)
    done = run_clean(python.parent / "nova-hpc", "install-shim", "--python", python)
    assert done.returncode == 0, done.stderr
    said = start_compute(python, tmp_path, OS_NOVA_DISABLE_EVENTLET_PATCHING="true")
    assert said[-1] == str(distribution / "nova/virt/hpc.py")
