# SPDX-License-Identifier: Apache-2.0
"""The pages for administrators, executed: each command block is typed on a node of files.

What belongs to others (pip, openstack) is a program that does nothing. The page "Adopt a cloud"
has a test of its own.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nova_hpc.wire.ledger import Ledger
from nova_hpc_tools.adopt import host_files
from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.unit.commands import typed

pytestmark = pytest.mark.long

TOP = Path(__file__).resolve().parents[3]
ADMIN = TOP / "docs/source/admin"
NAME = "node17"
NOVA = "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n"


class Node:
    """A node of files, and a shell on it."""

    def __init__(self, folder: Path, server: typed.Server) -> None:
        self.folder = folder
        self.root = write(dataclasses.replace(NODES["hgx-h100"], name=NAME), folder / "root")
        for name in ("etc/initramfs-tools", "etc/default/grub.d"):
            (self.root / name).mkdir(parents=True)
        (self.root / "etc/default/grub").touch()
        self.home = folder / "home"
        for project, text in {"nova": NOVA, "placement": ""}.items():
            place = self.home / f".{project}"
            (place / f"{project}.conf.d").mkdir(parents=True)
            (place / f"{project}.conf").write_text(text)
        # As nova-compute keeps it.
        (folder / "ledger").write_text(Ledger().dumps())
        with (self.home / ".nova/nova.conf").open("a") as conf:
            conf.write(f"[hpc]\nledger_file = {folder}/ledger\n")
        self.work = folder / "work"
        self.work.mkdir()
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.program("nova-hpc", server.write_command(self.calls))
        self.program("hostname", f"#!/bin/sh\necho {NAME}\n")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    @property
    def file(self) -> str:
        """The declaration."""
        return str(self.home / ".nova/nova.conf.d/node.yaml")

    def here(self, text: str) -> str:
        """A block of a page, with the folders of this test."""
        for there, here in {
            "/etc/nova/": f"{self.home}/.nova/",
            "/etc/placement/": f"{self.home}/.placement/",
            "/var/tmp/": f"{self.folder}/",
            "--write / ": f"--write {self.root} ",
            "/etc/kolla/config": f"{self.work}/kolla",
            "/etc/openstack_deploy": f"{self.work}/osa",
        }.items():
            text = f"{text}\n".replace(there, here).rstrip("\n")
        text = text.replace("--write /\n", f"--write {self.root}\n")
        if text.endswith("--write /"):
            text = f"{text[:-1]}{self.root}"
        return text

    def type(self, text: str, **more: str):
        """Type a block of a page."""
        text = self.here(text)
        env = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "ROOT": str(self.root),
            "DECLARATION": self.file,
            **more,
        }
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=self.work,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def well(self, text: str, **more: str) -> str:
        status, out, err = self.type(text, **more)
        assert status == 0, (text, out, err)
        return out

    def declare(self, lines: str) -> None:
        """Put lines behind those of the declaration."""
        path = Path(self.file)
        before = path.read_text() if path.exists() else "schema: nova-hpc/node\nversion: 1\n"
        path.write_text(f"{before}{lines}")

    def wrote(self, name: str) -> bool:
        return (self.home / f".nova/nova.conf.d/nova-hpc-{name}.conf").is_file()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    found = typed.Server(tmp_path_factory.mktemp("server"))
    yield found
    found.end()


@pytest.fixture
def node(tmp_path, server):
    found = Node(tmp_path, server)
    # A board without NVSwitches: the pages are about any node, and configure stops on those.
    for bus in ("4b", "4c", "4d", "4e"):
        (found.root / f"sys/bus/pci/devices/0000:{bus}:00.0").unlink()
    return found


def test_prepare(node):
    look, do, _ = typed.blocks(ADMIN / "prepare.rst")
    (lines,) = typed.yaml_blocks(ADMIN / "prepare.rst")
    node.declare(lines)
    out = node.well(look)
    assert "Nothing written: --dry-run" in out
    assert not node.wrote("compute")
    assert not (node.root / host_files.UDEV).exists()
    out = node.well(do)
    assert (node.root / host_files.UDEV).is_file()
    assert 'sriov_numvfs}="8"' in (node.root / host_files.UDEV).read_text()
    assert "240" in (node.root / host_files.TMPFILES).read_text()
    assert node.well(do).startswith("Nothing to do.")


def test_configure_a_node(node):
    found = typed.blocks(ADMIN / "configure-node.rst")
    inventory, show, do, controllers, filters, look, refused, *_ = found
    assert "NVIDIA" in node.well(inventory) or "10de:2330" in node.well(inventory)
    assert "### nova-hpc-compute.conf" in node.well(show)
    assert not node.wrote("compute")
    node.well(do)
    assert node.wrote("compute")
    assert node.well(do) == "Nothing to do.\n"
    # What a refusal looks like: the very words, once a device is away.
    gpu = "0000:19:00.0"
    text, said = refused.replace("0000:18:00.0", gpu).splitlines()
    (node.root / "sys/bus/pci/devices" / gpu).unlink()
    status, _, err = node.type(text.removeprefix("# "))
    assert status == 2
    assert said in err.splitlines()
    node.declare("limits: {hosts: 4000}\n")
    node.well(controllers)
    assert node.wrote("controller")
    placement = node.home / ".placement/placement.conf.d/nova-hpc-placement.conf"
    assert "max_allocation_candidates = 4001" in placement.read_text()
    assert "ComputeFilter,MyFilter,HpcTopologyFilter," in node.well(filters, HOME=str(node.folder))
    node.program("openstack", '#!/bin/sh\necho "$*" >>openstack\necho 0000:00.0\n')
    node.well(look)
    assert (node.work / "openstack").read_text().splitlines() == [
        "resource provider list",
        "resource provider inventory list UUID",
    ]


@pytest.mark.parametrize("number", range(3), ids=["plain", "kolla", "osa"])
def test_entries_of_others(node, number):
    """The refusals are the very words, and what they name is the way on."""
    *_, plain, kolla, osa, _ = typed.blocks(ADMIN / "configure-node.rst")
    block = (plain, kolla, osa)[number]
    for name in ("kolla", "osa", "node17"):
        (node.work / name).mkdir()
    command, *said = node.here(block).replace("/etc/nova-hpc/node.yaml", node.file).splitlines()
    line = re.search(r"configure: \S+:[0-9]+: (.*): Nova takes", said[0])[1]
    for path, count in set(re.findall(r"(\S+\.(?:conf|yml)):([0-9]+)", said[0])):
        text = line if path.endswith("yml") else f"device_spec = {re.search('{.*}', line)[0]}"
        head = "# ours\n" * (int(count) - 2) + "[pci]\n"
        (node.work / path).parent.mkdir(parents=True, exist_ok=True)
        (node.work / path).write_text(f"{head}{text}\n")
    status, out, err = node.type(command.removeprefix("# "))
    assert (status, out) == (2, "")
    refusals = [each for each in err.splitlines() if each.startswith("nova-hpc configure")]
    assert refusals == said
    key = re.compile(r"first add the device settings of these lines to \S+: (.*)")
    keys = "".join(f"{key.search(each)[1]}\n" for each in said[1:])
    node.declare(keys)
    (node.work / "cloud.yaml").write_text(Path(node.file).read_text())
    for path in re.findall(r"(\S+\.(?:conf|yml)):[0-9]", said[0]):
        (node.work / path).write_text("")
    assert '"CUSTOM_SXM"' in node.well(command.removeprefix("# "))


def test_split_a_role(node):
    """A node as an earlier release has left it: one role for both kinds of functions."""
    *_, text = typed.blocks(ADMIN / "configure-node.rst")
    split = text.partition("\n\n")[0]
    (lines,) = typed.yaml_blocks(ADMIN / "configure-node.rst")
    node.declare(
        "roles:\n- {role: gpu, vendor_id: 10de, class: '0302'}\n"
        "- {role: vf, vendor_id: 15b3, dev_type: type-VF}\n"
        "role_options: {gpu: {identity: ids}, vf: {identity: ids}}\n"
    )
    node.well(split)
    (node.home / ".nova/nova.conf.d/node.yaml").unlink()
    node.declare(lines)
    out = node.well(split)
    assert "CUSTOM_HPC_ROLE_IBVF" in out
    assert node.well(split) == "Nothing to do.\n"


def test_doctor(node):
    here, controller, cloud, fleet, others = typed.blocks(ADMIN / "doctor.rst")
    configure = typed.blocks(ADMIN / "configure-node.rst")
    node.declare("limits: {hosts: 400}\n")
    node.well(f"{configure[2]}\n{configure[3]}")
    worst, out, _ = node.type(here)
    assert worst in (0, 1), out
    # It is of the machine alone, and this node is of files.
    status, _, err = node.type(others)
    assert (status, "--root names another one" in err) == (2, True)
    # On Nova's own stack: tests/functional/test_doctor_cloud.py; with Keystone: tests/lab.
    status, _, err = node.type(cloud, ROOT="", DECLARATION="")
    assert (status, "where nova-manage runs" in err) == (2, True), err
    # Nova's own quota lets a server group of no cluster that large be.
    status, out, _ = node.type(controller)
    assert (status, re.findall(r"\[([a-z-]+)\]$", out, re.M)) == (1, ["group-members"])
    (node.folder / "fleet").mkdir()
    # Each file is brought to one directory in between.
    write_down, look = fleet.splitlines()
    status, _, err = node.type(write_down)
    assert (status, err) == (worst, "")
    shutil.copy(node.folder / f"{NAME}.json", node.folder / "fleet")
    assert node.type(look)[0] == worst


@pytest.mark.parametrize("number", [0, 1])
def test_deployment_tools(node, number):
    save, *tools = typed.blocks(ADMIN / "deployment-tools.rst")
    block = tools[number]
    node.well(save)
    (node.work / NAME).mkdir()
    node.well(f"tar -xf {NAME}.tar.xz -C {NAME}")
    for name in (NAME, "controller"):
        (node.work / name).mkdir(exist_ok=True)
        (node.work / name / "nova.conf").write_text(NOVA)
    (node.work / "kolla").mkdir()
    (node.work / "osa").mkdir()
    plain = {"ROOT": "", "DECLARATION": ""}
    node.well(block, **plain)
    written = {
        str(path.relative_to(node.work))
        for tool in ("kolla", "osa")
        for path in (node.work / tool).rglob("*")
        if path.suffix in (".conf", ".yml")
    }
    assert written == (
        {
            f"kolla/nova/{NAME}/nova-compute.conf",
            *(f"kolla/nova/nova-{each}.conf" for each in ("api", "conductor", "scheduler")),
            "kolla/placement.conf",
        }
        if number == 0
        else {f"osa/host_vars/{NAME}/nova-hpc.yml"}
    )
    out = node.well(block, **plain)
    assert set(out.splitlines()) == {"Nothing to do."}


def test_upgrade(node):
    check, controllers, do, host, reserved = typed.blocks(ADMIN / "upgrade.rst")
    configure = typed.blocks(ADMIN / "configure-node.rst")
    node.declare("limits: {hosts: 400}\n")
    node.well(f"{configure[2]}\n{configure[3]}")
    with (node.home / ".nova/nova.conf").open("a") as file:
        file.write(f"[hpc]\nledger_file = {node.folder}/ledger\n")
    status, out, _ = node.type(check)
    assert status in (0, 1), out
    assert "Upgrade Check Results of nova-hpc" in out
    status, out, _ = node.type(controllers)
    assert status == 1
    assert "server_group_members is 10" in " ".join(out.split())
    out = node.well(do)
    assert out.count("Nothing to do.") == 2
    node.well(f"nova-hpc prepare --write {node.root}")
    assert (node.root / host_files.UDEV).is_file()
    node.well(host)
    assert not (node.root / host_files.UDEV).exists()
    assert node.well(reserved) == "Nothing is reserved in Placement.\n"


def test_ansible(node):
    """The collection, built and installed; pip is a program that does nothing."""
    *_, block = typed.blocks(ADMIN / "deployment-tools.rst")
    shutil.copytree(TOP / "ansible", node.work / "ansible")
    venv = node.folder / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("activate", "python", "pip", "nova-hpc"):
        text = "#!/bin/sh\nexit 0\n"
        (venv / "bin" / name).write_text(text)
        (venv / "bin" / name).chmod(0o755)
    place = ["--root", str(node.root), "--declaration", str(node.home / "node.yaml")]
    values = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "nova_hpc_venv": str(venv),
        "nova_hpc_command": str(node.bin / "nova-hpc"),
        "nova_hpc_config_dir": str(node.home / ".nova/nova.conf.d"),
        "nova_hpc_declaration_file": place[3],
        "nova_hpc_configure_options": place[:2],
        "nova_hpc_host_root": str(node.root),
        "nova_hpc_prepare_options": ["--root", str(node.root)],
        "nova_hpc_prepare_run": False,
        "nova_hpc_doctor_options": place,
    }
    inventory = {"hpc_nodes": {"hosts": {NAME: values}}}
    (node.work / "inventory").write_text(yaml.safe_dump(inventory))
    bin_ = Path(sys.executable).parent
    status, out, err = node.type(
        block,
        PATH=f"{node.bin}:{bin_}:{os.environ['PATH']}",
        ROOT="",
        DECLARATION="",
        ANSIBLE_LOCAL_TEMP=str(node.folder / "ansible"),
        ANSIBLE_LOCALHOST_WARNING="false",
    )
    assert status == 0, out + err
    assert node.wrote("compute")
    assert (node.root / host_files.UDEV).is_file()


#: Of a site before it adopts: filters and a weigher of others.
STOCK = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[filter_scheduler]
enabled_filters = ComputeFilter,Tenants,NUMATopologyFilter,PciPassthroughFilter
weight_classes = acme.Weigher
"""
LAYOUTS = {
    "plain": "/etc/nova/nova.conf.d",
    "kolla": "/etc/kolla/config",
    "osa": "/etc/openstack_deploy",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_undo_of_settings(node, layout):
    """Tags, driver, filters and weighers go; what Nova needs for devices in use stays."""
    _, _, *files, tags, look, driver, filters, _, _, _, _ = typed.blocks(ADMIN / "undo.rst")
    name = files[list(LAYOUTS).index(layout)]
    for folder in ("kolla", "osa"):
        (node.work / folder).mkdir()
    (node.work / "nova.conf").write_text(STOCK)
    node.well(
        f"nova-hpc configure --layout {layout} --write {LAYOUTS[layout]} --part common"
        f" --part compute --part controller --config-file nova.conf --config-dir {LAYOUTS[layout]}"
    )

    def texts():
        places = node.well(f"{name}\nls $files").split()
        text = "".join(Path(each).read_text() for each in places)
        return re.sub(r"^#.*\n", "", text, flags=re.M)

    before = texts()
    assert '"hpc_tags"' in before
    node.well(f"{name}\n{tags}")
    assert "hpc_tags" not in texts()
    assert '"hpc_' not in texts()
    # The entries are whole, and each still names its device and its class.
    entries = re.findall(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)?\"managed\": \"no\"[^{}]*\}", texts())
    assert len(entries) == before.count('"hpc_tags"')
    assert all("resource_class" in yaml.safe_load(each) for each in entries)
    assert node.well(look) == "Nothing is reserved in Placement.\n"
    node.well(f"{name}\n{driver}")
    assert "HpcLibvirtDriver" not in texts()
    assert re.search(r"compute_driver( =|:) libvirt\.LibvirtDriver\n", texts())
    node.well(f"{name}\n{filters}")
    rest = texts()
    assert "Hpc" not in rest
    assert "scheduler_filters" not in rest
    assert re.search(r"enabled_filters( =|:) ComputeFilter,Tenants,NUMATopologyFilter,Pci", rest)
    assert re.search(r"weight_classes( =|:) acme\.Weigher\n", rest)
    # Nova refuses that devices are reported no more; aliases are what flavors name.
    for kept in ("report_in_placement", "pci_in_placement", "alias", "max_placement_results"):
        assert kept in rest, kept


