"""What a virtual function is set to, and the steps that set it. Pure.

The values come from the port's binding or from an allocator, never from a
flavor or an image: whoever may choose a MAC or a GUID may be somebody else.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import Function, Node

_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
NO_MAC: Final = "00:00:00:00:00:00"
#: The longest rate that a 32-bit number of Mb/s is used for, 10 Tb/s.
_MOST_RATE: Final = 10_000_000


class AdapterError(Exception):
    """A virtual function cannot be set; the text names it and says why."""


class Layer(enum.Enum):
    """What the port of an adapter speaks; RoCE is Ethernet."""

    ETHERNET = "Ethernet"
    INFINIBAND = "InfiniBand"


class LinkState(enum.Enum):
    """What the link of a virtual function follows."""

    AUTO = "auto"  # the link of the adapter
    UP = "up"
    DOWN = "down"


def _mac(instance: object, attribute: Any, value: str) -> None:
    if not _MAC.fullmatch(value) or int(value[:2], 16) & 1:
        raise ValueError(f"{value!r} is no MAC address of a single interface, in lower case")


def _guid(instance: object, attribute: Any, value: int) -> None:
    # All ones is the broadcast of EUI-64.
    if not 0 <= value < (1 << 64) - 1:
        raise ValueError(f"{value:#x} is no GUID")


def _within(low: int, high: int) -> Any:
    def check(instance: object, attribute: Any, value: int) -> None:
        if not low <= value <= high:
            raise ValueError(f"{attribute.name} is {value}, not within {low} and {high}")

    return check


@attrs.frozen
class Ethernet:
    """Settings of a virtual function on Ethernet (also RoCE). Rates in Mb/s; 0: none."""

    mac: str = attrs.field(validator=_mac)
    vlan: int = attrs.field(default=0, validator=_within(0, 4094))
    qos: int = attrs.field(default=0, validator=_within(0, 7))
    spoof_check: bool = True
    trust: bool = False
    min_rate: int = attrs.field(default=0, validator=_within(0, _MOST_RATE))
    max_rate: int = attrs.field(default=0, validator=_within(0, _MOST_RATE))
    link_state: LinkState = LinkState.AUTO

    @property
    def layer(self) -> Layer:
        """Where these settings belong."""
        return Layer.ETHERNET


@attrs.frozen
class Infiniband:
    """Settings of a virtual function on InfiniBand."""

    node_guid: int = attrs.field(validator=_guid)
    port_guid: int = attrs.field(validator=_guid)
    link_state: LinkState = LinkState.AUTO

    @property
    def layer(self) -> Layer:
        """Where these settings belong."""
        return Layer.INFINIBAND


Settings = Ethernet | Infiniband

#: What a virtual function is left with: nobody's address, no rights, no link.
CLEARED: Final[Mapping[Layer, Settings]] = {
    Layer.ETHERNET: Ethernet(NO_MAC, link_state=LinkState.DOWN),
    Layer.INFINIBAND: Infiniband(0, 0, LinkState.DOWN),
}


@attrs.frozen
class VirtualFunction:
    """A virtual function as its adapter knows it."""

    address: str
    #: Its number at the adapter, from 0.
    index: int
    layer: Layer
    #: Driver of the physical function, e.g. ``mlx5_core``.
    driver: str
    #: Network device and RDMA device of the physical function.
    net: str | None = None
    rdma: str | None = None


def find(node: Node, address: str, index: int) -> VirtualFunction:
    """The virtual function at *address*, with what its adapter says.

    :param index: its number at the adapter; the inventory does not have it.
    :raises AdapterError: it is none, or what its port speaks is not known.
    """
    function = node.function(address)
    parent = None
    if function is not None and function.physical_function is not None:
        parent = node.function(function.physical_function)
    if parent is None:
        raise AdapterError(f"{address} is no virtual function of an adapter of this node")
    if parent.driver is None:
        raise AdapterError(f"{parent.address}, the adapter of {address}, is bound to no driver")
    return VirtualFunction(
        address=address,
        index=index,
        layer=_layer(parent, address),
        driver=parent.driver,
        net=next((each[4:] for each in parent.os_devices if each.startswith("net ")), None),
        rdma=next((each.name for each in parent.rdma), None),
    )


def _layer(parent: Function, address: str) -> Layer:
    """By what the port says itself: one model of adapter does both."""
    layers = {port.link_layer for device in parent.rdma for port in device.ports}
    if not parent.rdma and (parent.class_code or "").startswith("0200"):
        return Layer.ETHERNET  # an adapter without RDMA
    if len(layers) == 1:
        for layer in Layer:
            if layers == {layer.value}:
                return layer
    raise AdapterError(
        f"{parent.address}, the adapter of {address}, does not say whether its port is "
        "Ethernet or InfiniBand"
    )


#: Settings in the order in which they are made: first who the function is,
#: then what it may, and last its link. Clearing takes the link first.
_ORDER: Final = {
    Layer.ETHERNET: ("mac", "vlan", "spoof_check", "trust", "rate", "link_state"),
    Layer.INFINIBAND: ("node_guid", "port_guid", "link_state"),
}


#: By these a function is known to others: they must be gone when it is cleared.
IDENTITY: Final = ("mac", "node_guid", "port_guid")


@attrs.frozen
class Step:
    """One setting: its name and its value."""

    name: str
    value: Any


def values(settings: Settings) -> dict[str, Any]:
    """The settings by the names of the steps."""
    if isinstance(settings, Infiniband):
        return {
            "node_guid": settings.node_guid,
            "port_guid": settings.port_guid,
            "link_state": settings.link_state,
        }
    return {
        "mac": settings.mac,
        "vlan": (settings.vlan, settings.qos),
        "spoof_check": settings.spoof_check,
        "trust": settings.trust,
        "rate": (settings.min_rate, settings.max_rate),
        "link_state": settings.link_state,
    }


def steps(settings: Settings, clearing: bool = False) -> tuple[Step, ...]:
    """The steps that make *settings*, in order."""
    found = values(settings)
    order = _ORDER[settings.layer]
    return tuple(Step(name, found[name]) for name in (reversed(order) if clearing else order))


#: What a driver that does not know the setting does anyway.
_NATURAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "vlan": ((0, 0),),
    "trust": (False,),
    "rate": ((0, 0),),
    "link_state": (LinkState.AUTO,),
}


def may_be_missing(step: Step) -> bool:
    """Whether a driver that does not know the setting has it all the same."""
    return step.value in _NATURAL.get(step.name, ())


def differences(settings: Settings, seen: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the settings that read back otherwise than they were made.

    :param seen: as :func:`values`; one that the driver does not show is left out.
    """
    return tuple(
        step.name
        for step in steps(settings)
        if (step.name not in seen and not may_be_missing(step))
        or (step.name in seen and seen[step.name] != step.value)
    )
