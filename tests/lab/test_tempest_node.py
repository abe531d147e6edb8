# SPDX-License-Identifier: Apache-2.0
"""Tempest on the virtual node: real guests with a GPU and a port, and Whitebox's look at libvirt.

Whitebox reads the domains of its servers over ssh and Nova's database beside them. Results are
written to the files that ``$NOVA_HPC_TEMPEST_NODE`` and ``$NOVA_HPC_WHITEBOX`` name.
"""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from nova_hpc_lab import cloud as lab_cloud
from nova_hpc_lab import config
from nova_hpc_lab.node import qemu
from nova_hpc_lab.node.contract import Plan
from nova_hpc_lab.state import Paths
from tests.lab import environments
from tests.lab.tempest import client
from tests.lab.tempest.way import ADDRESS, way

NODE = "hpc1"
_SERVERS = "tempest.api.compute.servers"
#: Class -> its tests that run on the node.
TESTS = {
    f"{_SERVERS}.test_create_server.ServersTestJSON": (
        *("test_list_servers", "test_list_servers_with_detail"),
    ),
    f"{_SERVERS}.test_server_actions.ServerActionsTestJSON": (
        *("test_reboot_server_hard", "test_rebuild_server", "test_stop_start_server"),
        *("test_pause_unpause_server", "test_lock_unlock_server"),
    ),
    f"{_SERVERS}.test_delete_server.DeleteServersTestJSON": (
        *("test_delete_active_server", "test_delete_server_while_in_shutoff_state"),
        "test_delete_server_while_in_pause_state",
    ),
    f"{_SERVERS}.test_server_rescue.ServerRescueTestJSON": ("test_rescue_unrescue_instance",),
}
REGEX = "|".join(rf"^{name}\.({'|'.join(tests)})\b" for name, tests in TESTS.items())
WHITEBOX = os.environ.get(
    "NOVA_HPC_WHITEBOX_REGEX",
    r"^whitebox_tempest_plugin\.api\.compute\.test_(cpu_pinning|hugepages|sriov)\.",
)
#: Tests that pass of those that are run by default.
ENOUGH = 1 if "NOVA_HPC_WHITEBOX_REGEX" in os.environ else 26
#: It imports six and does not say so.
PLUGIN = ("tempest", "whitebox-tempest-plugin", "six")
FLAVORS = {
    "tempest.node": {
        "hw:cpu_policy": "dedicated",
        "hw:mem_page_size": "2048",
        "hw:pci_numa_affinity_policy": "required",
        "pci_passthrough:alias": "gpu:1",
        "hpc:affinity": "numa",
    },
    "tempest.plain": {},
}
#: Of the shape tests/lab/whitebox.yaml.
CPUS = {0: [0, 1, 2, 3, 4], 1: [5, 6, 7, 8, 9]}
SHARED = 2
#: Its supervisor would start nova-compute again at once: so it is stopped first, and then ended.
CONTROL = "/usr/local/bin/nova-compute-control"
CONTROLS = r"""#!/bin/sh
for each in /proc/[0-9]*; do
    if tr '\0' ' ' 2>/dev/null <$each/cmdline | grep -q 'inside/[c]ompute.py'; then
        case $1 in
            stop) kill -STOP ${each#/proc/} ;;
            start) kill -KILL ${each#/proc/} ;;
        esac
    fi
done
"""
#: The second is not; but all that a hint could ask of it is so on a single node.
FILTERS = ("NUMATopologyFilter", "SameHostFilter")
COMPUTE = "/etc/nova/nova.conf.d/nova-hpc-compute.conf"
#: What fails of Whitebox's tests, and why it must.
EXPECTED = {
    "SRIOVAttachAndDetach.test_sriov_direct_attach_detach_port": (
        "it looks at its guest over ssh, and the lab's guest has no server for that"
    ),
}


@pytest.fixture
def told(lab):
    """What Tempest is told of the lab with its node."""
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    for name, keys in FLAVORS.items():
        words = [part for key in keys for part in ("--property", f"{key}={keys[key]}")]
        size = ("--vcpus", "1", "--ram", "512", "--disk", "1")
        lab.openstack("flavor", "create", name, *size, *words)
    image = lab.connection.image.find_image("hpc-guest").id

    def of(flavor):
        found = lab.connection.compute.find_flavor(flavor).id
        return client.Cloud(
            identity=config.endpoint(lab.settings, "identity"),
            password=lab.settings.passwords["admin"],
            region=config.REGION,
            images=(image, image),
            flavors=(found, found),
            nodes=1,
        )

    yield of
    for one in lab.servers():
        lab.openstack("server", "delete", "--wait", one["ID"], check=False)
    for name in FLAVORS:
        lab.openstack("flavor", "delete", name)


def _nothing_used(lab):
    (node,) = lab.status()["nodes"]
    return not any(each["used"] for each in node["providers"])


def _write(variable, page):
    print(f"RESULT: {page}")
    if variable in os.environ:
        Path(os.environ[variable]).write_text(page, encoding="utf-8")


