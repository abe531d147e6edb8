# SPDX-License-Identifier: Apache-2.0
"""The settings of a virtual function, and their order. Pure.

The values come from the port's binding, from :mod:`nova_hpc.tenancy.adapters.plan`, or
from an operator's own setup. They never come from a flavor or an image: a user who could
choose a MAC or a GUID could impersonate another server.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology.model import PciFunction

_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
NO_MAC: Final = "00:00:00:00:00:00"


class AdapterError(Exception):
    """A virtual function cannot be set; the text names it and gives the reason."""


class PortLayer(enum.Enum):
    """The link layer of an adapter's port; RoCE is Ethernet."""

    ETHERNET = "Ethernet"
    INFINIBAND = "InfiniBand"


class LinkState(enum.Enum):
    """The states of a virtual function's link, which its adapter can force."""

    AUTO = "auto"  # follows the link of the adapter
    UP = "up"
    DOWN = "down"


@attrs.frozen
class AdapterFunction:
    """A virtual function as its adapter identifies it: address, index, link layer and driver."""

    address: str
    #: Its number on the adapter, from 0.
    index: int
    layer: PortLayer
    #: Driver of the physical function, e.g. ``mlx5_core``.
    driver: str
    #: Network device and RDMA device of the physical function.
    net: str | None = None
    rdma: str | None = None


def layer_of(parent: PciFunction) -> PortLayer | None:
    """Return the layer of an adapter's port, since one model has both; None if unknown."""
    layers = {port.link_layer for device in parent.rdma for port in device.ports}
    if not parent.rdma and (parent.class_code or "").startswith("0200"):
        return PortLayer.ETHERNET  # an adapter without RDMA
    if len(layers) == 1:
        for layer in PortLayer:
            if layers == {layer.value}:
                return layer
    return None


#: Settings in the order in which they are made: first the function's identity,
#: then its rights, and last its link. Clearing takes the link down first.
_ORDER: Final = (
    *("mac", "node_guid", "port_guid"),
    *("vlan", "spoof_check", "trust", "rate"),
    "link_state",
)

#: Settings that identify a function to others: clearing must remove them.
IDENTITY: Final = ("mac", "node_guid", "port_guid")


@attrs.frozen
class AdapterSetting:
    """One setting of a virtual function: its name (such as ``mac``) and its value."""

    name: str
    value: Any


#: Limits of values that a driver shows and that are restored: any VLAN tag, any rate of 32 bits.
_LAST_VLAN: Final = 4095
_LAST_PRIORITY: Final = 7
_LAST_RATE: Final = (1 << 32) - 1


def check_setting(name: str, value: Any) -> AdapterSetting:
    """Check a setting that another process requests.

    :raises AdapterError: there is no such setting, or its value is not valid.
    """
    if name not in _GOOD or not _GOOD[name](value):
        raise AdapterError(f"{str(value)[:40]!r} is no value of the setting {name[:40]!r}")
    return AdapterSetting(name, value)


def _is_whole(value: Any, last: int) -> bool:
    return type(value) is int and 0 <= value <= last


def _is_pair(value: Any, *last: int) -> bool:
    return isinstance(value, tuple) and len(value) == len(last) and all(map(_is_whole, value, last))


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mac(value: Any) -> bool:
    return isinstance(value, str) and bool(_MAC.fullmatch(value)) and not int(value[:2], 16) & 1


def _is_guid(value: Any) -> bool:
    return _is_whole(value, (1 << 64) - 1)


_GOOD: Final[Mapping[str, Callable[[Any], bool]]] = {
    "mac": _is_mac,
    "node_guid": _is_guid,
    "port_guid": _is_guid,
    "vlan": lambda value: _is_pair(value, _LAST_VLAN, _LAST_PRIORITY),
    "spoof_check": _is_truth,
    "trust": _is_truth,
    "rate": lambda value: _is_pair(value, _LAST_RATE, _LAST_RATE),
    "link_state": lambda value: isinstance(value, LinkState),
}


def order_settings(wanted: Mapping[str, Any], clearing: bool = False) -> tuple[AdapterSetting, ...]:
    """Return the settings of *wanted*, name -> value, in order."""
    ordered = tuple(AdapterSetting(name, wanted[name]) for name in _ORDER if name in wanted)
    return ordered[::-1] if clearing else ordered


#: Behaviour of a driver that does not support the setting.
_NATURAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "vlan": ((0, 0),),
    "trust": (False,),
    "rate": ((0, 0),),
    "link_state": (LinkState.AUTO,),
}


def may_be_missing(setting: AdapterSetting) -> bool:
    """Whether a driver that does not support the setting behaves like this value anyway."""
    return setting.value in _NATURAL.get(setting.name, ())


def find_setting_differences(wanted: Mapping[str, Any], seen: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of settings that read back with another value.

    :param wanted: name -> value.
    :param seen: name -> value read back; without settings that the driver does not show.
    """
    return tuple(
        setting.name
        for setting in order_settings(wanted)
        if (setting.name not in seen and not may_be_missing(setting))
        or (setting.name in seen and seen[setting.name] != setting.value)
    )


#: Default settings of a function.
FLOOR: Final[Mapping[str, Any]] = {
    "spoof_check": True,
    "trust": False,
    "link_state": LinkState.AUTO,
}


def plan_free_function(
    layer: PortLayer, before: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Plan the settings of a function without a port.

    VLAN (with its priority) and rate (least and most, in Mb/s; 0 means none) keep their values:
    this project has no right to change them, and an operator may separate functions by VLAN.

    :param before: the present settings.
    :param own: its new addresses.
    """
    if layer is PortLayer.INFINIBAND:
        return {**own, "link_state": LinkState.AUTO}
    kept = {name: before.get(name, (0, 0)) for name in ("vlan", "rate")}
    return {**own, **kept, **FLOOR}


def own_addresses_of(layer: PortLayer, before: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a function's present addresses; None if it has none of its own."""
    if layer is PortLayer.INFINIBAND:
        guids = {name: before.get(name, 0) for name in ("node_guid", "port_guid")}
        return guids if all(0 < guid < (1 << 64) - 1 for guid in guids.values()) else None
    mac = before.get("mac", NO_MAC)
    usable = mac != NO_MAC and _MAC.fullmatch(mac) and not int(mac[:2], 16) & 1
    return {"mac": mac} if usable else None


def undo_settings(
    before: Mapping[str, Any], made: Mapping[str, Any], seen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings to restore: the former ones, except those that others changed since.

    :param before: the settings before the change.
    :param made: the settings of the change.
    :param seen: the present settings.
    """
    return {
        name: before.get(name, value) if name in made and made[name] == value else value
        for name, value in seen.items()
    }
