# SPDX-License-Identifier: Apache-2.0
"""HpcFabricWeigher: the hosts that are nearest to the rest of the server group come first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova import objects
from nova.scheduler import utils, weights
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import fabric_nearness

CONF = cfg.CONF

hpc_conf.register_all_options(CONF)


class HpcFabricWeigher(weights.BaseHostWeigher):
    """Rank hosts by HpcFabricFilter's data about the group's other members.

    Without side effects: Nova does not call weighers if only one host is left.
    """

    def weight_multiplier(self, host_state: Any) -> float:
        """Return ``[hpc]fabric_weight_multiplier``, or the value of the host's aggregates."""
        multiplier: float = utils.get_weight_multiplier(
            host_state, "hpc_fabric_weight_multiplier", CONF.hpc.fabric_weight_multiplier
        )
        return multiplier

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        """Return the weight of each host: the nearer to the group's members, the higher."""
        return fabric_nearness.scores_of(
            weight_properties, [weighed.obj for weighed in weighed_obj_list]
        )

    def _weigh_object(self, obj: Any, weight_properties: objects.RequestSpec) -> float:
        """Return 0.0: Nova's interface needs this method, but weigh_objects() does not use it."""
        return 0.0
