# SPDX-License-Identifier: Apache-2.0
"""Every command on a running cloud of two alike nodes, as its user types it.

Each runs as a process of its own, with the configuration that a service has: what worked only
where a test had configured Nova before is not enough. A row says what the command has to say.
"""

import json
import re
from pathlib import Path

import attrs
import pytest

SHAPE = Path(__file__).with_name("two-nodes.yaml")

# A second lab: a third of the time of all tests of the lab.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 2), id="two-nodes")], indirect=True),
]

NODES = ("hpc1", "hpc2")
COMMAND = "/opt/nova-hpc/venv/bin/nova-hpc"
FLAVOR = "lab.member"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "root",
    "hpc:fabric": "leaf",
}
MAP = 'nova_hpc_fabric: 1\ndomains:\n- {leaf: l1, spine: s1, hosts: "hpc[1-2]"}\n'
#: What no answer may have: an error of ours, or a warning that its reader can do nothing about.
NEVER = re.compile(r"Traceback|already parsed|Placement answered|WARNING (?:nova|oslo)|Warning:")


@attrs.frozen
class Row:
    """One command line; {name} stands for what the cloud has."""

    words: str
    #: Parts of what it prints, in their order.
    says: tuple[str, ...]
    status: int = 0
    #: Where it runs: the controller, or a node.
    node: bool = False
    #: It reads nova.conf of the scheduler.
    configured: bool = True


READING = (
    # What earlier tests have left in Placement would be kept for them.
    Row("fabric reap", ("ake",)),
    Row("fabric groups", ("No server group has a domain of the fabric.",)),
    Row("explain --flavor {flavor}", ("It fits on 2 of 2 hosts", "fits at level root")),
    Row("explain --flavor {flavor} --count 4", ("All 4 servers fit", "leaf fabric/l1: 4 fit")),
    Row("explain --flavor {flavor} --format json", ('"fits": true',)),
    Row("explain --flavor nothing", ("nothing",), status=2),
    Row("simulate snapshot {folder}/cloud.json", ("2 hosts, 6 devices",)),
    Row(
        "explain --flavor {flavor} --snapshot {folder}/cloud.json",
        ("It fits on 2 of 2 hosts",),
        configured=False,
    ),
    Row("snapshot show", ("2 hosts", "1 leaf", "(2 hosts alike)", "gpu: 2 of 2 free")),
    Row(
        "snapshot show --snapshot {folder}/cloud.json --format html", ("</html>",), configured=False
    ),
    Row("capacity --flavor {flavor} --members 2", ("4 more servers fit", "leaf")),
    Row("when --flavor {flavor} --members 2", ("fits now",)),
    Row("when --flavor {flavor} --members 2 --format svg", ("fits now", "</svg>")),
    Row("capacity --flavor {flavor} --members 2 --make-room --agreed", ("fits already",)),
    Row(
        "metrics cloud --flavor {flavor} --members 2",
        (
            "nova_hpc_cloud_up 1.0",
            'nova_hpc_cloud_hosts{service="in"} 2.0',
            'nova_hpc_cloud_devices{role="gpu",service="in",state="free"} 4.0',
            'nova_hpc_cloud_servers_fit{flavor="lab.member"} 4.0',
            'nova_hpc_cloud_clusters_fit{flavor="lab.member",level="leaf",members="2"} 2.0',
        ),
    ),
    Row("drain hpc1", ("no server with hpc: keys is on hpc1",)),
    # The first node may have been of another shape before, of which devices are missing now.
    Row("device list --all-nodes", ()),
    Row("doctor", ("is not set up as a node", "--part controller")),
    Row("doctor --part controller", ("Nothing is wrong.",)),
    # The controller knows an alias of a device that other shapes of a node have.
    Row("doctor --part cloud", ("[alias-nowhere]",), status=1),
    Row("status upgrade check", ("Functions of Nova", "Success")),
    Row(
        "simulate --snapshot {folder}/cloud.json --role gpu --seeds 1",
        ("2 nodes, 4 free GPUs", "nova-hpc"),
        configured=False,
    ),
    Row("flavor create --host hpc1", ("gpu:1",), status=1),
    Row("fabric show {folder}/map.yaml", ("2 hosts, 1 leaf", "hpc[1-2]"), configured=False),
    Row("fabric diff {folder}/map.yaml", ("nothing differs",), configured=False),
    Row("fabric sync {folder}/map.yaml", ("are as in the map",), configured=False),
    Row(
        "fabric export {folder}/map.yaml -f slurm-tree",
        ("SwitchName=l1 Nodes=hpc[1-2]",),
        configured=False,
    ),
    Row(
        "requirements --id NET01-01 --id CNP01-09",
        ("met  NET01-01", "leaf", "not known  CNP01-09", "--try"),
        status=1,
    ),
    Row(
        "requirements step backend_switch_fabric",
        ('"leaf_switch_ids": [', '"l1"'),
        configured=False,
    ),
    Row("requirements step query_sanitization", ("0000:21:00.0",), node=True),
    Row("lab status", ("Nova's scheduler", "Node hpc1: up", "Node hpc2: up"), configured=False),
    Row("lab logs", ("nova-scheduler: ",), configured=False),
    # The guests of a lab are emulated: no ratio means anything.
    Row(
        "accept --beside instance-0 --rounds /dev/null",
        ("instance-0: ", "not found"),
        status=2,
        node=True,
        configured=False,
    ),
    Row("device list", ("0000:21:00.0", "gpu", "0000:22:10.0", "vf"), node=True),
    Row("device list --absent", ("No hardware of this node is missing.",), node=True),
    Row("device show 0000:21:00.0", ("Role", "gpu", "Driver", "vfio-pci"), node=True),
    Row("device check 0000:21:00.0", (), node=True),
    Row("device maintenance", ("no maintenance is announced",), node=True),
    Row("device list --reserved", ("Nothing is reserved",), node=True),
    Row(
        "metrics node",
        (
            "nova_hpc_node_up 1.0",
            "nova_hpc_node_ledger_usable 1.0",
            'nova_hpc_node_devices{role="gpu",state="free"} 2.0',
        ),
        node=True,
    ),
    Row("inventory", ("0000:21:00.0",), node=True),
    Row("inventory --matrix", ("GPU0", "CPU affinity", "0000:21:00.0"), node=True),
    Row("inventory --save /tmp/hpc2.tar.gz", ("hpc2",), node=True, configured=False),
    Row("doctor --fleet /tmp/hpc2.tar.gz", ("Kind 1: 1 node",), node=True, configured=False),
    Row("install-shim --check", ("installed",), node=True, configured=False),
    Row("inventory --format json", ('"0000:21:00.0"',), node=True, configured=False),
    Row("configure", ("[pci]", "device_spec"), node=True),
    Row("prepare --root /", ("65-nova-hpc.rules",), node=True),
    # Nova's own defaults, which this lab keeps.
    Row("doctor", ("NOTE", "[guest-devices]"), node=True),
    Row("device list --nvlink", ("this node has no partitions",), status=2, node=True),
    Row("doctor --nvlink", ("this node has no partitions",), status=2, node=True),
    Row("doctor --restore-nvlink", ("this node has no partitions",), status=2, node=True),
)

