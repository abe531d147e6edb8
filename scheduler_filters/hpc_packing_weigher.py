"""HpcPackingWeigher: the host that the devices fit most tightly comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova import objects
from nova.scheduler import utils, weights
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.placement import flavor as hpc_flavor

CONF = cfg.CONF

hpc_conf.register(CONF)


class HpcPackingWeigher(weights.BaseHostWeigher):
    """Rank hosts by the score of the devices that HpcTopologyFilter chose.

    Without side effects: Nova does not call weighers when one host is left.
    """

    def weight_multiplier(self, host_state: Any) -> float:
        """``[hpc]packing_weight_multiplier``, or that of the host's aggregates."""
        return utils.get_weight_multiplier(
            host_state, "hpc_packing_weight_multiplier", CONF.hpc.packing_weight_multiplier
        )

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        """One weight a host: the higher, the tighter the fit.

        Scores are tuples, so hosts are ranked by them; hosts without a choice
        of the filter (a forced host, a rebuild) come last together.
        """
        if not hpc_flavor.has_hpc_keys(weight_properties.flavor.extra_specs or {}):
            return [0.0] * len(weighed_obj_list)
        scores = [_score(each.obj, weight_properties) for each in weighed_obj_list]
        ranked = sorted({score for score in scores if score is not None})
        ranks = {score: rank for rank, score in enumerate(ranked)}
        return [float(-len(ranks) if score is None else -ranks[score]) for score in scores]

    def _weigh_object(self, obj: Any, weight_properties: objects.RequestSpec) -> float:
        """Nova's interface for one host; weigh_objects() does not use it."""
        return 0.0


def _score(host_state: Any, spec: objects.RequestSpec) -> tuple[int, ...] | None:
    """Score of what the filter chose on this host for this very request."""
    choice = getattr(host_state, "hpc_choice", None)
    if choice is None or "pci_requests" not in spec or not spec.pci_requests:
        return None
    keys = tuple(
        request.request_id
        for request in spec.pci_requests.requests
        if request.source == objects.InstancePCIRequest.FLAVOR_ALIAS
    )
    return choice.devices.score if choice.key == keys else None
