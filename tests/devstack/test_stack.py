# SPDX-License-Identifier: Apache-2.0
"""A whole devstack: one node, a second one, tempest, and the way back. A night's test.

The tests are in the order in which a person does these things; each asks the cloud itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nova_hpc_lab import evidence, node
from nova_hpc_lab.state import Paths
from tests.devstack import lab_node
from tests.devstack.conftest import TOP, stack
from tests.devstack.container import Machine

T = TypeVar("T")

pytestmark = pytest.mark.slow

ADMIN = "export PATH=/opt/stack/data/venv/bin:$PATH OS_CLOUD=devstack-admin; "
#: Waits until a resource has another status.
STATUS = "timeout 900 sh -c 'until test $(openstack {0} show {1} -f value -c status) != {2}; do "
STATUS += "sleep 3; done'"
#: Resources of the host itself.
OF_HOST = {"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"}


def ask(cloud: Machine, command: str) -> Any:
    """The answer of openstack, as JSON."""
    # What it logs goes elsewhere.
    _, output = cloud.call(f"{ADMIN}openstack {command} -f json 2> /dev/null")
    return json.loads(output)


def boot(cloud: Machine, name: str, flavor: str, *more: str) -> dict[str, Any]:
    """A server that is no longer being built."""
    words = ("--image tiny", f"--flavor {flavor}", "--network private", *more)
    wait = STATUS.format("server", name, "BUILD")
    cloud.call(f"{ADMIN}openstack server create {' '.join(words)} {name}; {wait}")
    shown: dict[str, Any] = ask(cloud, f"server show {name}")
    return shown


def test_ovn_takes_the_services_of_the_samples(checkout: Path, tmp_path: Path) -> None:
    """devstack's own check, which ends stack.sh."""
    text = (TOP / "devstack/local.conf.subnode.sample").read_text()
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    sources = ("functions", "lib/neutron_plugins/ovn_agent")
    body = (checkout / sources[1]).read_text()
    check = body[body.index("function ovn_sanity_check") :]
    check = check[: check.index("\n}\n") + 3]
    script = "\n".join([f"source {checkout}/functions", "DEST=/opt/stack", *lines, check])
    from tests.devstack.repositories import run

    run("bash", "-c", f"{script}\novn_sanity_check", cwd=tmp_path, PATH="/usr/bin:/bin")


def test_all_services_are_up(cloud: Machine) -> None:
    services = ask(cloud, "compute service list")
    assert {service["State"] for service in services} == {"up"}
    computes = {each["Host"] for each in services if each["Binary"] == "nova-compute"}
    assert computes == {cloud.name, "gpu1"}
    _, conf = cloud.call("cat /etc/nova/nova.conf")
    assert conf.count("\npci_in_placement = true\n") == 1


def test_a_plain_server_is_active(cloud: Machine) -> None:
    server = boot(cloud, "plain", "m1.nano", f"--availability-zone nova:{cloud.name}")
    assert server["status"] == "ACTIVE", server
    cloud.call(f"{ADMIN}openstack server delete --wait plain")


def test_the_described_host_offers_its_devices(cloud: Machine) -> None:
    providers = {each["name"] for each in ask(cloud, "resource provider list")}
    assert len([name for name in providers if name.startswith("gpu1_")]) == 12


def test_a_server_has_the_devices_that_placement_names(cloud: Machine) -> None:
    server = boot(cloud, "two", "hpc.gpu2")
    assert server["status"] == "ACTIVE", server
    assert server["OS-EXT-SRV-ATTR:host"] == "gpu1"
    allocations = ask(cloud, f"resource provider allocation show {server['id']}")
    amounts = [
        amount
        for each in allocations
        for name, amount in each["resources"].items()
        if name not in OF_HOST
    ]
    assert sum(amounts) == 4  # two GPUs and two functions
    cloud.call(f"{ADMIN}openstack server delete --wait two")
    assert ask(cloud, f"resource provider allocation show {server['id']}") == []


def test_a_server_is_refused_in_the_plug_ins_words(cloud: Machine) -> None:
    specs = "--property pci_passthrough:alias=gpu:3 --property hpc:affinity=switch"
    policy = "--property hw:pci_numa_affinity_policy=required"
    words = f"flavor create three --vcpus 1 --ram 256 --disk 1 {specs} {policy}"
    cloud.call(f"{ADMIN}openstack {words}")
    server = boot(cloud, "three", "three")
    assert server["status"] == "ERROR"
    assert "No host has 3 gpu under one switch" in server["fault"]["message"]
    cloud.call(f"{ADMIN}openstack server delete --wait three")


