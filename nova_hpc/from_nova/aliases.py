# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, as Nova's own functions read them, and how many match a pool.

Among devices that are equally good for a request, those with fewer matching aliases are taken
(``Pool.aliases`` of nova_hpc.placement.model): a plain GPU rather than one that has an alias
of its own as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from nova import exception, objects
from oslo_config import cfg

from nova_hpc.from_nova import server
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.providers import DeviceKind
from nova_hpc.from_nova.server import WantedDevice

CONF = cfg.CONF

_ALIAS: Final = "pci_passthrough:alias"


class AliasError(ValueError):
    """A value of ``[pci]alias`` is not a JSON object with a name. The text is for operators."""


@attrs.frozen
class ConfiguredAlias:
    """A PCI alias of nova.conf, and the request that Nova makes for one device of it."""

    name: str
    devices: tuple[WantedDevice, ...] = ()
    #: The error with which Nova refuses it.
    problem: Exception | None = None


_READ: Final[Cache[tuple[ConfiguredAlias, ...]]] = Cache()


def configured_alias_names() -> list[str]:
    """Return the names of all PCI aliases in nova.conf, in their order.

    :raises AliasError: one of them is not JSON.
    """
    alias_names = []
    for text in CONF.pci.alias:
        try:
            alias_names.append(str(json.loads(text)["name"]).strip())
        except (ValueError, KeyError, TypeError) as error:
            raise AliasError(
                f"[pci]alias {text!r} is no JSON object with a name; correct it in nova.conf"
            ) from error
    return list(dict.fromkeys(alias_names))


def read_configured_aliases() -> list[ConfiguredAlias]:
    """Read all PCI aliases in nova.conf, with the devices that they request.

    :raises AliasError: one of them is not JSON.
    """
    return [_read_configured_alias(name) for name in configured_alias_names()]


def count_serving_aliases(
    stats: Any, pool: Mapping[str, Any], is_kind: Callable[[DeviceKind], bool]
) -> int:
    """Count the aliases that Nova would serve with the devices of *pool*.

    :param stats: Nova's statistics of any host, whose own functions decide.
    :param is_kind: whether the pool's devices are of this kind in Placement.
    :returns: 0 also if the aliases cannot be read; Nova then refuses every flavor.
    """
    key = (tuple(CONF.pci.alias), bool(CONF.filter_scheduler.pci_in_placement))
    configured_aliases = _READ.get(key, _read_aliases_or_none)
    return sum(
        any(
            is_kind(device.kind) and bool(stats._filter_pools([pool], device.probe, None, []))
            for device in alias.devices
        )
        for alias in configured_aliases
    )


def _read_aliases_or_none() -> tuple[ConfiguredAlias, ...]:
    try:
        return tuple(read_configured_aliases())
    except AliasError:
        return ()


def _read_configured_alias(name: str) -> ConfiguredAlias:
    try:
        return ConfiguredAlias(name, server.read_flavor_task(_probe_flavor_of(name)).devices)
    except (exception.NovaException, server.RequestError, ValueError) as error:
        return ConfiguredAlias(name, problem=error)


def _probe_flavor_of(alias: str) -> objects.Flavor:
    """Make a flavor with one device of *alias*, as a probe for Nova's functions, never stored."""
    return objects.Flavor(
        name=f"one {alias}",
        flavorid=f"one {alias}",
        vcpus=1,
        memory_mb=1,
        extra_specs={_ALIAS: f"{alias}:1"},
    )
