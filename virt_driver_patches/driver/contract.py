# SPDX-License-Identifier: Apache-2.0
"""Conditions for the service to start with ``hpc_*`` tags.

Every refusal names the option to change. Without tags there are no checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova import exception
from nova.pci import request as pci_request
from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova_hpc.from_nova import gate
from nova_hpc.from_nova.claim import Specs, hpc_tags
from nova_hpc.tenancy.health import OfferedFunction
from nova_hpc.topology.model import Node
from nova_hpc.wire import tags

LOG = logging.getLogger(__name__)

_Offers = Mapping[str, tuple[OfferedFunction, Mapping[str, str]]]


def check_config(conf: Any) -> bool:
    """Check the options; call it before the driver connects to libvirt.

    :returns: whether this project is in use on the node.
    :raises nova.exception.InvalidConfiguration: it is in use, and an option is wrong.
    """
    specs = Specs.parse(conf.pci.device_spec)
    if not specs.tagged:
        LOG.info("No entry of [pci]device_spec has hpc_* tags: nova-hpc has no effect here")
        return False
    gate.check_release()
    if conf.libvirt.virt_type not in ("kvm", "qemu"):
        raise exception.InvalidConfiguration(
            f"[libvirt]virt_type is {conf.libvirt.virt_type}, but [pci]device_spec has hpc_* "
            "tags: set it to kvm or qemu, which alone can pass PCI devices through."
        )
    if not conf.pci.report_in_placement:
        raise exception.InvalidConfiguration(
            "[pci]report_in_placement is off, but [pci]device_spec has hpc_* tags: set it to "
            "true. Without it the scheduler cannot choose exact devices."
        )
    for spec in specs.matcher.specs:
        try:
            tags.parse_tags(spec.tags)
        except tags.TagError as error:
            entry = jsonutils.dumps(spec.dev_spec_conf)
            raise exception.InvalidConfiguration(
                f"[pci]device_spec entry {entry}: {error}. `nova-hpc inventory --format "
                "device-spec` prints the entries of this node."
            ) from error
    return True


def check_segment_options(conf: Any) -> None:
    """Check the options of shared memory.

    :raises nova.exception.InvalidConfiguration: this node cannot provide shared memory.
    """
    if not any(int(value.rpartition(":")[2]) for value in conf.hpc.shared_memory_mb):
        return
    gate.check_release()
    if conf.libvirt.virt_type not in ("kvm", "qemu"):
        raise exception.InvalidConfiguration(
            f"[libvirt]virt_type is {conf.libvirt.virt_type}, but [hpc]shared_memory_mb is set: "
            "set it to kvm or qemu, which alone can share memory between guests, or "
            "shared_memory_mb to 0."
        )
    if not conf.hpc.shared_memory_dir.startswith("/"):
        raise exception.InvalidConfiguration(
            f"[hpc]shared_memory_dir is {conf.hpc.shared_memory_dir}: set it to an absolute path."
        )


def check_devices(offers: _Offers, node: Node) -> None:
    """Refuse entries of ``device_spec`` that give the VFs of one PF different ``hpc_*`` tags.

    :raises nova.exception.InvalidConfiguration: VFs of one PF differ in tags.
    """
    for reason in mixed_tags(offers, node).values():
        raise exception.InvalidConfiguration(
            f"[pci]device_spec: {reason}. Nova reports them as one resource provider: give "
            "all of them the same hpc_* tags, best with one entry for the physical function."
        )


def mixed_tags(offers: _Offers, node: Node) -> dict[str, str]:
    """Return address -> reason, for the VFs of a PF whose tags are not all the same.

    VFs for ports are ignored: they form pools of their own.
    """
    families: dict[str, list[str]] = {}
    for address in offers:
        function = node.function(address)
        if function is None or pci_request.PCI_NET_TAG in offers[address][1]:
            continue
        if function.physical_function is not None:
            families.setdefault(function.physical_function, []).append(address)
    mixed = {}
    for parent, children in families.items():
        first = hpc_tags(offers[children[0]][1])
        if any(hpc_tags(offers[child][1]) != first for child in children):
            roles = sorted({str(offers[child][1].get(tags.ROLE)) for child in children})
            reason = f"the virtual functions of {parent} have different hpc_* tags"
            if len(roles) > 1:
                reason += f" (the roles {' and '.join(roles)})"
            mixed.update(dict.fromkeys(children, reason))
    return mixed