def test_undo_of_the_rest(node):
    back, unset, *_, reap, host, aggregates, package = typed.blocks(ADMIN / "undo.rst")
    configure = typed.blocks(ADMIN / "configure-node.rst")
    node.well(configure[2])
    node.well(f"nova-hpc prepare --write {node.root}")
    node.well(back)
    assert not node.wrote("compute")
    assert Path(node.file).exists()
    assert (node.root / host_files.UDEV).is_file()
    node.well(host)
    assert not (node.root / host_files.UDEV).exists()
    assert "fabric reap" in reap  # On Nova's own stack: tests/functional/test_fabric_groups.py.
    node.program(
        "openstack",
        """#!/bin/sh
echo "$*" >>calls
case "$*" in
*list*) printf 'other\\nhpc-fabric:leaf:l1\\n';;
*show*) echo "['node1', 'node2']";;
esac
""",
    )
    node.well(unset)
    node.well(aggregates)
    leaf = "hpc-fabric:leaf:l1"
    assert (node.work / "calls").read_text().splitlines() == [
        "flavor unset hpc.gpu1vf1 --property hpc:affinity --property hpc:group",
        "aggregate list -f value -c Name",
        f"aggregate show {leaf} -f value -c hosts",
        f"aggregate remove host {leaf} node1",
        f"aggregate remove host {leaf} node2",
        f"aggregate delete {leaf}",
    ]
    # The shim beside a Nova that is only a folder: tests/unit/virt/test_shim.py.
    assert package.splitlines()[0] == "nova-hpc install-shim --remove"
