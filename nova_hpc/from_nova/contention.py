# SPDX-License-Identifier: Apache-2.0
"""How often this scheduler loses claims to others, and among how many hosts it then chooses.

With packing all schedulers prefer the same host: the one that a server fills best. One of them
gets it. As long as that happens, a server chooses among several of the best hosts, in an
order of its own. The more claims are lost, the more hosts are in the choice. Every claim that is
not lost lowers the number, down to one, so an undisturbed scheduler packs as tightly as ever.

The number is multiplied by four when a claim is lost and falls by 3 % when one is not. So
some 2 % of the claims (0.03 / ln 4) are lost in the long run if there are enough hosts.
Schedulers need no knowledge of each other or of their number for that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg

from nova_hpc import conf as hpc_conf

if TYPE_CHECKING:
    from nova import objects

CONF = cfg.CONF

hpc_conf.register_all_options(CONF)

_RISE: Final = 4.0
_FALL: Final = 0.97

_SEED: Final = "_hpc_contention_seed"


class Contention:
    """The number of best hosts among which each request of this scheduler process draws one.

    It rises when another scheduler claims the chosen devices first, and falls when a claim succeeds
    at once. It is safe between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts = 1.0

    @property
    def hosts(self) -> int:
        """The number of hosts among which a server chooses."""
        most: int = CONF.hpc.contended_hosts
        return min(int(self._hosts), most)

    def lost(self) -> None:
        """Record that another scheduler had claimed the devices chosen for a server."""
        with self._lock:
            self._hosts = min(self._hosts * _RISE, float(CONF.hpc.contended_hosts))

    def won(self) -> None:
        """Record that a server got its chosen devices at once."""
        with self._lock:
            self._hosts = max(self._hosts * _FALL, 1.0)


#: The object of this process.
CONTENTION: Final = Contention()


def order_seed_of(spec: objects.RequestSpec) -> str:
    """Return the seed of the order of hosts: one for all servers of a request, so that they pack.

    The first server of a request sets it; Nova schedules the others with the same *spec*.
    """
    stored_seed: Any = getattr(spec, _SEED, None)
    if stored_seed is None:
        stored_seed = str(spec.instance_uuid if "instance_uuid" in spec else "")
        setattr(spec, _SEED, stored_seed)
    return str(stored_seed)
