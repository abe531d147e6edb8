# SPDX-License-Identifier: Apache-2.0
"""The way of a device from sysfs to the guest's NCCL file, by the product's own commands."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree
from nova_hpc.guest_tree.guest_document import DocumentCell as GuestCell
from nova_hpc.placement import flavor
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import ChoiceAnswer, DevicePool, FreeHost, HostNode, Want, WantedCell
from nova_hpc.topology import nvlink
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.wire import tags
from nova_hpc_tools.main import main
from tests.unit.guest.servers import run
from tests.unit.guest.worlds import boot
from tests.unit.virt.tree_worlds import arranged, domain
from virt_driver_patches.domain import fwcfg
from virt_driver_patches.domain.guest_domain import GuestDomainXml

MEMORY_KIB = 2 << 20  # of each cell of a guest


def command(*arguments: str | Path) -> str:
    """What ``nova-hpc inventory`` prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["inventory", *map(str, arguments)])
    assert status == 0, err.getvalue()
    return out.getvalue()


def device_spec(root: Path, config: Path, nvlink_sets: Sequence[str]) -> str:
    """The entries of ``[pci]device_spec``, as an operator gets them."""
    lines = [f"nvlink_set = {entry}" for entry in nvlink_sets]
    config.write_text("\n".join(["[hpc]", *lines, ""]))
    return command("--root", root, "--show", "device-spec", "--config-file", config)


def host(node: Node, spec: str) -> FreeHost:
    """What a scheduler makes of the entries, as long as nothing is in use."""
    pools = []
    members = {}
    for line in spec.splitlines():
        entry = json.loads(line.partition(" = ")[2])
        found = tags.parse_tags(entry)
        assert found is not None
        address = entry["address"]
        count = 1
        if isinstance(address, dict):  # of physical functions, or of VFs with the ids of theirs
            numbers = address["function"].strip("[]")
            slots = address["slot"].split("|")
            address = f"{address['domain']}:{address['bus']}:{slots[0]}.{numbers[0]}"
            count = len(numbers) * len(slots)
        function = _function(node, address)
        pools.append(
            DevicePool(
                id=address,
                name=address,
                location=found.location,
                free=len(function.virtual_functions) or count,
                serves=frozenset({found.role or ""}),
                unit=found.group,
                role=found.role,
            )
        )
        if found.nvlink:
            members[address] = found.nvlink
    nodes = tuple(
        HostNode(
            numa.id,
            numa.socket,
            len(numa.cpus),
            {pool.size_kib: pool.free or 0 for pool in numa.hugepages},
        )
        for numa in node.numa_nodes
    )
    return FreeHost(
        node.hostname or "", tuple(pools), nodes, nvlink.rebuild_nvlink_sets(members).sets
    )


def ask(
    at: FreeHost, counts: Mapping[str, int], cells: int, specs: Mapping[str, str]
) -> ChoiceAnswer:
    """Choose devices for a server of so many of each role and so many NUMA cells."""
    wants = [Want(role, role, count) for role, count in counts.items()]
    pages = [size for size, free in (at.nodes[0].pages or {}).items() if free]
    guest = [WantedCell(number, 4, MEMORY_KIB, max(pages)) for number in range(cells)]
    extra = {f"hpc:{key}": value for key, value in specs.items()}
    policy = "preferred" if specs["affinity"] in ("socket", "host") else "required"
    return choose_device_sets(flavor.build_request(extra, wants, guest, numa_policy=policy), at)


def given(node: Node, answer: ChoiceAnswer) -> list[tuple[str, str]]:
    """Address and role of each function that the node would claim: the first free ones."""
    taken: dict[str, int] = {}
    found = []
    for pick in answer.sets[0].picks:
        function = _function(node, pick.pool)
        number = taken.get(pick.pool, 0)
        taken[pick.pool] = number + 1
        virtual = function.virtual_functions
        found.append((virtual[number] if virtual else function.address, pick.want))
    return sorted(found)


def nccl_file(
    folder: Path, node: Node, devices: Sequence[tuple[str, str]], answer: ChoiceAnswer
) -> tuple[str, dict[str, str]]:
    """Start a guest that mirrors the host; in it runs ``nova-hpc-guest install``.

    :returns: its NCCL file, and the guest's addresses with those of the host.
    """
    homes = {home: cell for cell, home in answer.sets[0].cells.items()}
    rules = Abi(TopologyMode.MIRROR)
    tree = plan_guest_pci_tree(
        [TreeDevice(one, _function(node, one).location) for one, _ in devices], homes, rules
    )
    xml = domain([address for address, _ in devices], cells=len(homes))
    guest_domain = GuestDomainXml(arranged(xml, tree, rules))
    in_order = sorted(homes, key=lambda home: homes[home])
    cells = [GuestCell(4, MEMORY_KIB, None, home) for home in in_order]
    fwcfg.tell_guest_devices(guest_domain, node, "mirror", cells, dict(devices))
    guest = boot(folder, guest_domain.text(), node, [(4, MEMORY_KIB)] * len(cells))
    status, _, error = run(guest, "install")
    assert status == 0, error
    text = (guest.root / "run/nova-hpc/nccl-topology.xml").read_text()
    return text, {place.name: address for address, place in guest.folders.items()}


def _function(node: Node, address: str) -> PciFunction:
    found = node.function(address)
    assert found is not None, address
    return found
