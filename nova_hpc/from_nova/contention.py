# SPDX-License-Identifier: Apache-2.0
"""How often this scheduler loses claims to others, and among how many hosts it chooses then.

Packing makes all schedulers want the same host: the one that a server fills best. One of them
gets it. As long as that happens, a server chooses among several of the best hosts, in an
order of its own; the more claims are lost, the more hosts. With every claim that is not lost
the number falls, down to one, so a scheduler whom nobody disturbs packs as tightly as ever.

The number becomes four times as large when a claim is lost and falls by 3 % when one is not, so
some 2 % of the claims (0.03 / ln 4) are lost in the long run where there are hosts enough.
Schedulers need not know of each other for that, nor how many of them there are.
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
    """Safe between threads: one for all requests of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts = 1.0

    @property
    def hosts(self) -> int:
        """Among how many hosts a server is to choose."""
        most: int = CONF.hpc.contended_hosts
        return min(int(self._hosts), most)

    def lost(self) -> None:
        """Another scheduler had claimed what a server was to have."""
        with self._lock:
            self._hosts = min(self._hosts * _RISE, float(CONF.hpc.contended_hosts))

    def won(self) -> None:
        """A server got what was chosen for it at once."""
        with self._lock:
            self._hosts = max(self._hosts * _FALL, 1.0)


#: Of this process.
CONTENTION: Final = Contention()


def order_seed_of(spec: objects.RequestSpec) -> str:
    """The seed of the order of hosts: one for all servers of a request, so that they pack.

    The first of them gives it; Nova asks for one after the other with the same *spec*.
    """
    stored_seed: Any = getattr(spec, _SEED, None)
    if stored_seed is None:
        stored_seed = str(spec.instance_uuid if "instance_uuid" in spec else "")
        setattr(spec, _SEED, stored_seed)
    return str(stored_seed)
