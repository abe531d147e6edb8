# SPDX-License-Identifier: Apache-2.0
"""One devstack for all tests here; a checkout of devstack is named by DEVSTACK_TREE.

NOVA_HPC_DEVSTACK_WORK keeps archives and trees from one run to the next.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devstack import repositories
from tests.devstack.container import Machine, build_tree, link_machines

TOP = Path(__file__).resolve().parents[2]
PROGRAMS = ("debootstrap", "systemd-nspawn", "slirp4netns", "syslinux", "mcopy", "busybox")
NODE = "[[local|localrc]]"
PASSWORDS = """
ADMIN_PASSWORD=change-me
DATABASE_PASSWORD=$ADMIN_PASSWORD
RABBIT_PASSWORD=$ADMIN_PASSWORD
SERVICE_PASSWORD=$ADMIN_PASSWORD
GIT_BASE=file:///opt/git
LOGFILE=/opt/stack/logs/stack.sh.log
VIRT_DRIVER=libvirt
LIBVIRT_TYPE=qemu
OVS_DATAPATH_TYPE=netdev
enable_plugin nova-hpc file:///opt/git/nova-hpc.git main
"""
CONTROLLER = f"""{NODE}
HOST_IP=192.0.2.10
API_WORKERS=1
ENABLED_SERVICES=key,rabbit,mysql,placement-api,placement-client
ENABLED_SERVICES+=,g-api,n-api,n-api-meta,n-cond,n-sch,n-cpu,tempest
ENABLED_SERVICES+=,q-svc,ovn-northd,ovn-controller,ovs-vswitchd,ovsdb-server,q-ovn-agent
DOWNLOAD_DEFAULT_IMAGES=False
IMAGE_URLS=file:///opt/git/tiny.img
DEFAULT_IMAGE_NAME=tiny
TEMPEST_VENV_UPPER_CONSTRAINTS=/opt/stack/requirements/upper-constraints.txt
NOVA_HPC_DESCRIBED_HOST=gpu1
NOVA_HPC_SIMULATED_FABRIC=gpu1
NOVA_HPC_TEST_FAMILY=hpc
NOVA_HPC_TEST_ARGS="--host gpu1"
NOVA_HPC_TEST_DISK=1
{PASSWORDS}"""


def devstack_tree() -> Path:
    """The checkout; skips the test without it, or without the programs and rights."""
    tree = os.environ.get("DEVSTACK_TREE")
    if not tree:
        pytest.skip("DEVSTACK_TREE names no checkout of openstack/devstack")
    if os.geteuid() != 0:
        pytest.skip("a container needs root")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    return Path(tree)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """devstack's checkout."""
    tree = os.environ.get("DEVSTACK_TREE")
    if not tree:
        pytest.skip("DEVSTACK_TREE names no checkout of openstack/devstack")
    return Path(tree)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of archives, trees and logs, with all repositories."""
    devstack = devstack_tree()
    named = os.environ.get("NOVA_HPC_DEVSTACK_WORK")
    folder = Path(named) if named else tmp_path_factory.mktemp("devstack")
    git = folder / "git"
    repositories.publish_projects(git, folder / "archives")
    repositories.publish_requirements(git, TOP / "constraints.txt")
    repositories.publish_checkouts(git, devstack, TOP)
    if not (git / "tiny.img").exists():
        repositories.build_image(git / "tiny.img")
    return folder


def make_machine(work: Path, name: str) -> Machine:
    """A machine whose tree is new; a built one is copied."""
    clean = work / "clean"
    if not clean.exists():
        build_tree(work / "unfinished")
        (work / "unfinished").rename(clean)
    tree = work / name
    shutil.rmtree(tree, ignore_errors=True)
    repositories.run("cp", "-a", "--reflink=auto", clean, tree)
    machine = Machine(name, tree, work / "git", work / "logs")
    machine.boot()
    machine.prepare()
    return machine


@pytest.fixture(scope="session")
def machines(work: Path) -> Iterator[tuple[Machine, Machine]]:
    """The controller and a second node, booted and linked."""
    made: list[Machine] = []
    try:
        for name in ("hpcstack0", "hpcstack1"):
            made.append(make_machine(work, name))
        link_machines(*made)
        yield made[0], made[1]
    finally:
        for machine in made:
            # What the services said, for whoever looks for the cause of a failure.
            units = "journalctl --no-pager -o short-precise -u 'devstack@*'"
            machine.call(units, user="root", check=False, log=f"{machine.name}.services")
            machine.stop()


def stack(machine: Machine, log: str) -> float:
    """Run stack.sh, which has to end well; the seconds that it took."""
    begun = time.monotonic()
    status, output = machine.call("cd devstack && ./stack.sh", check=False, log=log)
    assert status == 0, output[-4000:]
    seconds = time.monotonic() - begun
    print(f"\nRESULT: stack.sh on {machine.name} took {seconds:.0f} s")
    return seconds


@pytest.fixture(scope="session")
def cloud(machines: tuple[Machine, Machine]) -> Machine:
    """The controller, with devstack up."""
    controller = machines[0]
    controller.write("devstack/local.conf", CONTROLLER)
    stack(controller, "stack.out")
    return controller


@pytest.fixture(scope="session")
def second(cloud: Machine, machines: tuple[Machine, Machine]) -> Machine:
    """A node that has joined with the subnode sample."""
    node = machines[1]
    sample = (TOP / "devstack" / "local.conf.subnode.sample").read_text()
    own = ("enable_plugin", "LIBVIRT_TYPE", "VIRT_DRIVER")
    lines = [line for line in sample.splitlines() if not line.startswith(own)]
    node.write("devstack/local.conf", "\n".join(lines) + f"\n{PASSWORDS}")
    stack(node, "stack-second.out")
    cloud.call("cd devstack && tools/discover_hosts.sh")
    return node
