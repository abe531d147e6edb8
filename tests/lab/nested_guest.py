# SPDX-License-Identifier: Apache-2.0
"""Guests from a disk of Debian packages that start within a minute when nested.

An initial RAM file system with busybox mounts the disk of the image, asks Nova's metadata service
for the server's address and its user's key (:mod:`tests.lab.guest_network`), and begins a script.
systemd takes many minutes there. A program in the guest does what the lab wishes.
"""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from nova_hpc_lab.machines import IMAGE_PROPERTIES
from nova_hpc_lab.node import cache, debian
from nova_hpc_lab.node.guest import COMMAND_LINE
from nova_hpc_lab.node.image import find_image
from nova_hpc_lab.node.initramfs import add_modules, base_archive
from nova_hpc_lab.state import Paths
from tests.lab.libvirt_room import find_packages

#: Port of a guest at which the lab gives its commands.
AGENT_PORT = 7
AGENT = "/usr/local/sbin/lab-agent"
#: The disk and the network.
MODULES = ("virtio_blk", "ext4", "crc32c_generic", "virtio_net")
#: The lab's networks have IPv4 alone.
LINE = f"{COMMAND_LINE} random.trust_cpu=on mitigations=off net.ifnames=0 ipv6.disable=1"
_INIT = """\
#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
until mount -t ext4 /dev/vda /root; do sleep 1; done
mount -t tmpfs -o mode=755 run /root/run
# An engine's user that may not write here has no place for its cache, and then no device.
mount -t tmpfs -o mode=1777 tmp /root/tmp
cp -a /own/. /root/
ip link set lo up
ip link set eth0 up
# An address of its own for the first question, as on links without any service.
IFS=:
set -- $(cat /sys/class/net/eth0/address)
unset IFS
ip address add "169.254.$((0x$5)).$((0x$6))/16" dev eth0
service=http://169.254.169.254/latest/meta-data
until own=$(wget -q -O - $service/local-ipv4) && [ "$own" ]; do sleep 1; done
ip address add "$own/24" dev eth0
# The user's key, where the server has one.
mkdir -p /root/root/.ssh
wget -q -O /root/root/.ssh/authorized_keys $service/public-keys/0/openssh-key
for each in proc sys dev; do mount --move /$each /root/$each; done
exec switch_root /root /bin/sh /usr/local/sbin/lab-services
"""
#: Does what the lab wishes: runs a command, or looks which ports of an address answer.
_AGENT_PROGRAM = f"""\
import json, os, select, socket, socketserver, subprocess, time


def run(wish):
    done = subprocess.run(
        wish["words"], stdin=subprocess.DEVNULL, capture_output=True, timeout=wish["seconds"]
    )
    said = [part.decode("utf-8", "replace") for part in (done.stdout, done.stderr)]
    return [done.returncode, *said]


def probe(wish):
    lines = {{}}
    for port in wish["ports"]:
        line = socket.socket()
        line.setblocking(False)
        line.connect_ex((wish["address"], port))
        lines[line] = port
    answers = [[port, "silent"] for port in wish["ports"]]
    end = time.monotonic() + wish["seconds"]
    while lines and end > time.monotonic():
        for line in select.select([], list(lines), [], 0.5)[1]:
            error = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            port = lines.pop(line)
            line.close()
            answers[wish["ports"].index(port)][1] = os.strerror(error) if error else "open"
    return answers


class Agent(socketserver.StreamRequestHandler):
    def handle(self):
        wish = json.loads(self.rfile.readline())
        try:
            answer = {{"run": run, "probe": probe}}[wish["verb"]](wish)
        except (OSError, subprocess.SubprocessError) as error:
            answer = [255, "", repr(error)]
        self.wfile.write(json.dumps(answer).encode())


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


Server(("", {AGENT_PORT}), Agent).serve_forever()
"""


