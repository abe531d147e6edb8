# SPDX-License-Identifier: Apache-2.0
"""Evidence on a compute node: libvirt's XML of a server, and the cleaning of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oslo_config import cfg

from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.stage.device_stage import StagePhase
from nova_hpc.wire.ledger import LedgerDevice
from nova_hpc_common.outside.host_names import is_uuid
from nova_hpc_requirements.domain_facts import DomainFacts, read_domain_facts
from nova_hpc_requirements.step_context import PLATFORM, StepContext
from nova_hpc_requirements.verdicts import EvidenceError
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.device.command import ManagedNode
from nova_hpc_tools.doctor import libvirt_domains
from nova_hpc_tools.site import service_settings

Output = dict[str, Any]
_TOPOLOGY: Final = "2.78"
_GPU: Final = "gpu"
_DISPLAY: Final = "03"
#: Backends of Nova's local disks that give each server a fresh file or object, whose unwritten
#: part reads as zeros (nova/virt/libvirt/imagebackend.py of 32 to 34).
_FRESH: Final = ("default", "raw", "qcow2", "flat", "ploop", "rbd")
_DISKS: Final = {
    "libvirt": [
        cfg.StrOpt("images_type", default="default"),
        cfg.StrOpt("volume_clear", default="zero"),
    ]
}


def virtual_device_hardening(context: StepContext) -> Output:
    """Report unnecessary devices of a server on this node, from libvirt's XML."""
    return describe_hardening(_read_domain(context))


def describe_hardening(domain: DomainFacts) -> Output:
    """Describe the facts about a server's virtual devices in the suite's form."""
    findings = {
        "usb_devices_disabled": domain.usb,
        "clipboard_disabled": domain.clipboard,
        "unnecessary_virtual_devices_absent": domain.needless,
    }
    return {
        "success": True,
        "platform": PLATFORM,
        "test_name": "virtual_device_hardening",
        "instance_id": domain.uuid,
        "source": "libvirt",
        "tests": {
            name: {"passed": not found}
            | ({"error": f"it has {', '.join(found)}"} if found else {"message": "none"})
            for name, found in findings.items()
        },
    }


def vcpu_pinning(context: StepContext) -> Output:
    """Report the host CPUs of each vCPU, from libvirt's XML and from Nova's record if readable."""
    domain = _read_domain(context)
    recorded = None
    if context.options.os_cloud is not None:
        path = f"/servers/{domain.uuid}/topology"
        recorded = read_recorded_pins(context.rest.nova("GET", path, microversion=_TOPOLOGY))
    return {
        "success": True,
        "platform": PLATFORM,
        "instance_id": domain.uuid,
        "vcpus": domain.vcpus,
        "pins": {str(vcpu): sorted(cpus) for vcpu, cpus in sorted(domain.pins.items())},
        "recorded": recorded,
        "hostdevs": domain.hostdevs,
    }


def read_recorded_pins(topology: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the pinning in Nova's record: vCPU -> host CPU; None if hidden or empty."""
    pins: dict[str, int] = {}
    for node in topology.get("nodes") or ():
        pins.update(
            {str(key): int(value) for key, value in (node.get("cpu_pinning") or {}).items()}
        )
    return pins or None


def _read_domain(context: StepContext) -> DomainFacts:
    server = context.options.server
    if not is_uuid(server):
        raise EvidenceError("give the server's ID, which is its name in libvirt: --server UUID")
    try:
        options = service_settings.read_node_options(context.options.config, ())
    except service_settings.ConfigError as error:
        raise EvidenceError(str(error)) from error
    uri = options.libvirt.connection_uri or libvirt_domains.DEFAULT_URI
    try:
        text = libvirt_domains.read_domain_xml(uri, server)
    except libvirt_domains.DomainUnreadError as error:
        raise EvidenceError(str(error)) from error
    return read_domain_facts(text)


def query_sanitization(context: StepContext) -> Output:
    """Report each device in this node's ledger: its last server, and whether it was cleaned."""
    try:
        node = ManagedNode.read_existing(context.options.config)
        disks = _read_disks(context)
    except (CommandError, LedgerError, service_settings.ConfigError) as error:
        raise EvidenceError(str(error)) from error
    ill = node.ill()
    machines = [
        describe_device(
            address,
            node.ledger.device(address),
            free=node.condition(address, ill)[0] == "free",
            gpu=_is_gpu(node, address),
        )
        for address in node.addresses()
    ]
    return {
        "success": True,
        "platform": "bm",
        "machines_checked": len(machines),
        "machines": machines,
        "disks": disks,
    }


def _is_gpu(node: ManagedNode, address: str) -> bool:
    function = node.node.function(address)
    code = "" if function is None else function.class_code or ""
    return node.role(address) == _GPU or code.startswith(_DISPLAY)


def describe_device(address: str, device: LedgerDevice, free: bool, gpu: bool) -> Output:
    """Describe a device in the suite's form of a machine.

    A device that is not offered has not come back from its last server.

    :param free: whether the device is offered.
    """
    stage = device_stage.load_stage(device.stage)
    passed = stage is not None and stage.phase is StagePhase.CLEAN and stage.seconds is not None
    served = bool(device.server or device.last_server or device.cleaned or device.failed)
    steps = ["in_use", "sanitizing", "available"] if device.cleaned else []
    return {
        "machine_id": address,
        "status": "available" if free else "in_use" if device.server else "sanitizing",
        "available": free,
        "in_use": device.server is not None and not free,
        "has_gpu": gpu,
        "served_tenant": served,
        "sanitized": device.proof is not None or not free,
        "cleaned_within": passed or not free,
        "stale_tenant_binding": free and device.server is not None,
        "transitions": steps if free else steps[:-1],
        "cleaned": device.cleaned,
        "failed": device.failed,
    }


def _read_disks(context: StepContext) -> Output:
    files = service_settings.config_files_of(context.options.config)
    options = service_settings.load_options(files, _DISKS)
    return describe_disks(options.libvirt.images_type, options.libvirt.volume_clear)


def describe_disks(images_type: str, volume_clear: str) -> Output:
    """Whether local disks of servers start empty, by Nova's settings."""
    if images_type in _FRESH:
        return {"wiped": True, "detail": f"[libvirt]images_type = {images_type}: a fresh disk"}
    if images_type == "lvm":
        detail = f"[libvirt]images_type = lvm, volume_clear = {volume_clear}"
        return {"wiped": volume_clear in ("zero", "shred"), "detail": detail}
    return {"wiped": None, "detail": f"[libvirt]images_type = {images_type} is not known here"}
