# SPDX-License-Identifier: Apache-2.0
"""The host CPUs and NUMA nodes of a guest, read from its domain XML. Pure."""

from __future__ import annotations

import re
from typing import Final

import attrs
from lxml import etree

from nova_hpc_guest.accept.facts import read_cpu_list
from nova_hpc_guest.accept.refusal import Refusal
from nova_hpc_guest.compare import GuestFinding

_LONGEST: Final = 1 << 24
_SET: Final = re.compile(r"[0-9,^-]{1,4096}", re.ASCII)


class GuestPlaceError(Exception):
    """The XML of a guest domain cannot be read, or has invalid values. The text has the reason."""


@attrs.frozen
class GuestPlace:
    """The place of a guest on its host.

    :ivar emulated: QEMU computes its instructions in software, instead of the host's CPU.
    :ivar cpus: for each vCPU, the host CPUs that it may run on.
    :ivar nodes: the host's NUMA nodes to which its memory is bound; empty if it is not bound.
    """

    emulated: bool
    cpus: tuple[tuple[int, ...], ...]
    nodes: tuple[int, ...] = ()

    @property
    def host_cpus(self) -> tuple[int, ...]:
        """The host CPUs of all vCPUs, sorted and without duplicates."""
        return tuple(sorted({cpu for cpus in self.cpus for cpu in cpus}))

    @property
    def refusal(self) -> Refusal | None:
        """The reason why the host is no baseline for this guest; None if it is one."""
        if self.emulated:
            return Refusal(
                "emulated",
                "the guest is emulated by software (a domain of type qemu): a ratio to the host's "
                "CPU has no meaning. Without a baseline nova-hpc-guest accept judges it alone",
            )
        floating = [number for number, cpus in enumerate(self.cpus) if len(cpus) != 1]
        if floating or not self.cpus:
            return Refusal(
                "not pinned",
                f"{len(floating)} of {len(self.cpus)} vCPUs are not pinned to one CPU of the host, "
                "so that there are no same cores to compare with: hw:cpu_policy=dedicated",
            )
        return None

    @property
    def findings(self) -> tuple[GuestFinding, ...]:
        """Problems that are visible without any measurement: vCPUs that share one host CPU."""
        sharing: dict[int, list[int]] = {}
        for number, cpus in enumerate(self.cpus):
            for cpu in cpus if len(cpus) == 1 else ():
                sharing.setdefault(cpu, []).append(number)
        return tuple(
            GuestFinding(
                "cells",
                None,
                f"vCPUs {', '.join(map(str, numbers))} are pinned to one CPU of the host, {cpu}",
                True,
            )
            for cpu, numbers in sorted(sharing.items())
            if len(numbers) > 1
        )


def read_guest_place(text: str) -> GuestPlace:
    """Read the place of a guest from the XML of its domain.

    :raises GuestPlaceError: the text is not a domain's XML, or has invalid CPUs or nodes.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(text[:_LONGEST].encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError as error:
        raise GuestPlaceError(f"its XML cannot be read: {error}") from error
    count = (root.findtext("vcpu") or "").strip()
    if root.tag != "domain" or not re.fullmatch(r"[0-9]{1,5}", count, re.ASCII):
        raise GuestPlaceError("its XML describes no domain, or has no number of vCPUs")
    pins = {
        pin.get("vcpu", ""): _read_set(pin.get("cpuset", ""))
        for pin in root.findall("cputune/vcpupin")
    }
    common = _read_set(vcpu.get("cpuset", "")) if (vcpu := root.find("vcpu")) is not None else ()
    nodes = {
        node
        for path in ("numatune/memory", "numatune/memnode")
        for bound in root.findall(path)
        for node in _read_set(bound.get("nodeset", ""))
    }
    return GuestPlace(
        emulated=root.get("type") != "kvm",
        cpus=tuple(pins.get(str(number), common) for number in range(int(count))),
        nodes=tuple(sorted(nodes)),
    )


def _read_set(text: str) -> tuple[int, ...]:
    """Parse numbers in libvirt's notation, such as ``0-3,^2``; empty for an empty text.

    :raises GuestPlaceError: the text has another form.
    """
    if not text:
        return ()
    if not _SET.fullmatch(text):
        raise GuestPlaceError(f"its XML has a set of numbers that is none: {text[:60]!a}")
    parts = text.split(",")
    kept = ",".join(part for part in parts if not part.startswith("^"))
    without = ",".join(part[1:] for part in parts if part.startswith("^"))
    return tuple(sorted(set(read_cpu_list(kept)) - set(read_cpu_list(without))))
