# SPDX-License-Identifier: Apache-2.0
"""The lab from the outside: what a user types and reads."""

import ipaddress
import json
import signal
import time

import psutil
import pytest

from tests.lab.conftest import BASE_PORT

DEVICE = "/opt/nova-hpc/venv/bin/nova-hpc device"
FLAVOR = ("--vcpus", "1", "--ram", "256", "--disk", "1")
#: Kills nova-compute in the node; init starts it again with its present configuration.
RESTART_COMPUTE = (
    "for p in /proc/[0-9]*; do"
    ' if tr "\\0" " " <$p/cmdline | grep -q "inside/compute[.]py"; then kill -9 ${p#/proc/}; fi;'
    " done 2>/dev/null; true"
)


def test_everything_is_healthy(lab):
    found = lab.status()
    assert found["healthy"], found
    assert {one["name"] for one in found["services"]} >= {"keystone", "nova-scheduler", "mariadb"}
    (node,) = found["nodes"]
    assert node["state"] == "up"
    assert node["nova_compute"] == "up"


def test_the_records_of_the_cloud_agree(lab):
    """What Nova has, Placement has; Keystone gives Nova's user the role that it needs."""
    config = ("--config-file", str(lab.state / "etc/nova/nova.conf"))
    done = lab.run("doctor", "--part", "cloud", *config, "-f", "json")
    found = {each["check"]: each["seen"] for each in json.loads(done.stdout)["findings"]}
    # An alias of a device that other shapes of the node have.
    found.pop("alias-nowhere", None)
    assert found == {}, done.stderr


def test_everything_listens_on_the_loopback_only(lab):
    pids = {process.pid for process in lab.processes()}
    listening = [
        connection
        for connection in psutil.net_connections("inet")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 9
    assert all(ipaddress.ip_address(one.laddr.ip).is_loopback for one in listening), listening


def test_no_password_can_be_read_by_others(lab):
    settings = json.loads((lab.state / "settings.json").read_text())
    secrets = [text.encode() for text in settings["passwords"].values()]
    assert lab.state.stat().st_mode & 0o077 == 0
    for path in (lab.state / "etc").rglob("*"):
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets):
            assert path.stat().st_mode & 0o077 == 0, path
    for process in lab.processes():
        assert not any(secret.decode() in " ".join(process.cmdline()) for secret in secrets)


def test_up_again_changes_nothing(lab):
    before = {one["name"]: one["pid"] for one in lab.status()["services"]}
    lab.up()
    assert {one["name"]: one["pid"] for one in lab.status()["services"]} == before


def test_up_recovers_what_was_killed(lab):
    pids = {one["name"]: one["pid"] for one in lab.status()["services"]}
    for name in ("mariadb", "rabbitmq", "keystone", "nova-scheduler"):
        psutil.Process(pids[name]).send_signal(signal.SIGKILL)
    assert not lab.status()["healthy"]
    lab.up()
    lab.until(lambda: lab.status()["healthy"], "every service is healthy")


def test_another_base_port_is_refused_while_the_lab_runs(lab):
    done = lab.nova_hpc("up", "--base-port", str(BASE_PORT + 100))
    assert done.returncode == 1
    assert f"the lab runs with base port {BASE_PORT}" in done.stderr