#: Of the operator of a node; each pair leaves it as it was.
CARE = (
    Row("device maintenance --start --for 1h --reason firmware", ("firmware",), node=True),
    Row("device maintenance --stop", ("no maintenance is announced",), node=True),
    Row("device quarantine 0000:21:00.0 --reason dust", ("in quarantine",), node=True),
    Row("device list", ("quarantined", "dust"), node=True),
    Row("device release 0000:21:00.0 --yes", ("back in service",), node=True),
    Row("device list --all-nodes", ()),
    Row(
        "device accept 0000:21:00.0 --reason board --yes",
        ("0000:21:00.0 does not differ from its baseline",),
        status=2,
        node=True,
    ),
)

#: Of owners of a cluster of two members.
OWNERS = (
    Row("hpc cluster list", ("train", "ACTIVE", "2/2")),
    Row("hpc cluster show train", ("members", "train-1, train-2", "leaf='1'")),
    Row("hpc cluster hosts train", ("train-1", "train-2")),
    Row("hpc cluster hosts train --format ansible", ("train-1", "ansible_host")),
    Row("hpc cluster topology train", ("train: ", "1 leaf", "train-1")),
    Row("hpc cluster topology train -f slurm --nodes train-[1-4]", ("train-none", "train-all")),
    # Nothing in these members answers ssh.
    Row(
        "hpc cluster accept train --ssh-option ConnectTimeout=3 --no-record",
        ("train-1: not measurable", "turn: ssh", "verdict of train (quick, 0 rounds)"),
        status=2,
    ),
    Row("hpc cluster report train train-1 --why slow", ("reports", "slow", "server event list")),
    Row("hpc cluster report train 1 --withdraw", ("reports", "server event list")),
    Row("hpc server show train-1", ("level_reached", "root", "beside", "train-2")),
)

