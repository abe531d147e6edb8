# SPDX-License-Identifier: Apache-2.0
"""A cluster of the recipe's image: Debian with systemd, cloud-init and sshd, booted by Nova.

Two members of one node, each with a GPU. The user logs in with the key pair, and starts a job of
Open MPI on both. The image has no program of this test.
"""

import base64
import re
import shlex
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import attrs
import pytest

from benchmarks.shared_memory.root_disk import COMPILERS, SHM
from nova_hpc_lab import cloud
from nova_hpc_lab.machines import IMAGE_PROPERTIES
from tests.lab import dib_images, guest_network, nested_guest

SHAPE = Path(__file__).with_name("two-nodes-of-members.yaml")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("lab", [pytest.param((SHAPE, 1), id="one-node")], indirect=True),
]

IMAGE, FLAVOR = "hpc-debian-12", "lab.image"
PROPERTIES = {
    "hw:cpu_policy": "dedicated",
    "hw:mem_page_size": "2048",
    "hw:pci_numa_affinity_policy": "required",
    "pci_passthrough:alias": "gpu:1",
    "hpc:affinity": "root",
}
#: The image has no boot loader, so Nova starts its kernel.
LINE = f"{IMAGE_PROPERTIES['os_command_line']} root=/dev/vda rw mitigations=off"
MEMBERS = ["img-1", "img-2"]
#: The host list of both.
LISTED = ["img-1 slots=1", "img-2 slots=1"]
#: Seconds for two whole Debians at once, whose processors are emulated.
BOOT = 3600
#: Seconds without a word on the console, after which a guest is frozen, as some are in emulation.
FROZEN = 420
PATIENCE = 600
#: The last words of cloud-init's last stage.
FINISHED = re.compile(r"Cloud-init v\. \S+ finished at .*Datasource DataSourceConfigDrive")
#: Nova fetches an image again that it does not have.
FORGET = "rm -f /var/lib/nova/instances/_base/*"


