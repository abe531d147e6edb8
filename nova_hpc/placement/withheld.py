# SPDX-License-Identifier: Apache-2.0
"""How many devices of each alias a node withholds, counted in the nearest miss.

Pure: counts in, sentences out. The sentences contain no address and no reason, so users
who may see the cloud's capacity may read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.placement.model import DeviceMiss, Unmet


def format_free_of_short(short: Iterable[tuple[str, int, int]], withheld: Mapping[str, int]) -> str:
    """Format missing devices and withheld ones, such as ``7 of 8 gpu, one is withheld``.

    :param short: for each alias its name, how many are free, and how many are needed.
    :param withheld: alias -> number of suitable devices that the node withholds.
    """
    parts = [
        f"{have} of {need} {name}{_kept_back(withheld.get(name, 0))}" for name, have, need in short
    ]
    return ("; " if any("," in part for part in parts) else ", ").join(parts)


def count_withheld_in_miss(miss: DeviceMiss, withheld: Mapping[str, int]) -> DeviceMiss:
    """Return a copy of *miss* with the numbers of withheld devices in its texts.

    :param withheld: as for :func:`format_free_of_short`; an alias that is missing in it has
        none, or its number is unknown.
    """
    if not withheld or miss.unmet is Unmet.OTHER:
        return miss
    if miss.short:
        if not any(withheld.get(name) for name, _, _ in miss.short):
            return miss
        text = format_free_of_short(miss.short, withheld)
        # The operator's text begins with the user's text.
        return attrs.evolve(miss, user=text, operator=text + miss.operator[len(miss.user) :])
    parts = [
        f"{'one' if count == 1 else count} {name} {'is' if count == 1 else 'are'} withheld"
        for name, count in sorted(withheld.items())
        if count
    ]
    more = f"; {', '.join(parts)}" if parts else ""
    return attrs.evolve(miss, user=miss.user + more, operator=miss.operator + more)


def _kept_back(count: int) -> str:
    if not count:
        return ""
    return ", one is withheld" if count == 1 else f", {count} are withheld"
