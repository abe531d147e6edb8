# SPDX-License-Identifier: Apache-2.0
"""A cloud that runs an earlier version of this project is upgraded, one half after the other.

The earlier version is a commit of this repository, built and installed as its users had it,
with the settings that its own ``configure`` wrote. Servers of both versions run meanwhile:
each survives a hard reboot at every step, keeps its devices, and is counted in Placement.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from nova_hpc_lab import cloud as lab_cloud
from nova_hpc_lab.node.python_env import PREFIX, PROJECT
from nova_hpc_lab.state import Paths
from tests.lab.environments import TOP
from tests.lab.operator_site import COMMAND, FLAVOR, GPU, INCLUDES, Site

pytestmark = pytest.mark.slow

#: Without declarations, fabric, doctor and prepare; with the first version of the ledger.
EARLIER = "36679d578db1bba8b381ebe6f448f9cb67c92922"
VERSION = "0.0.1"
#: Where the node has it.
PLACE = "/opt/nova-hpc/earlier"
PATHS = f"{PREFIX}/lib/python3.11/site-packages/nova-hpc-project.pth"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """What the wheel of the earlier version has."""
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "source").mkdir()
    archive = subprocess.run(
        ["git", "archive", EARLIER], cwd=TOP, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", folder / "source"], input=archive, check=True)
    words = ("wheel", "-q", "--no-deps", "-w", folder, folder / "source")
    environ = os.environ | {"PBR_VERSION": VERSION}
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, env=environ)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as found:
        found.extractall(folder / "packages")
    return folder / "packages"


class Upgraded(Site):
    """A site with the earlier version, and its way to this one."""

    def __init__(self, lab, packages):
        super().__init__(lab)
        self.packages = packages

    def earlier_controllers(self):
        self.folder.mkdir(exist_ok=True)
        self.nova_conf.write_text(self.without_ours())
        script = "import sys; from nova_hpc_tools.main import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", script, "configure", "--part", "controller"],
            env=self.lab.environ | {"PYTHONPATH": str(self.packages)},
            # Python looks into the current folder first.
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "HpcTopologyFilter" in done.stdout
        assert "HpcFabricFilter" not in done.stdout
        self.nova_conf.write_text(
            self.without_ours() + done.stdout + "[filter_scheduler]\npci_in_placement = true\n"
        )
        os.environ["PYTHONPATH"] = str(self.packages)
        try:
            self.restart()
        finally:
            del os.environ["PYTHONPATH"]

    def earlier_node(self):
        text = io.BytesIO()
        with tarfile.open(fileobj=text, mode="w:gz") as archive:
            archive.add(self.packages, ".")
        machine = lab_cloud.existing(Paths.from_environment(self.lab.environ)).machine("hpc1")
        subprocess.run(
            machine.ssh_argv(("sh", "-c", f"mkdir -p {PLACE} && tar -xzf - -C {PLACE}")),
            input=text.getvalue(),
            check=True,
        )
        self.node(
            # A role with an interface is of today; the file is written anew at the next start.
            "sed -i '/^device_role.*interface/d' /etc/nova/nova.conf"
            f" && echo {PLACE} >{PATHS} && rm -f {INCLUDES}/nova-hpc-* /etc/nova-hpc/node.yaml"
            f" && {COMMAND} configure --write {INCLUDES} --part compute"
            f" && {COMMAND} install-shim"
        )

    def version(self):
        """Of the project in the node."""
        script = "import importlib.metadata as m; print(m.version('nova-hpc'))"
        return self.lab.inside(f'{PREFIX}/bin/python -c "{script}"').strip()

    def upgrade_node(self):
        """As the docs say."""
        self.lab.inside(f"echo {PROJECT} >{PATHS}")
        said = self.lab.inside(f"{COMMAND} install-shim; {COMMAND} status upgrade check; true")
        print("RESULT: status upgrade check", said)
        # The node's first socket has a switch without ACS, and the check is right to say so.
        assert said.count("Result: Failure") == said.count("IOMMU group") == 1
        assert said.count("Result: Success") >= 2
        before = self.lab.inside(f"cat {INCLUDES}/nova-hpc-compute.conf")
        words = f"{COMMAND} configure --write {INCLUDES} --part common --part compute"
        print("RESULT: configure", self.lab.inside(f"{words} --dry-run; {words} 2>&1"))
        after = self.lab.inside(f"cat {INCLUDES}/nova-hpc-compute.conf")
        assert _offered(before) == _offered(after)
        self.node("true")

    def upgrade_controllers(self):
        self.adopt_controllers()


def _offered(text):
    """Address or identity of what is offered -> its role."""
    entries = [
        json.loads(line.partition("=")[2])
        for line in text.splitlines()
        if line.startswith("device_spec")
    ]
    return {
        entry.get("address") or (entry["vendor_id"], entry["product_id"]): entry["hpc_role"]
        for entry in entries
    }


@pytest.fixture
def site(lab, packages):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    found = Upgraded(lab, packages)
    text = found.nova_conf.read_text()
    words = ("--property", "pci_passthrough:alias=gpu:1", "--property", "hpc:affinity=numa")
    lab.openstack("flavor", "create", "lab.upgraded", *FLAVOR, *words)
    yield found
    for one in lab.servers():
        lab.openstack("server", "delete", "--wait", one["ID"], check=False)
    lab.openstack("flavor", "delete", "lab.upgraded", check=False)
    found.nova_conf.write_text(text)
    found.restart()
    lab.inside(f"echo {PROJECT} >{PATHS}; rm -rf {PLACE}")
    lab.restarted()


@pytest.mark.parametrize("first", ["scheduler", "compute"])
def test_a_site_is_upgraded(site, lab, first):
    site.earlier_controllers()
    site.earlier_node()
    assert site.version() == VERSION
    before = site.create("before", "lab.upgraded")
    servers = {before: site.devices(before)}
    assert len(servers[before]) == 1
    site.still_there(servers, "the earlier version")
    steps = {"scheduler": site.upgrade_controllers, "compute": site.upgrade_node}
    second = {"scheduler": "compute", "compute": "scheduler"}[first]
    steps[first]()
    site.still_there(servers, f"{first} upgraded")
    # The two versions work together.
    between = site.create("between", "lab.upgraded")
    servers[between] = site.devices(between)
    steps[second]()
    site.still_there(servers, "both upgraded")
    assert site.version() != VERSION
    lab.openstack("server", "delete", "--wait", before)
    del servers[before]
    # Nova says that a server is gone before Placement does.
    lab.until(lambda: len(site.used()) == 1, "its device is free")
    after = site.create("after", "lab.upgraded")
    servers[after] = site.devices(after)
    assert len({*servers[between], *servers[after]}) == 2
    report = lab.report(after)
    assert [function.ids for function in report.functions].count(GPU) == 1
    site.still_there(servers, "as if it had always been so")
    filters, _ = site.controllers()
    assert {"HpcTopologyFilter", "HpcFabricFilter"} <= set(filters)
