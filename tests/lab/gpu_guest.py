# SPDX-License-Identifier: Apache-2.0
"""A guest that has a GPU share's engine, and starts within a minute when nested.

An initial RAM file system with busybox mounts the disk of the image, asks Nova's metadata service
for the server's address, and begins what the units of the product begin. systemd takes many
minutes there: :mod:`tests.gpu.unit_runner` takes its place, so a unit's own filter of addresses and
its sandbox are not tried here but in ``tests/gpu/test_emulated_guests.py``.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from nova_hpc.guest.build import single_file
from nova_hpc_lab.machines import IMAGE_PROPERTIES
from nova_hpc_lab.node import cache
from nova_hpc_lab.node.guest import COMMAND_LINE
from nova_hpc_lab.node.image import find_image
from nova_hpc_lab.node.initramfs import add_modules, base_archive
from nova_hpc_lab.state import Paths
from tests.gpu import two_guests, unit_runner
from tests.gpu.engine_root import prepare_engine_root
from tests.lab.libvirt_room import find_packages

HERE = Path(__file__).parent
IMAGE = "gpu-guest"
#: Port of a guest at which the lab gives its commands.
AGENT_PORT = 7
AGENT = "/usr/local/sbin/lab-agent"
MODULES = ("virtio_blk", "ext4", "crc32c_generic", "virtio_net", "wireguard")
#: Engines listen on IPv4 alone, and so does the filter.
LINE = f"{COMMAND_LINE} random.trust_cpu=on mitigations=off net.ifnames=0 ipv6.disable=1"
_JOB = two_guests.HERE / "opencl_job.c"
#: What a compiler and a packager need is not what a guest needs: less to copy in emulation.
_STEPS = """\
gcc -O2 -Wno-deprecated-declarations /opt/opencl_job.c -lOpenCL -o /opt/opencl_job
echo 'nova-hpc-gpu:x:990:65534::/nonexistent:/usr/sbin/nologin' >> /etc/passwd
cd /
rm -rf boot var/cache/* var/lib/apt var/lib/dpkg/info usr/include usr/share/cmake* \\
  usr/share/perl* usr/share/doc usr/share/man usr/share/info usr/share/locale usr/share/i18n \\
  usr/share/zoneinfo usr/bin/cmake usr/bin/ctest usr/bin/cpack usr/libexec/gcc/*/*/cc1* \\
  usr/libexec/gcc/*/*/lto1 usr/lib/*/perl* \\
  usr/lib/*/lib[athlu]*san.so* usr/lib/*/dri usr/lib/python3/dist-packages/* \\
  usr/bin/*-lto-dump* usr/bin/*-g++* usr/bin/*-cpp*
"""
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
for each in proc sys dev; do mount --move /$each /root/$each; done
exec switch_root /root /bin/sh /usr/local/sbin/lab-services
"""
_SERVICES = f"""\
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
for end in client serve; do
    while :; do nova-hpc-guest gpu $end >>/run/$end.log 2>&1; sleep 5; done &
done
while :; do python3 {AGENT} >>/run/agent.log 2>&1; sleep 1; done
"""
#: Does what the lab wishes: runs a command, or looks which ports of an address answer.
_AGENT = f"""\
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


def prepare_disk():
    """The disk of the image, with the engine, made unless it is in the cache; half a minute."""
    engine_root = prepare_engine_root()
    folder = Paths.from_environment().cache / "gpu"
    name = f"nested-{cache.key_of('1', engine_root.parent.name, _STEPS, _JOB.read_text())}"

    def build(target):
        root = target / "root"
        _run("cp", "-a", engine_root, root)
        shutil.copy(_JOB, root / "opt")
        _run("chroot", root, "sh", "-exc", _STEPS)
        used = int(_run("du", "-sk", root).split()[0])
        disk = target / "root.ext4"
        _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", root, disk,
             f"{used * 9 // 8 + (48 << 10)}k")  # fmt: skip
        shutil.rmtree(root)

    made = cache.entry(folder, name, build)
    cache.remove_others(folder, "nested-", name)
    return made / "root.ext4"


def pack_ramdisk(paths):
    """What the kernel starts first, with all that changes more often than the disk."""
    disk = base_archive(find_image(paths).busybox)
    with tempfile.TemporaryDirectory() as folder:
        _run("tar", "-x", "-f", find_packages(paths), "-C", folder, "./usr/lib/modules")
        (modules,) = Path(folder, "usr/lib/modules").iterdir()
        add_modules(disk, modules, MODULES)
    for path, content in (
        ("/usr/local/bin/nova-hpc-guest", single_file()),
        ("/usr/local/bin/systemctl", Path(unit_runner.__file__).read_bytes()),
        ("/usr/local/sbin/lab-services", _SERVICES.encode()),
        (AGENT, _AGENT.encode()),
    ):
        disk.file(f"own{path}", content, 0o755)
    disk.file("init", _INIT.encode(), 0o755)
    return disk.pack()


def upload_guest(lab):
    """Put the guest into the lab's Glance."""
    glance = lab.connection.image
    ramdisk = glance.create_image(
        name=f"{IMAGE}-ramdisk",
        data=pack_ramdisk(Paths.from_environment(lab.environ)),
        visibility="public",
        disk_format="ari",
        container_format="ari",
    )
    glance.create_image(
        name=IMAGE,
        filename=str(prepare_disk()),
        visibility="public",
        disk_format="raw",
        container_format="bare",
        # The kernel of the lab's own guest is of the same packages.
        kernel_id=glance.find_image("hpc-guest-kernel").id,
        ramdisk_id=ramdisk.id,
        **IMAGE_PROPERTIES | {"os_command_line": LINE},
    )


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{words[:3]}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout
