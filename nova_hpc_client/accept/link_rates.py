# SPDX-License-Identifier: Apache-2.0
"""The bus bandwidth that adapters allow: upper bounds, computed from the standards. Pure.

An all-reduce by a ring sends as much over each member's adapters as nccl-tests counts in its bus
bandwidth (its ``doc/PERFORMANCE.md``), so the two are compared.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.gpus import count_gpus

#: Payload of the longest packet of InfiniBand, and its headers and checks in bytes: LRH 8, BTH 12,
#: ICRC 4, VCRC 2 (InfiniBand Architecture, volume 1). RoCE and a smaller MTU have more of them.
_PAYLOAD: Final = 4096
_HEADERS: Final = 26
#: Encodings: 8b/10b; 64b/66b; 256b/257b with RS(544,514) (IEEE 802.3, clause 91 and later).
_OLD: Final = Fraction(8, 10)
_USUAL: Final = Fraction(64, 66)
_WITH_FEC: Final = Fraction(256, 257) * Fraction(514, 544)


class LinkRate(NamedTuple):
    """One rate of adapters.

    :ivar says: the generations with this rate.
    :ivar line: Gbit/s on the line, all lanes.
    :ivar encoding: part of them that is data.
    :ivar least: GB/s below which an operator takes a machine out of service; None without a source.
    """

    says: str
    line: Fraction
    encoding: Fraction
    least: float | None = None

    @property
    def most(self) -> float:
        """GB/s of payload in the longest packets."""
        return float(self.line * self.encoding * _PAYLOAD / (_PAYLOAD + _HEADERS) / 8)


#: Gbit/s by which the kernel calls a rate -> that rate; of several generations the fastest. The
#: least are NCCL's all-reduces through each adapter in Azure's checks (azurehpc-health-checks,
#: check_nccl_allreduce_ib_loopback of conf/nd96asr_v4.conf and conf/nd96isr_h100_v5.conf).
LINK_RATES: Final = {
    10.0: LinkRate("10 GbE", Fraction("10.3125"), _USUAL),
    20.0: LinkRate("DDR", Fraction(20), _OLD),
    25.0: LinkRate("25 GbE", Fraction("25.78125"), _USUAL),
    40.0: LinkRate("FDR10, 40 GbE (QDR has 32)", Fraction("41.25"), _USUAL),
    50.0: LinkRate("50 GbE", Fraction("53.125"), _WITH_FEC),
    56.0: LinkRate("FDR", Fraction("56.25"), _USUAL),
    100.0: LinkRate("EDR, 100 GbE", Fraction("103.125"), _USUAL),
    200.0: LinkRate("HDR, 200 GbE", Fraction("212.5"), _WITH_FEC, 18.0),
    400.0: LinkRate("NDR, 400 GbE", Fraction(425), _WITH_FEC, 40.0),
    800.0: LinkRate("XDR, 800 GbE", Fraction(850), _WITH_FEC),
}


class LinkLimit(NamedTuple):
    """The bus bandwidth that the adapters of a machine allow.

    :ivar most: GB/s of payload.
    :ivar floor: the part of them below which it is slow; None without a source.
    """

    most: float
    floor: float | None


def find_link_limit(facts: GuestFacts) -> LinkLimit | None:
    """Return the limit of a machine's fastest adapters, one for each GPU.

    None if there are none, or a rate is not in the table.
    """
    names = sorted(facts.rdma.values(), reverse=True)[: count_gpus(facts)]
    if not names or any(name not in LINK_RATES for name in names):
        return None
    rates = [LINK_RATES[name] for name in names]
    most = sum(rate.most for rate in rates)
    leasts = [rate.least for rate in rates if rate.least is not None]
    return LinkLimit(most, sum(leasts) / most if len(leasts) == len(rates) else None)
