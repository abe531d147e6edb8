# SPDX-License-Identifier: Apache-2.0
"""HpcPackingWeigher: the host on which a server does least damage comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova import objects
from nova.scheduler import utils, weights
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova.server import alias_requests
from nova_hpc.placement import flavor as hpc_flavor

CONF = cfg.CONF

hpc_conf.register(CONF)


class HpcPackingWeigher(weights.BaseHostWeigher):
    """Rank hosts by the devices that HpcTopologyFilter chose, and what they leave.

    Without side effects: Nova does not call weighers when one host is left.
    """

    def weight_multiplier(self, host_state: Any) -> float:
        """``[hpc]packing_weight_multiplier``, or that of the host's aggregates."""
        found: float = utils.get_weight_multiplier(
            host_state, "hpc_packing_weight_multiplier", CONF.hpc.packing_weight_multiplier
        )
        return found

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        """One weight a host: the higher, the better.

        Hosts without a choice of the filter (a forced host, a rebuild) come last
        together.
        """
        if not hpc_flavor.has_hpc_keys(weight_properties.flavor.extra_specs or {}):
            return [0.0] * len(weighed_obj_list)
        ranks = [_rank(each.obj, weight_properties) for each in weighed_obj_list]
        known = sorted({rank for rank in ranks if rank is not None})
        places = {rank: place for place, rank in enumerate(known)}
        return [float(-len(known) if rank is None else -places[rank]) for rank in ranks]

    def _weigh_object(self, obj: Any, weight_properties: objects.RequestSpec) -> float:
        """Nova's interface for one host; weigh_objects() does not use it."""
        return 0.0


def _rank(host_state: Any, spec: objects.RequestSpec) -> tuple[int, ...] | None:
    """Rank of what the filter chose on this host for this very request."""
    choice = getattr(host_state, "hpc_choice", None)
    if choice is None or "pci_requests" not in spec:
        return None
    keys = tuple(str(each.request_id) for each in alias_requests(spec.pci_requests))
    return choice.rank if choice.key == keys else None
