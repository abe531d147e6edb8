# SPDX-License-Identifier: Apache-2.0
"""Stands for libvirt-python in the process that has a service VM of a world.

It is that of the unit tests (``tests/unit/tenancy/fake_libvirt``), and three things more. A
service VM says nothing until the world lets it (file ``go``), so that something can happen
while it has its devices. When it says that it has passed, the memory of its devices is as
new (``memory`` in the same folder). And what must never be is noted in ``seen``: a VM gets a
device that a guest which runs has.
"""

import importlib.util
import json
import re
import time
from pathlib import Path

_PLAIN = Path(__file__).parents[3] / "unit/tenancy/fake_libvirt/libvirt.py"
_spec = importlib.util.spec_from_file_location("plain_libvirt", _PLAIN)
_plain = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_plain)

VIR_DOMAIN_START_PAUSED = _plain.VIR_DOMAIN_START_PAUSED
VIR_DOMAIN_START_AUTODESTROY = _plain.VIR_DOMAIN_START_AUTODESTROY
VIR_ERR_NO_DOMAIN = _plain.VIR_ERR_NO_DOMAIN
VIR_ERR_OPERATION_INVALID = _plain.VIR_ERR_OPERATION_INVALID
libvirtError = _plain.libvirtError  # noqa: N816  libvirt's own name
registerErrorHandler = _plain.registerErrorHandler  # noqa: N816
alive = _plain.alive

_ADDRESS = re.compile(
    r'<source>\s*<address domain="0x(\w+)" bus="0x(\w+)" slot="0x(\w+)" function="0x(\w+)"'
)


def devices_of(xml):
    """Addresses of the functions that a service VM gets."""
    found = [[int(part, 16) for part in parts] for parts in _ADDRESS.findall(xml)]
    return ["{:04x}:{:02x}:{:02x}.{:x}".format(*parts) for parts in found]


class Stream(_plain.Stream):
    def recv(self, size):
        domain = self.domain
        while not (domain.folder / "go").exists() and domain.path.exists():
            time.sleep(0.01)
        text = super().recv(size)
        if text and (domain.folder / "does").read_text() == "pass":
            for address in devices_of(domain.xml):
                (domain.folder / "memory" / address).unlink(missing_ok=True)
        return text


class Connection(_plain.Connection):
    def createXML(self, xml, flags):
        path = self.folder.parent / "domains.json"
        guests = json.loads(path.read_text())["domains"].values() if path.exists() else ()
        busy = {each for guest in guests if guest["running"] for each in guest["devices"]}
        mine = devices_of(xml)
        with (self.folder / "seen").open("a") as seen:
            if not mine:
                seen.write("a service VM was started without devices\n")
            for each in sorted(busy.intersection(mine)):
                seen.write(f"{each} is in a service VM while a guest has it\n")
        return super().createXML(xml, flags)

    def newStream(self, flags):
        return Stream()


def open(uri):
    _plain.open(uri)
    return Connection(uri)
