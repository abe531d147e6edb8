# SPDX-License-Identifier: Apache-2.0
"""The check ``nvme`` on a kernel and QEMU's emulated disk, in the image of a service VM.

``NOVA_HPC_TEST_KERNEL`` names a kernel with the driver ``nvme`` built in, such as Debian's
``linux-image-cloud-amd64``. QEMU's disk knows Format NVM and no Sanitize.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nova_hpc.tenancy.stage import build, report

KERNEL = os.environ.get("NOVA_HPC_TEST_KERNEL", "")
QEMU = shutil.which("qemu-system-x86_64")
BUSYBOX = shutil.which("busybox")
NONCE = "0123456789abcdef"
#: Seconds after which the test is given up.
LONGEST = 600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (KERNEL and QEMU and BUSYBOX), reason="needs NOVA_HPC_TEST_KERNEL, QEMU and busybox"
    ),
]


def test_the_disk_of_a_tenant_is_erased(tmp_path: Path) -> None:
    disk, image, console = tmp_path / "disk", tmp_path / "initrd", tmp_path / "console"
    secret = b"secret of a tenant ".ljust(512, b".")
    disk.write_bytes(secret * (16 << 11))
    image.write_bytes(build.build_stage_initrd(Path(BUSYBOX or ""), Path("/usr/bin/python3")))
    argv = [
        QEMU or "",
        *("-M", "q35", "-m", "768", "-nographic", "-no-reboot", "-nodefaults"),
        *("-serial", f"file:{console}", "-kernel", KERNEL, "-initrd", str(image)),
        *("-append", f"console=ttyS0 nova_hpc.nonce={NONCE} nova_hpc.checks=nvme"),
        *("-device", "pcie-root-port,id=above,addr=0x10,chassis=1"),
        *("-drive", f"file={disk},if=none,id=disk,format=raw,cache=writethrough"),
        *("-device", "nvme,serial=1,drive=disk,bus=above"),
    ]
    process = subprocess.Popen(argv)
    try:
        end, found = time.monotonic() + LONGEST, None
        while found is None and process.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
            text = console.read_text("ascii", "replace") if console.exists() else ""
            found = report.find_stage_report(text, NONCE)
    finally:
        process.kill()
        process.wait()
    assert found is not None, text[-2000:]
    assert found["0"]["ok"] is True, found
    assert report.proof_of_result(found["0"]).startswith("format, user data erase; 128 blocks")
    assert disk.read_bytes() == bytes(16 << 20)
