# SPDX-License-Identifier: Apache-2.0
"""The policies by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from nova_hpc_tools.simulate.cluster import SimulatedCluster
from nova_hpc_tools.simulate.model import SimulatedMachine, Typical
from nova_hpc_tools.simulate.ours import Ours
from nova_hpc_tools.simulate.policy import Multipliers, Nova, SimulatedPolicy

Workload = tuple[Typical, ...]
_Make = Callable[[SimulatedCluster, random.Random, Workload], SimulatedPolicy]


@attrs.frozen
class NamedPolicy:
    """A policy that has a name; it goes to other processes, so it is no closure."""

    make: _Make
    #: Whether its workload tells shapes apart that differ in memory alone.
    memory: bool = False
    #: What keeps the sums that it asks for.
    cluster: Callable[[Sequence[SimulatedMachine]], SimulatedCluster] = SimulatedCluster


#: In the order in which they are compared: stock Nova with its default weighers (most free RAM
#: and CPUs, fewest PCI devices), with the RAM and CPU weighers turned round, and ours as shipped.
POLICIES: Final[Mapping[str, NamedPolicy]] = {
    "nova-spread": NamedPolicy(partial(Nova, multipliers=Multipliers())),
    "nova-pack": NamedPolicy(partial(Nova, multipliers=Multipliers(ram=-1, cpu=-1, pci=1))),
    "nova-hpc": NamedPolicy(Ours, memory=True),
}

#: What the command had, too, and research still has.
RESEARCH: Final = frozenset(
    ("nova-random", "random", "first-fit", "best-fit", "dot-product", "clustering", "packing")
)
_RESEARCH_PREFIXES: Final = ("nova:", "nova-hpc-", "fgd")


def choose_policies(names: Iterable[str]) -> dict[str, NamedPolicy]:
    """The policies of these names, each once; all where there is no name.

    :raises ValueError: there is no such policy; the text names all, and where a policy of
        research is.
    """
    chosen = dict.fromkeys(names) or POLICIES
    for name in chosen:
        if name in POLICIES:
            continue
        if name in RESEARCH or name.startswith(_RESEARCH_PREFIXES):
            raise ValueError(
                f"policy {name!r} is for research: python -m benchmarks.simulate, in the "
                f"project's source tree, has it; here are {', '.join(POLICIES)}"
            )
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return {name: POLICIES[name] for name in chosen}
