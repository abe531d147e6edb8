# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, as Nova's own functions read them, and how many serve a pool.

Of devices that are equally good for a request, those that fewer aliases serve are taken
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
from nova_hpc.from_nova.providers import Kind
from nova_hpc.from_nova.server import Device

CONF = cfg.CONF

_ALIAS: Final = "pci_passthrough:alias"


class AliasError(ValueError):
    """An alias that is no JSON object with a name; the text is for operators."""


@attrs.frozen
class ConfiguredAlias:
    """One alias, with what Nova makes of a flavor that asks for one device of it."""

    name: str
    devices: tuple[Device, ...] = ()
    #: Why Nova refuses it.
    problem: Exception | None = None


_READ: Final[Cache[tuple[ConfiguredAlias, ...]]] = Cache()


def names() -> list[str]:
    """Names of all aliases, in their order.

    :raises AliasError: one of them is not JSON.
    """
    found = []
    for text in CONF.pci.alias:
        try:
            found.append(str(json.loads(text)["name"]).strip())
        except (ValueError, KeyError, TypeError) as error:
            raise AliasError(
                f"[pci]alias {text!r} is no JSON object with a name; correct it in nova.conf"
            ) from error
    return list(dict.fromkeys(found))


def read() -> list[ConfiguredAlias]:
    """All aliases of the configuration.

    :raises AliasError: one of them is not JSON.
    """
    return [_one(name) for name in names()]


def count(stats: Any, pool: Mapping[str, Any], is_kind: Callable[[Kind], bool]) -> int:
    """How many aliases Nova would serve with the devices of *pool*.

    :param stats: Nova's statistics of any host, whose own functions decide.
    :param is_kind: whether the pool's devices are of this kind in Placement.
    :returns: 0 also where the aliases cannot be read, which Nova refuses every flavor for.
    """
    key = (tuple(CONF.pci.alias), bool(CONF.filter_scheduler.pci_in_placement))
    found = _READ.get(key, _readable)
    return sum(
        any(
            is_kind(device.kind) and bool(stats._filter_pools([pool], device.probe, None, []))
            for device in alias.devices
        )
        for alias in found
    )


def _readable() -> tuple[ConfiguredAlias, ...]:
    try:
        return tuple(read())
    except AliasError:
        return ()


def _one(name: str) -> ConfiguredAlias:
    try:
        return ConfiguredAlias(name, server.read_flavor(_probe(name)).devices)
    except (exception.NovaException, server.RequestError, ValueError) as error:
        return ConfiguredAlias(name, problem=error)


def _probe(alias: str) -> objects.Flavor:
    """A flavor that asks for one device of *alias*, and is never stored."""
    return objects.Flavor(
        name=f"one {alias}",
        flavorid=f"one {alias}",
        vcpus=1,
        memory_mb=1,
        extra_specs={_ALIAS: f"{alias}:1"},
    )
