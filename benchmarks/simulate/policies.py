# SPDX-License-Identifier: Apache-2.0
"""All policies by name: those of the command, of the literature, and variants of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from benchmarks.simulate import literature
from nova_hpc_tools.simulate import policies
from nova_hpc_tools.simulate.ours import Ours, Variant, Weights
from nova_hpc_tools.simulate.policies import NamedPolicy
from nova_hpc_tools.simulate.policy import Multipliers, Nova

#: Prefix of a policy with its own multipliers, e.g. ``nova:ram=-1,pci=5``.
NOVA: Final = "nova:"


def _our_variant(memory: bool = True, **changed: Any) -> NamedPolicy:
    return NamedPolicy(partial(Ours, variant=Variant(**changed)), memory)


#: The variants are ours with one thing changed.
POLICIES: Final[Mapping[str, NamedPolicy]] = {
    "nova-random": NamedPolicy(partial(Nova, multipliers=Multipliers(ram=0, cpu=0, pci=0))),
    "nova-spread": policies.POLICIES["nova-spread"],
    "nova-pack": policies.POLICIES["nova-pack"],
    "random": NamedPolicy(literature.Random),
    "first-fit": NamedPolicy(literature.FirstFit),
    "best-fit": NamedPolicy(literature.BestFit),
    "dot-product": NamedPolicy(literature.DotProduct),
    "clustering": NamedPolicy(literature.Clustering, cluster=literature.CountingCluster),
    "packing": NamedPolicy(literature.Packing),
    "fgd": NamedPolicy(literature.Fgd),
    "fgd-memory": NamedPolicy(partial(literature.Fgd, memory=True), memory=True),
    "fgd-topology": NamedPolicy(partial(literature.Fgd, memory=True, topology=True), memory=True),
    "nova-hpc": policies.POLICIES["nova-hpc"],
    "nova-hpc-known": _our_variant(weights=Weights.KNOWN),
    "nova-hpc-equal": _our_variant(weights=Weights.EQUAL),
    "nova-hpc-unknown": _our_variant(weights=Weights.UNKNOWN),
    "nova-hpc-score": _our_variant(by_damage=False),
    "nova-hpc-exact": _our_variant(coarse=False),
    "nova-hpc-no-memory": _our_variant(memory=False),
    "nova-hpc-loose": _our_variant(tight=False),
    "nova-hpc-first": _our_variant(nova=False),
}

#: Ours with one thing taken away: what each is good for.
ABLATION: Final = tuple(name for name in POLICIES if name.startswith("nova-hpc-"))

#: What is compared where nothing is said.
DEFAULT: Final = tuple(name for name in POLICIES if name not in ABLATION)


def choose_policies(names: Iterable[str]) -> dict[str, NamedPolicy]:
    """The policies of these names, each once; all but the variants where there is no name.

    :raises ValueError: there is no such policy; the text names all.
    """
    return {name: _find_policy(name) for name in tuple(names) or DEFAULT}


def _find_policy(name: str) -> NamedPolicy:
    if name.startswith(NOVA):
        return NamedPolicy(partial(Nova, multipliers=_parse_multipliers(name)))
    if name not in POLICIES:
        raise ValueError(
            f"no policy {name!r}; there are {', '.join(POLICIES)}, and "
            f"{NOVA}ram=N,cpu=N,pci=N,subset=N with Nova's own options"
        )
    return POLICIES[name]


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
