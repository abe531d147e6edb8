# SPDX-License-Identifier: Apache-2.0
"""A real client's suites: Tempest's own tests of servers, with HPC flavors.

The cloud is the lab's, without a virtual node; two computes run this project's driver on Nova's
fake libvirt (:mod:`tests.lab.tempest.compute`). Tempest and the computes have Python
environments of their own, made from the package registry and kept in the lab's cache. Two
processes of Tempest need ten minutes on two idle cores. What it has found is written to
``$NOVA_HPC_TEMPEST`` if that is set: tests/lab/tempest/RESULTS.rst is made so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from nova_hpc_lab import config
from nova_hpc_lab.state import Settings
from tests.lab import environments
from tests.lab.environments import TOP
from tests.lab.tempest import client

RESULTS = "NOVA_HPC_TEMPEST"
#: Which of Tempest's tests.
REGEX = os.environ.get("NOVA_HPC_TEMPEST_REGEX", client.SERVERS)
HOSTS = ("fake1", "fake2")
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "hpc:affinity": "switch",
}
#: Flavor -> its devices, CPUs, memory in MiB and disk in GiB.
FLAVORS = {
    "tempest.gpu": ("gpu:1", 2, 1024, 1),
    "tempest.pair": ("gpu:1,vf:1", 4, 2048, 2),
}
#: What fails, and why it must.
EXPECTED = {
    f"{each}.test_verify_server_details": "It wants the metadata that it gave and no other item; "
    "ours has ``hpc_devices``, unless ``[hpc]server_metadata`` is off."
    for each in ("ServersTestJSON", "ServersTestManualDisk")
}


def _compute(lab, python, name):
    """Start nova-compute; it answers for its host from now on."""
    folder = lab.state / "tempest" / name
    for each in ("state", "instances", "lock"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    sections = {
        section: dict(options)
        for section, options in config.compute(lab.settings, name, config.LOOPBACK).items()
        if not options.keys() & {"helper_command"}
    }
    sections["DEFAULT"] |= {
        "my_ip": config.LOOPBACK,
        "state_path": folder / "state",
        "instances_path": folder / "instances",
        "max_concurrent_builds": 10,
    }
    sections["oslo_concurrency"] = {"lock_path": folder / "lock"}
    (folder / "nova.conf").write_text(config.render(sections))
    (folder / "nova.conf").chmod(0o600)
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [python, "-m", "tests.lab.tempest.compute", name, folder],
            cwd=TOP,
            env=lab.environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@pytest.fixture
def computes(lab):
    python = environments.python(
        "tempest-computes",
        *("-r", "tests/functional/requirements.txt", f"nova=={metadata.version('nova')}"),
        *("-e", str(TOP)),
    )
    with contextlib.ExitStack() as stack:
        for name in HOSTS:
            process = _compute(lab, python, name)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        def up():
            found = lab.connection.compute.services(binary="nova-compute")
            return {each.host for each in found if each.state == "up"} >= set(HOSTS)

        lab.until(up, "both computes are up")
        yield HOSTS
        for one in lab.servers():
            lab.openstack("server", "delete", "--wait", one["ID"], check=False)
    for service in lab.connection.compute.services(binary="nova-compute"):
        if service.host in HOSTS:
            lab.connection.compute.delete_service(service)


@pytest.fixture
def told(lab, computes, tmp_path):
    """What Tempest is told."""
    (tmp_path / "image").write_bytes(os.urandom(1 << 16))
    images = [
        lab.openstack(
            *("image", "create", "--public", "--file", str(tmp_path / "image")),
            *(
                "--disk-format",
                "raw",
                "--container-format",
                "bare",
                name,
                "-f",
                "value",
                "-c",
                "id",
            ),
        ).strip()
        for name in ("tempest-a", "tempest-b")
    ]
    for name, (devices, cpus, memory, disk) in FLAVORS.items():
        keys = {**PROPERTIES, "pci_passthrough:alias": devices}
        words = [part for key in keys for part in ("--property", f"{key}={keys[key]}")]
        size = ("--vcpus", str(cpus), "--ram", str(memory), "--disk", str(disk))
        lab.openstack("flavor", "create", name, *size, *words)
    settings: Settings = lab.settings
    yield client.Cloud(
        identity=config.endpoint(settings, "identity"),
        password=settings.passwords["admin"],
        region=config.REGION,
        images=(images[0], images[1]),
        flavors=tuple(lab.connection.compute.find_flavor(name).id for name in FLAVORS),
        nodes=len(computes),
    )
    for name in FLAVORS:
        lab.openstack("flavor", "delete", name)
    for image in images:
        lab.openstack("image", "delete", image)


@pytest.mark.slow
@pytest.mark.parametrize("lab", [pytest.param(("two-socket", 0), id="no-node")], indirect=True)
def test_tempest_finds_what_nova_promises(lab, told, tmp_path):
    python = environments.python("tempest", "tempest")
    work = tmp_path / "work"
    conf = client.configuration(told, str(work / "lock"))
    found, text = client.run(python, work, conf, REGEX, lab.environ, workers=2)
    page = client.table(found, EXPECTED)
    print(f"RESULT: {page}")
    if RESULTS in os.environ:
        Path(os.environ[RESULTS]).write_text(page, encoding="utf-8")
    failed = {client.short(each.name) for each in found if each.word == "FAILED"}
    assert failed <= set(EXPECTED), text[-20000:]
    assert sum(each.word == "ok" for each in found) > (90 if REGEX == client.SERVERS else 0)
    # Nothing is left in Placement of all of them, neither of the hosts nor of their devices.
    everything = lab.connection.placement.resource_providers()
    mine = [one for one in everything if one.name.startswith(HOSTS)]
    assert len(mine) > len(HOSTS)

    def used():
        paths = (f"/resource_providers/{one.id}/usages" for one in mine)
        usages = (lab.connection.placement.get(path).json()["usages"] for path in paths)
        return any(count for each in usages for count in each.values())

    lab.until(lambda: not used(), "nothing is used in Placement")


def test_what_it_prints_is_read():
    found = list(
        client.outcomes(
            "{1} setUpClass (tempest.api.compute.servers.test_novnc.NoVNC) ... SKIPPED: No VNC\n"
            "{0} tempest.api.compute.servers.test_servers.Servers.test_create [0.4s] ... FAILED\n\n"
            "Captured traceback:\n~~~~\n    Error: {0} is ... ok\n\n"
            "{0} tempest.api.compute.servers.test_servers.Servers.test_list [12.5s] ... ok\n"
            "{0} tempest.api.compute.servers.test_servers.Servers.test_ssh ... SKIPPED: no guest\n"
        )
    )
    assert [(client.short(each.name), each.word, each.why) for each in found] == [
        ("NoVNC", "SKIPPED", "No VNC"),
        ("Servers.test_create", "FAILED", ""),
        ("Servers.test_list", "ok", ""),
        ("Servers.test_ssh", "SKIPPED", "no guest"),
    ]
    page = client.table(found, {"Servers.test_create": "a reason"})
    assert "1 passed, 1 failed, 2 skipped." in page
    assert "   * - ``Servers.test_create``\n     - a reason\n" in page
    assert "   * - ``Servers.test_ssh``\n     - no guest\n" in page
