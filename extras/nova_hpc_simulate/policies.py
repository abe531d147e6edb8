# SPDX-License-Identifier: Apache-2.0
"""The policies by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from nova_hpc_simulate.cluster import SimulatedCluster
from nova_hpc_simulate.model import Typical
from nova_hpc_simulate.ours import Ours
from nova_hpc_simulate.policy import Multipliers, Nova, SimulatedPolicy

#: Makes a policy from a cluster, a random generator and the workload. Worker processes get it
#: pickled.
PolicyMaker: TypeAlias = Callable[
    [SimulatedCluster, random.Random, tuple[Typical, ...]], SimulatedPolicy
]

#: Policies in the order of the results: stock Nova with its default weighers (most free RAM
#: and CPUs, fewest PCI devices), with reversed RAM and CPU weighers, and ours as shipped.
POLICIES: Final[Mapping[str, PolicyMaker]] = {
    "nova-spread": partial(Nova, multipliers=Multipliers()),
    "nova-pack": partial(Nova, multipliers=Multipliers(ram=-1, cpu=-1, pci=1)),
    "nova-hpc": Ours,
}
#: Prefix of stock Nova with multipliers of a site, for example ``nova:ram=-1,pci=5``.
_NOVA: Final = "nova:"


def choose_policies(names: Iterable[str]) -> dict[str, PolicyMaker]:
    """Return the policies with these names, each once; all of :data:`POLICIES` without names.

    :raises ValueError: there is no such policy; the text names all.
    """
    return {name: _find_policy(name) for name in tuple(names) or POLICIES}


def _find_policy(name: str) -> PolicyMaker:
    if name.startswith(_NOVA):
        return partial(Nova, multipliers=_parse_multipliers(name))
    if name not in POLICIES:
        raise ValueError(
            f"no policy {name!r}; there are {', '.join(POLICIES)}, and "
            f"{_NOVA}ram=N,cpu=N,pci=N,subset=N with your own options of Nova"
        )
    return POLICIES[name]


def _parse_multipliers(name: str) -> Multipliers:
    values: dict[str, float] = {}
    for pair in name.removeprefix(_NOVA).split(","):
        key, equals, text = pair.partition("=")
        try:
            value = float(text)
            if not equals or key not in ("ram", "cpu", "pci", "subset") or not abs(value) < 1e9:
                raise ValueError
            if key == "subset" and (value < 0 or value != int(value)):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"policy {name!r}: {pair!r} is none of ram=NUMBER, cpu=NUMBER, pci=NUMBER "
                "and subset=COUNT (0: all hosts)"
            ) from None
        values[key] = value
    subset = int(values.pop("subset", 1))
    return Multipliers(**values, subset=subset)