def test_a_network_is_a_partition(cloud: Machine) -> None:
    """Neutron, the agent and opensm of a devstack; the fabric is simulated."""
    agents = {each["Binary"]: each for each in ask(cloud, "network agent list")}
    assert agents["nova-hpc-fabric-agent"]["Alive"] is True
    segment = "--provider-network-type vlan --provider-physical-network ibrail0"
    cloud.call(f"{ADMIN}openstack network create {segment} --provider-segment 769 ib")
    profile = ("pci_vendor_info=15b3:101e", "physical_network=ibrail0")
    # A binding is Nova's to make.
    nova = "--os-username nova --os-project-name service"
    server = "--device-owner compute:nova --device 0f3c5d1e-0000-4000-8000-000000000001"
    create = f"openstack {nova} port create --network ib --vnic-type direct --host gpu1 {server}"
    for name, slot in (("member", "0000:81:00.1"), ("stranger", "0000:99:00.1")):
        words = " ".join(f"--binding-profile {each}" for each in (f"pci_slot={slot}", *profile))
        status, output = cloud.call(f"{ADMIN}{create} {words} {name}", check=name == "member")
    assert status != 0
    assert "inventory of ports lacks it" in output
    cloud.call(f"{ADMIN}{STATUS.format('port', 'member', 'DOWN')}")
    member = ask(cloud, "port show member")
    assert member["status"] == "ACTIVE", member
    partitions = "/opt/stack/data/nova-hpc-fabric/data/opensm/partitions.conf"
    assert f"{member['binding_vif_details']['guid']}=full" in cloud.call(f"cat {partitions}")[1]
    cloud.call(f"{ADMIN}openstack port delete member")
    gone = f"timeout 60 sh -c 'while grep -q 0x0301 {partitions}; do sleep 1; done'"
    cloud.call(gone)
    cloud.call(f"{ADMIN}openstack network delete ib")


def test_tempest_on_the_family(cloud: Machine) -> None:
    tests = (
        r"^(nova_hpc_tempest|tempest\.api\.compute\.servers\.test_(delete_server|"
        r"list_server_filters|server_metadata))"
    )
    # Its tox would make the environment again, with constraints of the network.
    tempest = ".tox/tempest/bin/tempest run --concurrency 1"
    run_tests = f"cd tempest && {tempest} --regex '{tests}'"
    status, output = cloud.call(run_tests, check=False, log="tempest.out")
    print("\n".join(line for line in output.splitlines() if line.startswith(" - ")))
    assert status == 0, output[-4000:]
    assert "nova_hpc_tempest" in output


def test_a_second_node_joins(cloud: Machine, second: Machine) -> None:
    services = ask(cloud, "compute service list --service nova-compute")
    up = {service["Host"]: service["State"] for service in services}
    assert up[second.name] == "up"
    server = boot(cloud, "other", "m1.nano", f"--availability-zone nova:{second.name}")
    assert server["status"] == "ACTIVE", server
    cloud.call(f"{ADMIN}openstack server delete --wait other")


def test_the_labs_node_joins_and_its_guest_proves_the_devices(cloud: Machine) -> None:
    """A GPU and a function below one root: Placement, libvirt and the guest name the same ones."""
    with tempfile.TemporaryDirectory(prefix="nhd") as folder:
        cache = Paths.from_environment().cache
        paths = Paths(Path(folder), cache, Path(sys.prefix))
        paths.make()
        node.prepare_image(paths, lambda *_: None)
        lab_node.add_aliases(cloud)
        lab_node.upload_guest(cloud, ADMIN, paths)
        sub = lab_node.SubNode(cloud, paths)
        sub.start()
        try:
            prove_devices(cloud, sub)
        finally:
            sub.stop()


