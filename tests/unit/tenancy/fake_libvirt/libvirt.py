# SPDX-License-Identifier: Apache-2.0
"""Stands for libvirt-python in the process that has a service VM.

The URI is that of a folder. A domain is a file in it that names the process which has made
it: with libvirt's auto-destroy a domain ends with that process, so one whose process is gone
is gone. What a domain does is the text of the file ``does`` in the folder.
"""

import os
import re
import time
from pathlib import Path

from nova_hpc.tenancy.stage import report

VIR_DOMAIN_START_PAUSED = 1
VIR_DOMAIN_START_AUTODESTROY = 2
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_OPERATION_INVALID = 55


class libvirtError(Exception):  # noqa: N801  libvirt's own name
    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code

    def get_error_code(self):
        return self.code


def registerErrorHandler(handler, context):
    pass


def alive(folder):
    """UUIDs of the domains that there are."""
    found = []
    for path in Path(folder).glob("*.domain"):
        pid = int(path.read_text().split("\n", 1)[0])
        try:
            # A process that was killed and not waited for is gone, too.
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if pid == 0 or state not in "XZ":
            found.append(path.stem)
    return found


class Stream:
    def __init__(self):
        self.domain = None
        self.told = False

    def recv(self, size):
        domain = self.domain
        while domain.paused:
            time.sleep(0.01)
        does = (domain.folder / "does").read_text()
        if does == "die" or domain.path.stem not in alive(domain.folder):
            return b""
        if self.told:
            time.sleep(3600)
        self.told = True
        words = dict(re.findall(r"nova_hpc\.(\w+)=(\S+)", domain.xml))
        # "refuse burn": only a domain with the check burn refuses.
        does, _, only = does.partition(" ")
        if only and only not in words["checks"].partition("<")[0].split(","):
            does = "pass"
        count = domain.xml.count("<hostdev ")
        good = {str(each): {"ok": True, "memory": {"bytes": 1}} for each in range(count)}
        proof = {"proof": "sanitize, crypto erase; 128 blocks read back"}
        proven = {str(each): {"ok": True, "nvme": proof} for each in range(count)}
        bad = {"0": {"ok": False, "reason": "BAR 0, MiB 1: zeros are not read as written"}}
        unable = {"0": {"ok": False, "unable": True, "reason": "check foo cannot be run"}}
        answers = {
            "pass": f"[    1.0] noise\n{report.format_report_line(words['nonce'], good)}\n",
            "prove": report.format_report_line(words["nonce"], proven) + "\n",
            "refuse": report.format_report_line(words["nonce"], bad) + "\n",
            "unable": report.format_report_line(words["nonce"], unable) + "\n",
            "silent": report.format_report_line(words["nonce"], {}) + "\n",
            "forge": report.format_report_line("0" * 32, good) + "\n",
            "hang": "Kernel panic - not syncing: No working init found.\n",
        }
        return answers[does].encode()


class Domain:
    def __init__(self, folder, uuid):
        self.folder, self.path = folder, folder / f"{uuid}.domain"
        self.xml = self.path.read_text().split("\n", 1)[1]
        self.paused = True

    def XMLDesc(self, flags):
        return self.xml

    def openConsole(self, device, stream, flags):
        stream.domain = self

    def resume(self):
        self.paused = False

    def destroy(self):
        self.path.unlink(missing_ok=True)


class Connection:
    def __init__(self, uri):
        self.folder = Path(uri.removeprefix("fake://"))

    def createXML(self, xml, flags):
        if (self.folder / "does").read_text() == "fail":
            raise libvirtError("Cannot access kernel: No such file")
        assert flags == VIR_DOMAIN_START_PAUSED | VIR_DOMAIN_START_AUTODESTROY
        uuid = re.search("<uuid>(.*)</uuid>", xml)[1]
        (self.folder / f"{uuid}.domain").write_text(f"{os.getpid()}\n{xml}")
        return Domain(self.folder, uuid)

    def newStream(self, flags):
        return Stream()

    def lookupByUUIDString(self, uuid):
        if uuid not in alive(self.folder):
            raise libvirtError("no domain", VIR_ERR_NO_DOMAIN)
        return Domain(self.folder, uuid)


def open(uri):
    if (Path(uri.removeprefix("fake://")) / "does").read_text() == "stuck":
        time.sleep(3600)
    return Connection(uri)