def test_demo_agrees(lab):
    done = lab.nova_hpc("demo", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All accounts agree." in done.stdout
    assert "WRONG" not in done.stdout
    assert "$ openstack --os-compute-api-version 2.37 server create" in done.stdout
    assert done.stdout.count("The user reads: ") == 2
    assert "is not viable" in done.stdout
    assert "ok    the guest's own nova-hpc-guest check finds what the cloud" in done.stdout


def _devices(lab):
    """Address -> what the node says of that device."""
    rows = json.loads(lab.inside(f"{DEVICE} list --format json"))
    return {row["Address"]: row for row in rows}


@pytest.fixture
def demo_server(lab):
    """The server of the demo; made again where a test before, or a first try, took it."""
    if "hpc-demo" not in {one["Name"] for one in lab.servers()}:
        assert lab.nova_hpc("demo", "--keep").returncode == 0


@pytest.mark.usefixtures("demo_server")
def test_the_devices_of_a_deleted_server_are_free(lab):
    """Their marks are gone when the server is, and a baseline is still true."""
    server = lab.show("hpc-demo")
    mine = [a for a, row in _devices(lab).items() if row["Server"] == server["id"]]
    assert mine
    lab.openstack("server", "delete", "--wait", "hpc-demo")
    lab.until(
        lambda: {_devices(lab)[address]["State"] for address in mine} == {"free"},
        f"{mine} are free",
    )
    checked = lab.inside(f"{DEVICE} check {mine[0]}")
    print(f"RESULT: {checked}")
    assert "as in its baseline" in checked


@pytest.mark.slow
@pytest.mark.usefixtures("demo_server")
def test_demo_notices_two_devices_that_were_swapped(lab):
    assert lab.nova_hpc("demo", "--server", "hpc-demo").returncode == 0
    # Behind Nova's back, the guest gets the other GPU of the same root.
    lab.inside(
        "virsh='virsh -c qemu:///system'; name=$($virsh list --name | head -1);"
        " $virsh dumpxml $name >/run/old.xml;"
        " sed \"s/\\(<address domain='0x0000' bus='\\)0x41\\('\\)/\\10x4x\\2/;"
        " s/\\(<address domain='0x0000' bus='\\)0x43\\('\\)/\\10x41\\2/;"
        ' s/0x4x/0x43/" /run/old.xml >/run/new.xml;'
        " ! cmp -s /run/old.xml /run/new.xml && $virsh destroy $name && $virsh create /run/new.xml"
    )
    done = lab.nova_hpc("demo", "--server", "hpc-demo")
    assert done.returncode == 1, done.stdout
    assert "WRONG libvirt's domain has exactly the recorded devices" in done.stdout
    assert "WRONG the guest has exactly these devices, by their identities" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("demo_server")
def test_the_guests_own_check_notices_a_device_that_is_missing(lab):
    lab.inside(
        "virsh='virsh -c qemu:///system'; name=$($virsh list --name | head -1);"
        " $virsh dumpxml $name >/run/whole.xml;"
        ' python3 -c "import xml.etree.ElementTree as ET;'
        " tree = ET.parse('/run/whole.xml'); devices = tree.find('devices');"
        " devices.remove(devices.find('hostdev')); tree.write('/run/less.xml')\""
        " && $virsh destroy $name && $virsh create /run/less.xml"
    )
    done = lab.nova_hpc("demo", "--server", "hpc-demo")
    assert done.returncode == 1, done.stdout
    # Lines may be wrapped.
    said = " ".join(done.stdout.split())
    assert "check finds what the cloud promised: exit status 1: WRONG device" in said


def _offered(lab, address):
    (node,) = lab.status()["nodes"]
    found = [one for one in node["providers"] if one["address"] == address]
    return bool(found) and not found[0]["withheld"]


def _driver_is(lab, stock):
    """Wait until nova-compute runs with that driver: only stock Nova offers the VF."""
    lab.until(
        lambda: _offered(lab, "0000:24:00.0") == stock and lab.status()["healthy"],
        f"stock Nova's driver is {'on' if stock else 'off'}",
    )


def _server(lab, name):
    lab.openstack(
        *("server", "create", "--flavor", "lab.vf3", "--image", "hpc-guest", "--nic", "none"),
        *("--wait", name),
        check=False,
    )
    return lab.show(name)


@pytest.fixture
def stock_compute(lab):
    """Stock Nova's own driver in the node."""
    conf = "/etc/nova/nova.conf.d/zz-stock.conf"
    # On the disk, in case that the emulated machine freezes and is started again.
    setting = "[DEFAULT]\\ncompute_driver = libvirt.LibvirtDriver\\n"
    lab.inside(f"printf '{setting}' >{conf}; sync; {RESTART_COMPUTE}")
    yield
    lab.inside(f"rm {conf}; {RESTART_COMPUTE}")
    _driver_is(lab, stock=False)


def test_a_vf_in_a_group_that_is_not_viable_is_never_offered(lab):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    lab.openstack(
        *("flavor", "create", "lab.vf3", *FLAVOR),
        *("--property", "pci_passthrough:alias=vf:3", "--property", "hw:mem_page_size=2048"),
        *("--property", "hw:pci_numa_affinity_policy=preferred"),
    )
    server = _server(lab, "ours")
    # Two of the four VFs are left: nothing is tried, nothing dies.
    assert server["status"] == "ERROR"
    assert "No valid host" in server["fault"]["message"]
    lab.openstack("server", "delete", "--wait", "ours")


@pytest.mark.slow
@pytest.mark.usefixtures("stock_compute")
def test_stock_nova_offers_that_vf_and_its_guest_dies(lab):
    log = lab.state / "nodes" / "hpc1" / "nova-compute.log"
    _driver_is(lab, stock=True)
    before = log.stat().st_size
    server = _server(lab, "stock")
    # Placement knows of the devices a moment before the scheduler does.
    for _ in range(5):
        if "No valid host" not in server["fault"]["message"]:
            break
        lab.openstack("server", "delete", "--wait", "stock")
        time.sleep(10)
        server = _server(lab, "stock")
    assert server["status"] == "ERROR"
    with log.open(errors="replace") as stream:
        stream.seek(before)
        text = stream.read()
    assert "is not viable" in text, server["fault"]["message"]
    lab.openstack("server", "delete", "--wait", "stock")