def prove_devices(cloud: Machine, sub: lab_node.SubNode) -> None:
    """Boot a server on the lab's node, and compare all accounts of its devices."""
    wait_until(lambda: sub.status().state in (node.State.UP, node.State.FAILED), 1800)
    assert sub.status().state is node.State.UP, sub.status()
    cloud.call("cd devstack && tools/discover_hosts.sh")
    prefix = f"{sub.name}_"
    providers = "resource provider list"
    wait_until(lambda: any(each["name"].startswith(prefix) for each in ask(cloud, providers)), 300)
    gpu, function = (f"{lab_node.PREFIX}{each}" for each in ("gpu", "vf"))
    specs = {
        "pci_passthrough:alias": f"{gpu}:1,{function}:1",
        "hpc:affinity": "root",
        "hw:cpu_policy": "dedicated",
        "hw:mem_page_size": "2048",
        "hw:pci_numa_affinity_policy": "required",
    }
    words = " ".join(f"--property {key}={value}" for key, value in specs.items())
    cloud.call(f"{ADMIN}openstack flavor create lab --vcpus 1 --ram 512 --disk 1 {words}")
    create = f"server create --image {lab_node.IMAGE} --flavor lab --nic none proof"
    wait = STATUS.format("server", "proof", "BUILD")
    cloud.call(f"{ADMIN}openstack --os-compute-api-version 2.37 {create}; {wait}")
    server = ask(cloud, "server show proof")
    assert server["status"] == "ACTIVE", server
    assert server["OS-EXT-SRV-ATTR:host"] == sub.name

    def read_report() -> node.GuestReport | None:
        _, console = cloud.call(f"{ADMIN}openstack console log show proof", check=False)
        return node.parse_report(console)

    report = wait_until(read_report, 600)
    guest = evidence.guest(report)
    hosts, _ = evidence.host_devices(sub)
    attached = evidence.domain(sub, server["id"]).hostdevs
    allocated = {
        each["name"].removeprefix(prefix)
        for each in ask(cloud, "resource provider list")
        if each["name"].startswith(prefix)
        and ask(cloud, f"resource provider usage show {each['uuid']}")[0]["usage"]
    }
    assert {hosts[address].provider for address in attached} == allocated
    assert sorted(hosts[address].role for address in attached) == ["gpu", "vf"]
    seen = sorted(device.identity for device in guest.devices)
    assert seen == sorted(hosts[address].identity for address in attached)
    assert guest.check_status == 0, guest.check
    print(f"\nRESULT: the guest has {seen}, as Placement and libvirt say")
    cloud.call(f"{ADMIN}openstack server delete --wait proof")


def wait_until(condition: Callable[[], T | None], seconds: float) -> T:
    """What *condition* then is."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(3)
    return found


def test_stack_sh_runs_again(cloud: Machine) -> None:
    """What the first run has written is not written twice."""
    before = cloud.call("cat /etc/nova/nova.conf")[1].count("\ndevice_spec")
    cloud.call("cd devstack && ./unstack.sh", log="unstack.out")
    stack(cloud, "stack-again.out")
    test_all_services_are_up(cloud)
    assert cloud.call("cat /etc/nova/nova.conf")[1].count("\ndevice_spec") == before


#: What the plug-in says at the begin of each of its phases.
PHASES = (
    *("Installing nova-hpc", "Configuring nova-hpc", "Starting the agent of the fabric"),
    *("Starting the described host", "Making flavors of nova-hpc"),
)
#: Runs stack.sh until a line is in its log, and kills it with all that it has started.
KILLED = """
cd devstack
rm -f /opt/stack/logs/stack.sh.log
setsid ./stack.sh > /dev/null 2>&1 &
stack=$!
until grep -qs '{0}' /opt/stack/logs/stack.sh.log; do
    kill -0 $stack
    sleep 0.2
done
sleep {1}
kill -9 -- -$stack
"""


@pytest.mark.parametrize("phase", PHASES)
def test_stack_sh_is_killed_in_a_phase_and_runs_again(cloud: Machine, phase: str) -> None:
    cloud.call("cd devstack && ./unstack.sh", log="unstack-before-kill.out")
    cloud.call("set -e" + KILLED.format(phase, 1 + PHASES.index(phase)), log="killed.out")
    cloud.call("cd devstack && ./unstack.sh", log="unstack-after-kill.out")
    stack(cloud, f"stack-after-{PHASES.index(phase)}.out")
    test_all_services_are_up(cloud)
    test_a_server_has_the_devices_that_placement_names(cloud)


def test_nothing_is_left_behind(cloud: Machine) -> None:
    cloud.call("cd devstack && ./unstack.sh && ./clean.sh", log="clean.out")
    left = cloud.call("ls /etc/nova/hpc /srv/gpu1 nova/nova/virt/hpc.py 2>/dev/null", check=False)
    assert left[1] == ""
    units = cloud.call("ls /etc/systemd/system | grep devstack@", check=False)
    assert units[1] == ""