@pytest.mark.slow
def test_tempest_on_the_node(lab, told, tmp_path):
    python = environments.python("tempest", "tempest")
    conf = client.configuration(told("tempest.node"), str(tmp_path / "lock"))
    found, text = client.run(python, tmp_path / "work", conf, REGEX, lab.environ)
    _write("NOVA_HPC_TEMPEST_NODE", client.table(found, {}))
    assert {each.word for each in found} == {"ok"}, text[-20000:]
    assert len(found) == sum(map(len, TESTS.values()))
    lab.until(lambda: _nothing_used(lab), "no device is used")


def _sections(lab, folder):
    """What Whitebox has to know beside."""
    text = lab.inside(f"cat {COMPUTE}")
    sets = {
        key.strip(): value.strip()
        for key, _, value in (line.partition("=") for line in text.splitlines())
        if key.strip() in ("cpu_shared_set", "cpu_dedicated_set")
    }
    compute = {"config_path": COMPUTE}
    compute |= {f"{word}_command": f"{CONTROL} {word}" for word in ("stop", "start")}
    nodes = {NODE: {"services": {"libvirt": {}, "nova-compute": compute}, **sets}}
    (folder / "nodes.yaml").write_text(json.dumps(nodes))
    return {
        "compute": {"max_microversion": "latest"},
        "compute-feature-enabled": {"scheduler_enabled_filters": ",".join(FILTERS)},
        "whitebox": {
            "nodes_yaml": folder / "nodes.yaml",
            "ctlplane_ssh_username": "root",
            "ctlplane_ssh_private_key_path": lab.state / "nodes" / NODE / "ssh-key",
            "ctlplane_addresses": f"{NODE}:{ADDRESS}",
            "max_compute_nodes": 1,
            "flavor_ram_size": 128,
            "hugepage_guest_ram_size": 128,
        },
        "whitebox-database": {
            "host": ADDRESS,
            "user": "lab",
            "password": lab.settings.passwords["database"],
            "nova_cell1_db_name": "nova",
        },
        "whitebox-hardware": {
            "cpu_topology": ", ".join(f"{number}: {cpus}" for number, cpus in CPUS.items()),
            "configured_hugepage_sizes": "2048",
            "dedicated_cpus_per_numa": len(CPUS[0]) - SHARED,
            "shared_cpus_per_numa": SHARED,
            "sriov_nic_vendor_id": qemu.VF_IDS[0],
            "sriov_vf_product_id": qemu.VF_IDS[1],
            "sriov_physnet": "physnet1",
            "sriov_vnic_type": "direct",
            "sriov_vlan_id": 100,
            "physnet_numa_affinity": 1,
        },
    }


def _is(lab, state):
    (service,) = lab.connection.compute.services(binary="nova-compute")
    return service.state == state


def _tools(lab, python, folder):
    """What Whitebox calls on a compute, and the node lacks."""
    packages = folder / "crudini"
    subprocess.run([python, "-m", "pip", "install", "-q", "-t", packages, "crudini"], check=True)
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w:gz") as archive:
        archive.add(packages, ".")
    script = (
        "mkdir -p /opt/crudini && tar -xzf - -C /opt/crudini\n"
        "printf '#!/bin/sh\\nexec \"$@\"\\n' >/usr/local/bin/sudo\n"
        "printf '#!/bin/sh\\nPYTHONPATH=/opt/crudini exec python3 -m crudini \"$@\"\\n'"
        " >/usr/local/bin/crudini\n"
        f"cat >{CONTROL} <<'END'\n{CONTROLS}END\n"
        f"chmod 755 /usr/local/bin/sudo /usr/local/bin/crudini {CONTROL}\n"
        f"echo 'cpus: {{housekeeping_cores: {SHARED}}}' >>/etc/nova-hpc/node.yaml\n"
        f"/opt/nova-hpc/venv/bin/nova-hpc configure --write {Path(COMPUTE).parent} --part compute\n"
        f"crudini --get {COMPUTE} compute cpu_dedicated_set\n"
    )
    machine = lab_cloud.existing(Paths.from_environment(lab.environ)).machine(NODE)
    subprocess.run(machine.ssh_argv(("sh", "-ec", script)), input=text.getvalue(), check=True)
    for word, state in (("stop", "down"), ("start", "up")):
        lab.inside(f"{CONTROL} {word}")
        lab.until(functools.partial(_is, lab, state), f"nova-compute is {state}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "lab",
    [pytest.param(str(Path(__file__).with_name("whitebox.yaml")), id="whitebox")],
    indirect=True,
)
def test_whitebox(lab, told, tmp_path):
    python = environments.python("whitebox", *PLUGIN)
    _tools(lab, python, tmp_path)
    conf = client.configuration(
        told("tempest.plain"), str(tmp_path / "lock"), _sections(lab, tmp_path)
    )
    port = Plan.load(lab.state / "nodes" / NODE).ssh_port
    with way(22, port), way(3306, lab.settings.ports["database"]):
        found, text = client.run(python, tmp_path / "work", conf, WHITEBOX, lab.environ)
    _write("NOVA_HPC_WHITEBOX", client.table(found, EXPECTED))
    failed = {client.short(each.name) for each in found if each.word == "FAILED"}
    assert failed <= set(EXPECTED), text[-20000:]
    assert sum(each.word == "ok" for each in found) >= ENOUGH
    lab.until(lambda: _nothing_used(lab), "no device is used")
