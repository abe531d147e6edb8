# SPDX-License-Identifier: Apache-2.0
"""Makes Nova read ``[pci]device_spec`` and ``[pci]alias``, as at a start of nova-compute.

The entry point ``nova_pci_settings`` of ``nova_hpc.readers``. It sends no request to the cloud: the
values of the options are given, and so is the node, which may be a capture of another machine.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nova import objects
from nova.compute import pci_placement_translator
from nova.pci import devspec, request, whitelist
from nova.pci import utils as pci_utils

from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.site.nova_rules import NovaRefusal, PciSettings

#: Serial number of a virtual function if it was not read.
_SERIAL: Final = "not read"


def list_refused_settings(told: PciSettings, node: Node, root: Path) -> list[NovaRefusal]:
    """List the settings that Nova refuses, in Nova's own words.

    :param node: the node whose devices Nova would see.
    :param root: the directory that contains the node's ``sys``.
    """
    objects.register_all()
    with _redirect_sysfs(root, node), _options_in_force(told):
        return [*_check_device_entries(told, node), *_check_aliases()]


def _check_device_entries(told: PciSettings, node: Node) -> Iterator[NovaRefusal]:
    broken = False
    for value in told.device_spec:
        try:
            specs = whitelist.Whitelist([value]).specs
            if told.report:
                pci_placement_translator.ensure_no_dev_spec_with_devname(specs)
        except Exception as error:  # whatever the error: nova-compute does not start with it
            broken = True
            yield NovaRefusal("device_spec", _text_of_refusal(error), (value,))
    if told.report and not broken:
        yield from _check_device_providers(whitelist.Whitelist(list(told.device_spec)), node)


def _check_device_providers(entries: whitelist.Whitelist, node: Node) -> Iterator[NovaRefusal]:
    """Find the devices that Nova refuses when it makes their providers."""
    view = pci_placement_translator.PlacementView("node", [])
    refused = set()
    for function in node.functions:
        if function.vendor_id is None or function.product_id is None:
            continue  # libvirt describes no such device
        provider = function.physical_function or function.address
        device = None
        try:
            if entries.device_assignable(_describe_for_nova(function)) is None:
                continue
            device = objects.PciDevice.create(None, _describe_for_nova(function))
            view.process_dev(device, entries.get_devspec(device))
        except Exception as error:
            if device is None:
                continue  # Nova, too, skips devices without a name (manager.py, 32-bit domains)
            if provider not in refused:
                refused.add(provider)
                yield NovaRefusal("device_spec", _text_of_refusal(error), (), provider)


def _describe_for_nova(function: PciFunction) -> dict[str, Any]:
    """Describe a PCI function in the keys that Nova's libvirt driver uses."""
    return {
        "address": function.address,
        "vendor_id": function.vendor_id,
        "product_id": function.product_id,
        "parent_addr": function.physical_function,
        "dev_type": function.dev_type,
        "numa_node": function.numa_node,
        "label": "",
        "status": "available",
        "compute_node_id": 1,
        "capabilities": {"vpd": {"card_serial_number": _SERIAL}},
    }


def _check_aliases() -> Iterator[NovaRefusal]:
    forget = getattr(request.get_alias_from_config, "cache_clear", lambda: None)
    forget()
    try:
        request.get_alias_from_config()
    except Exception as error:
        yield NovaRefusal("alias", _text_of_refusal(error))
    finally:
        forget()


def _text_of_refusal(error: Exception) -> str:
    text = " ".join(str(getattr(error, "msg", None) or error).split()).rstrip(".")
    return text if text else type(error).__name__


# --- paths that Nova reads -----------------------------------------------------------


@contextlib.contextmanager
def _options_in_force(told: PciSettings) -> Iterator[None]:
    """Replace the configuration of Nova's modules by these options while the block runs."""
    conf = types.SimpleNamespace(
        pci=types.SimpleNamespace(report_in_placement=told.report, alias=list(told.aliases)),
        filter_scheduler=types.SimpleNamespace(pci_in_placement=told.in_placement),
    )
    with contextlib.ExitStack() as stack:
        for module in (devspec, request, pci_placement_translator):
            if hasattr(module, "CONF"):
                stack.enter_context(_replace_attribute(module, "CONF", conf))
        yield


@contextlib.contextmanager
def _redirect_sysfs(root: Path, node: Node) -> Iterator[None]:
    """Redirect Nova's reads of ``/sys`` to another machine's files; changes nothing here."""
    if root.resolve() == Path("/"):
        yield
        return

    def here(path: str) -> Path:
        return root / str(path).lstrip("/")

    def by_interface(name: str) -> tuple[str | None, bool]:
        # A capture may not have /sys/class/net.
        for function in node.functions:
            if f"net {name}" in function.os_devices:
                return function.address, function.dev_type == "type-PF"
        return None, False

    def is_physical(domain: str, bus: str, slot: str, function: str) -> bool:
        device = node.function(f"{domain}:{bus}:{slot}.{function}")
        return device is not None and device.dev_type == "type-PF"

    system = types.SimpleNamespace(
        path=types.SimpleNamespace(isdir=lambda path: here(path).is_dir(), join=os.path.join),
        readlink=lambda path: str(here(path).readlink()),
        listdir=lambda path: [entry.name for entry in here(path).iterdir()],
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replace_attribute(pci_utils, "os", system))
        stack.enter_context(_replace_attribute(pci_utils, "open", lambda path: here(path).open()))
        stack.enter_context(_replace_attribute(pci_utils, "get_function_by_ifname", by_interface))
        stack.enter_context(_replace_attribute(pci_utils, "is_physical_function", is_physical))
        yield


@contextlib.contextmanager
def _replace_attribute(module: types.ModuleType, name: str, value: object) -> Iterator[None]:
    missing = object()
    before = module.__dict__.get(name, missing)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(module, name)
        else:
            setattr(module, name, before)
