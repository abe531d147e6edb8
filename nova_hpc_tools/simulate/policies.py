# SPDX-License-Identifier: Apache-2.0
"""The policies by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from nova_hpc_tools.simulate import policy
from nova_hpc_tools.simulate.cluster import SimulatedCluster
from nova_hpc_tools.simulate.model import Typical
from nova_hpc_tools.simulate.ours import Ours, Variant, Weights
from nova_hpc_tools.simulate.policy import Multipliers, Nova, SimulatedPolicy

Workload = tuple[Typical, ...]
_Make = Callable[[SimulatedCluster, random.Random, Workload], SimulatedPolicy]

#: Prefix of a policy with its own multipliers, e.g. ``nova:ram=-1,pci=5``.
NOVA: Final = "nova:"


@attrs.frozen
class NamedPolicy:
    """A policy that has a name."""

    help: str
    make: _Make
    #: Whether its workload tells shapes apart that differ in memory alone.
    memory: bool = False


def _nova_policy_maker(multipliers: Multipliers) -> _Make:
    def make(cluster: SimulatedCluster, rng: random.Random, workload: Workload) -> SimulatedPolicy:
        return Nova(cluster, rng, workload, multipliers)

    return make


def _own_policy_maker(**changed: Any) -> _Make:
    variant = Variant(**changed)

    def make(cluster: SimulatedCluster, rng: random.Random, workload: Workload) -> SimulatedPolicy:
        return Ours(cluster, rng, workload, variant)

    return make


def _fgd_policy_maker(topology: bool) -> _Make:
    def make(cluster: SimulatedCluster, rng: random.Random, workload: Workload) -> SimulatedPolicy:
        return policy.Fgd(cluster, rng, workload, memory=True, topology=topology)

    return make


POLICIES: Final[Mapping[str, NamedPolicy]] = {
    "nova-random": NamedPolicy(
        "stock Nova, all weighers off: any host that passes the filters",
        _nova_policy_maker(Multipliers(ram=0, cpu=0, pci=0)),
    ),
    "nova-spread": NamedPolicy(
        "stock Nova with its default weighers: most free RAM and CPUs, fewest PCI devices",
        _nova_policy_maker(Multipliers()),
    ),
    "nova-pack": NamedPolicy(
        "stock Nova, RAM and CPU weighers turned round (-1): the fullest host",
        _nova_policy_maker(Multipliers(ram=-1, cpu=-1, pci=1)),
    ),
    "random": NamedPolicy("any node that fits", policy.Random),
    "first-fit": NamedPolicy("the first node that fits", policy.FirstFit),
    "best-fit": NamedPolicy("the least CPU and GPU left", policy.BestFit),
    "dot-product": NamedPolicy("the least free, in the request's proportions", policy.DotProduct),
    "clustering": NamedPolicy("together with requests of the same size", policy.Clustering),
    "packing": NamedPolicy("used GPUs first, then used nodes", policy.Packing),
    "fgd": NamedPolicy("the least growth of fragmentation (Weng et al., ATC'23)", policy.Fgd),
    "fgd-memory": NamedPolicy(
        "the same, with the memory of typical requests", _fgd_policy_maker(False), True
    ),
    "fgd-topology": NamedPolicy("the same, and with their levels", _fgd_policy_maker(True), True),
    "nova-hpc": NamedPolicy(
        "ours as shipped: flavors weighted by the servers that run", _own_policy_maker(), True
    ),
    "nova-hpc-known": NamedPolicy(
        "ours, [hpc]flavor_weights says how often each is asked for",
        _own_policy_maker(weights=Weights.KNOWN),
        True,
    ),
    "nova-hpc-equal": NamedPolicy(
        "ours, every flavor counts once", _own_policy_maker(weights=Weights.EQUAL), True
    ),
    "nova-hpc-unknown": NamedPolicy(
        "ours where the flavors cannot be read", _own_policy_maker(weights=Weights.UNKNOWN), True
    ),
    "nova-hpc-score": NamedPolicy(
        "ours, but hosts ranked by level and distance first",
        _own_policy_maker(by_damage=False),
        True,
    ),
    "nova-hpc-exact": NamedPolicy(
        "ours, damage not in grains", _own_policy_maker(coarse=False), True
    ),
    "nova-hpc-no-memory": NamedPolicy("ours, typical requests without memory", _own_policy_maker()),
    "nova-hpc-loose": NamedPolicy(
        "ours, free CPUs and memory not looked at", _own_policy_maker(tight=False), True
    ),
    "nova-hpc-first": NamedPolicy(
        "ours, the first of equal hosts; without GPUs the least damage",
        _own_policy_maker(nova=False),
        True,
    ),
}

#: Ours with one thing taken away: what each is good for.
ABLATION: Final = tuple(name for name in POLICIES if name.startswith("nova-hpc-"))

#: What is compared where nothing is said.
DEFAULT: Final = tuple(name for name in POLICIES if name not in ABLATION)


def check_policy_name(name: str) -> str:
    """The name, if there is such a policy.

    :raises ValueError: there is not; the text names all.
    """
    _find_policy_maker(name)
    return name


def build_policy(
    name: str, cluster: SimulatedCluster, rng: random.Random, workload: Workload
) -> SimulatedPolicy:
    """A policy on a cluster.

    :raises ValueError: there is no such policy
    """
    return _find_policy_maker(name)(cluster, rng, workload)


def counts_memory(name: str) -> bool:
    """Whether the policy's workload has the memory of the requests."""
    return name in POLICIES and POLICIES[name].memory


def _find_policy_maker(name: str) -> _Make:
    if name.startswith(NOVA):
        return _nova_policy_maker(_parse_multipliers(name))
    if name not in POLICIES:
        raise ValueError(
            f"no policy {name!r}; there are {', '.join(POLICIES)}, and "
            f"{NOVA}ram=N,cpu=N,pci=N,subset=N with Nova's own options"
        )
    return POLICIES[name].make


def _parse_multipliers(name: str) -> Multipliers:
    values: dict[str, float] = {}
    for pair in name.removeprefix(NOVA).split(","):
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
    return Multipliers(
        ram=values.get("ram", 1.0),
        cpu=values.get("cpu", 1.0),
        pci=values.get("pci", 1.0),
        subset=int(values.get("subset", 1)),
    )
