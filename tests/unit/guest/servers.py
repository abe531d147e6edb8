# SPDX-License-Identifier: Apache-2.0
"""Servers of random hosts, told and started, and the command run on them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st

from nova_hpc.guest_tree.guest_document import DocumentCell
from nova_hpc_guest import command, terms
from tests.unit.guest.worlds import Guest, boot, domain_of, hosts
from virt_driver_patches.domain import fwcfg
from virt_driver_patches.domain.guest_domain import GuestDomainXml

CELLS = (DocumentCell(8, 1 << 24, 1048576, 1), DocumentCell(8, 1 << 24, 1048576, 0))
#: The host's node 0 is the guest's cell 1: numbers must not be mixed up.
HOME = {1: 0, 0: 1}
MEMORY = [(8, (1 << 24) - 500000)] * 2

#: For tests that write the files of a whole guest.
fewer = settings(max_examples=max(10, settings.default.max_examples // 4))


@st.composite
def servers(draw):
    """A host, some of its devices in some order, and the seed of what follows."""
    node = draw(hosts())
    addresses = [function.address for function in node.functions]
    chosen = draw(st.lists(st.sampled_from(addresses), min_size=1, max_size=8, unique=True))
    return node, chosen, draw(st.integers(0, 1 << 30))


def told(xml: str, node, topology, roles=None) -> str:
    """The domain with what its guest is told."""
    domain = GuestDomainXml(xml)
    fwcfg.tell_guest_devices(domain, node, topology, CELLS, roles or {})
    return domain.text()


def start(folder: str, node, chosen, topology="mirror", roles=None) -> Guest:
    """Build the domain, tell the guest, and start it."""
    xml = domain_of(node, chosen, HOME, topology == "mirror")
    return boot(Path(folder), told(xml, node, topology, roles), node, MEMORY)


def run(guest: Guest, *arguments: str) -> tuple[int, str, str]:
    """The command on the guest, in this process."""
    out, err = io.StringIO(), io.StringIO()
    name, *rest = arguments
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command.main([name, "--root", str(guest.root), *rest])
    return status, out.getvalue(), err.getvalue()


def gpu_of(guest: Guest) -> Path:
    return guest.folders["0000:1a:00.0"]


def fw_cfg_of(guest: Guest) -> Path:
    return guest.root / f"sys/firmware/qemu_fw_cfg/by_name/{terms.DOCUMENT}/raw"


def remove(guest, victim, dice):
    (guest.root / "sys/bus/pci/devices" / victim.name).unlink()
    return "device"