def prepare_debian_disk(place, packages, unused):
    """A disk of Debian packages, made unless it is in the cache; one or two minutes.

    :param place: its folder in the cache.
    :param unused: what no guest needs, below the root.
    """
    log = Paths.from_environment().cache / place / "build.log"

    def fill(root):
        options = ["--variant=minbase", "--mode=root", f"--include={','.join(packages)}"]
        debian.mmdebstrap(options, debian.SUITE, (debian.SUITE,), str(root), log)
        for each in unused:
            shutil.rmtree(root / each, ignore_errors=True)

    return prepare_disk(place, ("1", debian.SUITE, *unused, *packages), fill)


def prepare_disk(place, key, fill):
    """A disk of a root directory, made unless it is in the cache.

    :param key: texts, of all that it is made of.
    :param fill: makes the directory at a path.
    """
    folder = Paths.from_environment().cache / place
    name = f"nested-{cache.key_of(*key)}"

    def build(target):
        root = target / "root"
        fill(root)
        _make_disk(root, target / "root.ext4")
        shutil.rmtree(root)

    made = cache.entry(folder, name, build)
    cache.remove_others(folder, "nested-", name)
    return made / "root.ext4"


def _make_disk(root, disk):
    """Make an ext4 disk of a root directory, with some room left."""
    used = int(run_program("du", "-sk", root).split()[0])
    run_program(
        *("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", root, disk),
        f"{used * 9 // 8 + (48 << 10)}k",
    )


def pack_ramdisk(paths, services, files=(), modules=MODULES):
    """What the kernel starts first, with all that changes more often than the disk.

    :param services: the script that goes on when the guest has its address and its disk.
    :param files: further paths and contents; all may be executed, and nobody else may read them.
    """
    disk = base_archive(find_image(paths).busybox)
    with tempfile.TemporaryDirectory() as folder:
        run_program("tar", "-x", "-f", find_packages(paths), "-C", folder, "./usr/lib/modules")
        (found,) = Path(folder, "usr/lib/modules").iterdir()
        add_modules(disk, found, modules)
    scripts = (("/usr/local/sbin/lab-services", services), (AGENT, _AGENT_PROGRAM))
    for path, content in (*files, *((path, text.encode()) for path, text in scripts)):
        disk.file(f"own{path}", content, 0o755)
    disk.file("init", _INIT.encode(), 0o755)
    return disk.pack()


def upload_guest(lab, name, disk, ramdisk):
    """Put a guest into the lab's Glance, as the image *name*."""
    glance = lab.connection.image
    initial = glance.create_image(
        name=f"{name}-ramdisk",
        data=ramdisk,
        visibility="public",
        disk_format="ari",
        container_format="ari",
    )
    glance.create_image(
        name=name,
        filename=str(disk),
        visibility="public",
        disk_format="raw",
        container_format="bare",
        # The kernel of the lab's own guest is of the same packages.
        kernel_id=glance.find_image("hpc-guest-kernel").id,
        ramdisk_id=initial.id,
        **IMAGE_PROPERTIES | {"os_command_line": LINE},
    )


def cache_guest(lab, name):
    """Have an image on all nodes before servers ask for it, by Nova's own means for operators."""
    cloud = lab.connection
    image = cloud.image.find_image(name).id
    hosts = [one.host for one in cloud.compute.services(binary="nova-compute")]
    aggregate = cloud.compute.create_aggregate(name=f"has-{name}")
    try:
        for host in hosts:
            cloud.compute.add_host_to_aggregate(aggregate, host)
        cloud.compute.aggregate_precache_images(aggregate, [image])
        # As Nova's cache calls it.
        cached = f"/var/lib/nova/instances/_base/{hashlib.sha1(image.encode()).hexdigest()}"
        for host in hosts:
            look = f"test -e {cached} && echo there; true"
            lab.until(lambda host=host, look=look: lab.inside(look, host), f"{host} has {name}")
    finally:
        for host in hosts:
            cloud.compute.remove_host_from_aggregate(aggregate, host)
        cloud.compute.delete_aggregate(aggregate)


def delete_guest(lab, name):
    """Take a guest out of the lab's Glance."""
    for each in (name, f"{name}-ramdisk"):
        lab.openstack("image", "delete", each, check=False)


def run_program(*words):
    """What a program of this machine says; it must end well."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{words[:3]}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout


def paths_of(lab):
    """Where a lab has its files."""
    return Paths.from_environment(lab.environ)