#: Of owners who change it: one member goes, comes back, and is made anew.
CHANGES = (
    Row("hpc cluster scale train --members 1 --dry-run", ("| Goes  | train-2 |",)),
    Row("hpc cluster scale train --members 1", ("train-1",)),
    Row("hpc cluster scale train --add 2 --timeout 900", ("train-1, train-2",)),
    Row("hpc cluster replace train train-2 --timeout 900", ("train-1, train-2",)),
    Row("hpc cluster heal train", ("no member of train has to be replaced",)),
    Row("hpc cluster delete train", ()),
    Row("hpc cluster list", ()),
    Row("fabric reap", ("Taken away: ", "1 record, 1 room")),
)

#: Of operators of a cloud with these members.
OPERATORS = (
    Row("explain --server train-1", ("flavor lab.member", "Its devices sit at level root")),
    Row("fabric groups", ("leaf", "fabric/l1", "decided")),
    Row("capacity --flavor {flavor}", ("2 more servers fit",)),
    Row("drain hpc1", ("to do: train-", "1 server; nothing was changed"), status=1),
    Row(
        "simulate snapshot {folder}/cloud.json", ("6 devices, 2 servers with devices, 1 flavor\n",)
    ),
    Row("doctor --part controller", ("Nothing is wrong.",)),
)


@pytest.fixture(scope="module")
def site(lab, tmp_path_factory):
    """A flavor, a map in Nova, and what rows name."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "map.yaml").write_text(MAP)
    words = [part for key in PROPERTIES for part in ("--property", f"{key}={PROPERTIES[key]}")]
    lab.openstack("flavor", "create", FLAVOR, "--vcpus", "1", "--ram", "384", "--disk", "1", *words)
    done = lab.run("fabric", "sync", str(folder / "map.yaml"), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    yield {"flavor": FLAVOR, "folder": str(folder)}
    for each in json.loads(lab.openstack("hpc", "cluster", "list", "-f", "json")):
        lab.openstack("hpc", "cluster", "delete", each["ID"], check=False)
    lab.openstack("flavor", "delete", FLAVOR)
    for each in json.loads(lab.openstack("aggregate", "list", "-f", "json")):
        for node in NODES:
            lab.openstack("aggregate", "remove", "host", each["Name"], node, check=False)
        lab.openstack("aggregate", "delete", each["Name"])


def run_row(lab, row, site):
    """What the command prints, both ways, and its status."""
    words = row.words.format(**site).split()
    if words[0] == "hpc":
        done = lab.client(*words)
    elif row.node:
        config = ["--config-file", "/etc/nova/nova.conf"] if row.configured else []
        # Unlike the first, the second node had no other shape before.
        done = lab.nova_hpc("ssh", "hpc2", "--", COMMAND, *words, *config)
    else:
        conf = lab.state / "etc" / "nova" / "nova.conf"
        done = lab.run(*words, *(["--config-file", str(conf)] if row.configured else []))
    return done.returncode, done.stdout + done.stderr


def check_rows(lab, rows, site):
    """Each row; all that is wrong at once, since a lab takes minutes to come up."""
    wrong = []
    for row in rows:
        status, said = run_row(lab, row, site)
        # "pytest -rP" shows all of it to a person.
        print(f"\n$ {row.words}\n{said}[status {status}]")
        missing = [part for part in row.says if part not in said]
        never = NEVER.search(said)
        if status != row.status or missing or never:
            wrong.append(
                f"{row.words}: status {status}, without {missing}, {never}\n{said[-2000:]}"
            )
    assert not wrong, "\n\n".join(wrong)


def test_what_reads(lab, site):
    check_rows(lab, READING, site)


def test_a_cluster_and_its_operator(lab, site):
    words = ("--members", "2", "--flavor", FLAVOR, "--image", "hpc-guest", "--network", "lab")
    lab.openstack("hpc", "cluster", "create", "train", *words, "--timeout", "900")
    check_rows(lab, OWNERS + OPERATORS + CHANGES, site)


def test_the_care_of_a_node(lab, site):
    check_rows(lab, CARE, site)
