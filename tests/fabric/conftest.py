# SPDX-License-Identifier: Apache-2.0
"""One control plane on one simulated fabric for all tests here."""

import contextlib
import tempfile
from pathlib import Path

import pytest

from nova_hpc_lab import services
from tests.fabric.bare_fabric import BareFabric, wait_until
from tests.fabric.matrix import FabricView, file_members
from tests.fabric.neutron_stage import neutron_stage
from tests.fabric.own_network import own_network
from tests.fabric.plane import running


@pytest.fixture(scope="session", autouse=True)
def namespace():
    """All of these tests are on the loopback of a namespace."""
    with own_network():
        yield


@pytest.fixture(scope="session")
def plane():
    """Neutron, its driver, the agent and the subnet manager, all running."""
    with running() as found:
        print(f"\nthe control plane is in {found.paths.state}")
        yield found


@pytest.fixture(scope="session")
def view(plane):
    """Reads the fabric of the control plane."""
    found = FabricView(plane)
    yield found
    found.close()


@pytest.fixture
def tidy(plane):
    """A plane whose ports and networks are gone afterwards, with what they had on the fabric."""
    yield plane
    clear_plane(plane)


def clear_plane(plane):
    """Delete all ports and networks, and wait until no key and no row of the driver is left."""
    for kind in ("ports", "networks"):
        _, answer = plane.admin.call("GET", f"/{kind}?fields=id")
        for one in answer[kind]:
            plane.admin.call("DELETE", f"/{kind}/{one['id']}")
    wait_until(lambda: not file_members(plane), "no key is left in the file")
    # A row goes with the agent's report, after the tables were read: its key is taken till then.
    wait_until(lambda: not _count_rows(plane), "no row of the driver is left")


def _count_rows(plane):
    with services.connect(plane.settings, "neutron") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM hpc_partition_members")
        return cursor.fetchone()[0]


@pytest.fixture(scope="session")
def neutron_processes():
    """Two processes of Neutron on one database, without a broker and without a fabric."""
    with neutron_stage() as found:
        yield found


@pytest.fixture
def neutron(neutron_processes):
    """The same with an agent's heartbeat and nothing else, at the beginning and at the end."""
    neutron_processes.clear()
    neutron_processes.heartbeat()
    yield neutron_processes
    neutron_processes.clear()


@pytest.fixture
def make_fabric():
    """Gives simulated fabrics with a subnet manager and nothing else."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nhf"))
            fabric = BareFabric.make(Path(folder), **options)
            stack.callback(fabric.down)
            fabric.up()
            return fabric

        yield make
