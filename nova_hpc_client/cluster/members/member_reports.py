# SPDX-License-Identifier: Apache-2.0
"""Reports of faults by a member's owner: the tags to write, and why a report is refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire import server_devices, server_faults
from nova_hpc_common.wire.server_faults import FaultWord

#: Tags of a server that Nova's API allows (nova/objects/instance.py, ``MAX_TAG_COUNT``).
MOST_TAGS: Final = 50
#: Kinds of ports whose server has a device of its host.
_DIRECT: Final = ("direct", "direct-physical")


def read_reports(server: Mapping[str, Any]) -> tuple[FaultWord, ...]:
    """Read the faults that its owner has reported, the worst first.

    :param server: a record of Nova's API.
    """
    return server_faults.read_report_tags(server.get("tags") or ())


def explain_refusal(
    server: Mapping[str, Any], ports: Iterable[Mapping[str, Any]], word: FaultWord
) -> str:
    """Return the reason, with its cure, why a fault cannot be reported; "" if it can.

    :param server: a record of Nova's API.
    :param ports: the server's ports, records of Neutron's API.
    """
    name, tags = printable_text(str(server.get("name") or server["id"])), server.get("tags") or ()
    if not server.get("hostId"):
        return f"{name} is {server.get('status')} and on no host, so it has no devices to report"
    if not _may_have_devices(server, ports):
        return f"{name} has no PCI devices: its flavor asks for none, and no port of it is direct"
    if word.report_tag not in tags and len(tags) >= MOST_TAGS:
        unset = shell_command("openstack", "server", "unset", "--tag", "TAG", str(server["id"]))
        return f"{name} has {len(tags)} tags, and Nova allows {MOST_TAGS}: remove one with {unset}"
    return ""


def _may_have_devices(server: Mapping[str, Any], ports: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a server has devices; True if Nova does not show its owner the flavor's keys."""
    devices = server_devices.server_devices_of_metadata(server.get("metadata") or {})
    if devices is not None and devices.roles:
        return True
    specs = (server.get("flavor") or {}).get("extra_specs")
    if specs is None or "pci_passthrough:alias" in specs:
        return True
    return any(
        port.get("device_id") == server["id"] and port.get("binding:vnic_type") in _DIRECT
        for port in ports
    )
