# SPDX-License-Identifier: Apache-2.0
"""A guest that has a GPU share's engine, and starts within a minute when nested.

It begins what the units of the product begin (:mod:`tests.lab.nested_guest`). In place of systemd
there is :mod:`tests.gpu.unit_runner`, so a unit's own filter of addresses and its sandbox are not
tried here but in ``tests/gpu/test_emulated_guests.py``.
"""

import shutil
from pathlib import Path

from nova_hpc_guest.build import single_file
from tests.gpu import two_guests, unit_runner
from tests.gpu.engine_root import prepare_engine_root
from tests.lab import nested_guest
from tests.lab.nested_guest import run_program

HERE = Path(__file__).parent
IMAGE = "gpu-guest"
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
_SERVICES = f"""\
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
for end in client serve; do
    while :; do nova-hpc-guest gpu $end >>/run/$end.log 2>&1; sleep 5; done &
done
while :; do python3 {nested_guest.AGENT} >>/run/agent.log 2>&1; sleep 1; done
"""


def prepare_disk():
    """The disk of the image, with the engine, made unless it is in the cache; half a minute."""
    engine_root = prepare_engine_root()

    def fill(root):
        run_program("cp", "-a", engine_root, root)
        shutil.copy(_JOB, root / "opt")
        run_program("chroot", root, "sh", "-exc", _STEPS)

    key = ("1", engine_root.parent.name, _STEPS, _JOB.read_text())
    return nested_guest.prepare_disk("gpu", key, fill)


def upload_guest(lab):
    """Put the guest into the lab's Glance."""
    ramdisk = nested_guest.pack_ramdisk(
        nested_guest.paths_of(lab),
        _SERVICES,
        (
            ("/usr/local/bin/nova-hpc-guest", single_file()),
            ("/usr/local/bin/systemctl", Path(unit_runner.__file__).read_bytes()),
        ),
        (*nested_guest.MODULES, "wireguard"),
    )
    nested_guest.upload_guest(lab, IMAGE, prepare_disk(), ramdisk)
