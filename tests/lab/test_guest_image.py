# SPDX-License-Identifier: Apache-2.0
"""An image with the element of diskimage-builder, built and booted in plain emulation.

The machine has no devices, and is told that it was promised two: what it says on its console
shows that the image reads the promise at its first boot.
"""

import base64
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nova_hpc.guest import build, document

pytestmark = pytest.mark.slow

TOP = Path(__file__).resolve().parents[2]
PROMISE = TOP / "tests/data/golden/wire/guest-document/v1.json"
#: What building needs beside the packages of bindep.txt.
PROGRAMS = ("debootstrap", "kpartx", "parted", "sgdisk")
#: Seconds for a whole Debian that is emulated.
BOOT = 900

DRIVERS = """\
#!/bin/sh
set -e
echo here >/etc/drivers-were-here
cat >/etc/systemd/system/tell.service <<'UNIT'
[Unit]
After=nova-hpc-guest.service
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/sh -c 'nova-hpc-guest show; cat /etc/nccl.conf; echo TOLD'
[Install]
WantedBy=multi-user.target
UNIT
ln -sf ../tell.service /etc/systemd/system/multi-user.target.wants/tell.service
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """diskimage-builder in an environment of its own."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        pytest.skip(f"apt-get install debootstrap kpartx parted gdisk: {missing} are not there")
    place = tmp_path_factory.mktemp("dib")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    pip = [place / "venv/bin/pip", "install", "-q", "diskimage-builder", "setuptools<80"]
    subprocess.run(pip, check=True)
    return place


def mirror():
    """The mirror of Debian that this machine uses."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(CREATED_BY)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = (line.split() for line in said.splitlines())
    return next(url for url, release, kind in words if (release, kind) == ("bookworm", "Packages"))


def test_an_image_of_the_element_reads_its_promise_at_boot(builder):
    drivers = builder / "drivers"
    drivers.write_text(DRIVERS)
    done = subprocess.run(
        [
            *(builder / "venv/bin/disk-image-create", "-t", "raw", "-o", builder / "hpc"),
            *("--no-tmpfs", "debian-minimal", "vm", "nova-hpc-guest"),
        ],
        env={
            **os.environ,
            "PATH": f"{builder / 'venv/bin'}:{os.environ['PATH']}",
            "ELEMENTS_PATH": str(Path(build.__file__).parent / "elements"),
            "NOVA_HPC_PYTHON": sys.executable,
            "NOVA_HPC_DRIVERS": str(drivers),
            "DIB_RELEASE": "bookworm",
            "DIB_DISTRIBUTION_MIRROR": mirror(),
            "DIB_BOOTLOADER_DEFAULT_CMDLINE": "console=ttyS0",
            "HOME": str(builder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    console = boot(builder / "hpc.raw", builder)
    print("RESULT:", *[line for line in console.splitlines() if "device" in line][-4:], sep="\n")
    assert "topology mirror, 2 devices" in console
    assert "not there" in console or "missing" in console
    assert "NCCL_TOPO_FILE=/run/nova-hpc/nccl-topology.xml" in console


def boot(image, folder):
    """What the machine says until it has told what it was promised."""
    promise = folder / "promise"
    promise.write_bytes(base64.b64encode(PROMISE.read_bytes()))
    nccl = folder / "nccl"
    golden = PROMISE.parents[1] / "nccl-topology/v1.xml"
    nccl.write_bytes(base64.b64encode(golden.read_bytes()))
    log = folder / "console.log"
    process = subprocess.Popen(
        [
            *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-m", "1024", "-smp", "2"),
            *("-display", "none", "-nic", "none", "-serial", f"file:{log}", "-no-reboot"),
            *("-drive", f"file={image},format=raw,if=virtio"),
            *("-fw_cfg", f"name={document.DOCUMENT},file={promise}"),
            *("-fw_cfg", f"name={document.NCCL},file={nccl}"),
        ]
    )
    try:
        deadline = time.monotonic() + BOOT
        while True:
            text = log.read_text(errors="replace") if log.exists() else ""
            if "\nTOLD" in text:
                return text
            assert process.poll() is None, text[-3000:]
            assert time.monotonic() < deadline, text[-3000:]
            time.sleep(2)
    finally:
        process.kill()
        process.wait()