@attrs.frozen
class Cluster:
    """The members, as the user of the key pair sees them."""

    lab: object
    key: Path
    addresses: dict[str, str]

    def run(self, name, command, given="", seconds=PATIENCE):
        """Status and output of a command of the login user's, by ssh through the node."""
        (node,) = cloud.existing(nested_guest.paths_of(self.lab)).nodes()
        program, *words = node.ssh_argv()
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "60",
            "LogLevel": "ERROR",
            "ProxyCommand": shlex.join([program, "-W", "%h:%p", *words]),
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
        }
        words = (word for option in options.items() for word in ("-o", "=".join(option)))
        login = f"debian@{self.addresses[name]}"
        done = subprocess.run(
            ["ssh", "-F", "none", "-i", self.key, *words, login, command],
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        said = f"{done.stdout}{done.stderr}status {done.returncode}"
        print(f"$ [{name}] {command}\n{said}", flush=True)
        return done.returncode, done.stdout

    def wait_until_booted(self, name):
        """Wait for the end of cloud-init; a frozen guest is started again."""
        begin = changed = time.monotonic()
        seen = ""
        (server,) = self.lab.connection.compute.servers(name=f"^{name}$")
        while not FINISHED.search(seen):
            assert time.monotonic() - begin < BOOT, seen[-3000:]
            time.sleep(10)
            console = self.lab.openstack("console", "log", "show", name, check=False)
            if console != seen:
                seen, changed = console, time.monotonic()
            elif time.monotonic() - changed > FROZEN:
                print(f"RESULT: {name} is frozen after {seen[-200:]!r}: rebooted", flush=True)
                self.lab.connection.compute.reboot_server(server, "HARD")
                changed = time.monotonic()


def build_job(folder):
    """A program of the user's, for the image's Open MPI, as text."""
    program = folder / "job"
    nested_guest.run_program(
        COMPILERS["openmpi"], "-O2", SHM / "tests/mpi_exchange.c", "-o", program
    )
    return base64.b64encode(program.read_bytes()).decode()


def upload_image(lab, folder):
    """Build the recipe's image, and put it with its own kernel into the lab's Glance."""
    root = dib_images.build_members_root(dib_images.install_builder(folder))
    disk = folder / "members.raw"
    dib_images.make_disk(root, disk, f"{dib_images.measure(root) * 5 // 4 >> 20}M")
    print(f"RESULT: an image of {disk.stat().st_size >> 20} MiB")
    glance = lab.connection.image
    parts = {
        kind: glance.create_image(
            name=f"{IMAGE}-{kind}",
            filename=str(path),
            visibility="public",
            disk_format=kind,
            container_format=kind,
        ).id
        for kind, path in zip(("aki", "ari"), dib_images.find_boot_files(root), strict=True)
    }
    glance.create_image(
        name=IMAGE,
        filename=str(disk),
        visibility="public",
        disk_format="raw",
        container_format="bare",
        kernel_id=parts["aki"],
        ramdisk_id=parts["ari"],
        **IMAGE_PROPERTIES | {"os_command_line": LINE},
    )


@pytest.fixture
def cluster(lab, tmp_path):
    lab.openstack("server", "delete", "--wait", "hpc-demo", check=False)
    # The node has room for three copies of the image, and none for those of other tests.
    lab.inside(FORGET)
    with tempfile.TemporaryDirectory() as folder:
        upload_image(lab, Path(folder))
    words = (f"--property={key}={value}" for key, value in PROPERTIES.items())
    size = ("--vcpus", "1", "--ram", "768", "--disk", "2")
    lab.openstack("flavor", "create", FLAVOR, *size, *words)
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text(lab.openstack("keypair", "create", FLAVOR))
    end = threading.Event()
    try:
        with guest_network.open_network(lab) as network:

            def serve():
                while not end.wait(5):
                    network.sync()

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield Cluster(lab, key, {})
            finally:
                end.set()
                thread.join()
    finally:
        lab.openstack("hpc", "cluster", "delete", "img", check=False)
        lab.until(lambda: not lab.servers(), "the members are deleted")
        lab.openstack("keypair", "delete", FLAVOR)
        lab.openstack("flavor", "delete", FLAVOR)
        for name in (IMAGE, f"{IMAGE}-aki", f"{IMAGE}-ari"):
            lab.openstack("image", "delete", name, check=False)
        lab.inside(FORGET)


def assert_is_whole(cluster, name):
    """Its boot, its promised device, and the host list of both, as the member reports them."""
    assert cluster.run(name, "cloud-init status") == (0, "status: done\n")
    assert cluster.run(name, "systemctl --failed --no-legend") == (0, "")
    status, said = cluster.run(name, "nova-hpc-guest check")
    assert status == 0
    assert said.startswith("As promised: 1 devices")
    look = "cat /etc/nova-hpc/hosts"
    cluster.lab.until(lambda: cluster.run(name, look)[1].splitlines() == LISTED, "both are known")


def test_a_job_runs_on_members_of_the_recipes_image(cluster, tmp_path):
    lab, job = cluster.lab, build_job(tmp_path)
    begin = time.monotonic()
    done = lab.client(
        *("hpc", "cluster", "create", "img", "--members", "2", "--flavor", FLAVOR),
        *("--image", IMAGE, "--network", "lab", "--key-name", FLAVOR, "--timeout", "900"),
    )
    print(f"$ openstack hpc cluster create img ...\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0
    print(f"RESULT: active after {time.monotonic() - begin:.0f} s", flush=True)
    for server in lab.connection.compute.servers(name="^img-"):
        (port,) = lab.connection.network.ports(device_id=server.id)
        cluster.addresses[server.name] = guest_network.address_of(port)
    for name in MEMBERS:
        cluster.wait_until_booted(name)
    print(f"RESULT: booted after {time.monotonic() - begin:.0f} s", flush=True)
    for name in MEMBERS:
        assert_is_whole(cluster, name)
        assert cluster.run(name, "base64 -d >job && chmod +x job", job)[0] == 0
    mpirun = "mpirun -hostfile /etc/nova-hpc/hosts"
    status, said = cluster.run("img-1", f"{mpirun} hostname")
    assert (status, sorted(said.split())) == (0, MEMBERS)
    status, said = cluster.run("img-1", f"{mpirun} ./job one-way 1048576")
    assert (status, said) == (0, "correct: 1 messages, 1048576 bytes, 2 ranks\n")
    print(f"RESULT: the jobs ended after {time.monotonic() - begin:.0f} s", flush=True)
