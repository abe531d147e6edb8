"""From Nova's domain to one with the guest's PCIe tree: a pure transform.

The guest's hardware must not change below it, so each version of the rules
stays here as it is, and a server is always given the version that it was
started with.
"""

from __future__ import annotations

from lxml import etree

from nova_hpc.guest_tree import Abi, Plan
from virt_driver_patches.domain.mirror import clique as mirror_clique
from virt_driver_patches.domain.mirror import room as mirror_room
from virt_driver_patches.domain.mirror import tree as mirror_tree
from virt_driver_patches.domain.mirror import windows as mirror_windows

#: Machine type whose PCIe can be arranged.
MACHINE = "q35"


class MachineError(ValueError):
    """The domain is not of a machine type with PCIe; the text says the cure."""


def check_machine(machine: str | None, mode: str) -> None:
    """Refuse any machine type but q35.

    :param machine: ``q35``, ``pc-q35-9.2``, ``pc``, ...; None: QEMU's default.
    :param mode: the word of ``hpc:guest_topology``.
    :raises MachineError: it is another one.
    """
    if machine is None or MACHINE not in machine.split("-"):
        raise MachineError(
            f"hpc:guest_topology={mode} needs the machine type q35, and this server's is "
            f"{machine or 'the default, pc'}: set the image property hw_machine_type=q35."
        )


def sources(xml: str) -> tuple[str, ...]:
    """Host addresses of the devices that a domain passes through, in its order."""
    return tuple(address for address, _ in mirror_tree.hostdevs(_parse(xml)))


def apply(xml: str, plan: Plan, abi: Abi) -> str:
    """Give the domain the tree of *plan*; one without bridges leaves it as it is.

    :param abi: the rules to follow.
    :raises MachineError: it is no q35 machine.
    """
    if not plan.bridges:
        return xml
    return _VERSIONS[abi.version](xml, plan, abi)


def _first(xml: str, plan: Plan, abi: Abi) -> str:
    old = _parse(xml)
    kind = old.find("os/type")
    check_machine(None if kind is None else kind.get("machine"), abi.mode.value)
    domain = mirror_clique.with_namespace(old)
    seats = mirror_tree.arrange(domain, plan)
    mirror_room.leave(domain, first=len(plan.bridges) + 1)
    mirror_windows.widen(domain, plan.span)
    if abi.clique:
        mirror_clique.show(domain, seats, plan.cliques)
    etree.indent(domain, space="  ")
    return str(etree.tostring(domain, encoding="unicode")) + "\n"


_VERSIONS = {1: _first}


def _parse(xml: str) -> etree._Element:
    # Strings of users are in it; Nova escapes them, and no entity is ever needed.
    return etree.fromstring(xml, etree.XMLParser(resolve_entities=False, huge_tree=False))
