# SPDX-License-Identifier: Apache-2.0
"""HpcPackingWeigher: the host on which a server does least damage comes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova import objects
from nova import weights as nova_weights
from nova.scheduler import utils, weights
from oslo_config import cfg

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contention
from nova_hpc.from_nova.contention import CONTENTION
from nova_hpc.from_nova.server import alias_requests
from nova_hpc.placement import between_hosts
from nova_hpc.placement import flavor as hpc_flavor

CONF = cfg.CONF

hpc_conf.register_all_options(CONF)


class HpcPackingWeigher(weights.BaseHostWeigher):
    """Rank hosts by the devices that HpcTopologyFilter chose, and the devices that remain.

    Nova adds the weights of all weighers up, each brought to the range from 0 to 1 and
    multiplied. So a multiplier that is large enough to pack would also override the policy of
    a server group, which users request and which counts 1.0. Therefore this weigher itself
    calls the weighers of ``[hpc]weighers_before_packing``. It adds more to a host that they
    prefer than packing could ever take away.

    Without side effects: Nova does not call weighers if only one host is left.
    """

    #: Nova leaves weights between these two unchanged (weights.py:25 of release 34):
    #: they are multiplied already.
    minval = 0.0
    maxval = 1.0

    def __init__(self) -> None:
        self._wishes = _build_wish_weighers(CONF.hpc.weighers_before_packing)

    def weight_multiplier(self, host_state: Any) -> float:
        """Return 1.0, which is Nova's default; the operator's value is already in the weights."""
        return 1.0

    def packing_multiplier(self, host_state: Any) -> float:
        """Return ``[hpc]packing_weight_multiplier``, or the value of the host's aggregates."""
        multiplier: float = utils.get_weight_multiplier(
            host_state, "hpc_packing_weight_multiplier", CONF.hpc.packing_weight_multiplier
        )
        return multiplier

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        """Return the weight of each host: the tighter its devices fit the request, the higher.

        Hosts without a choice of the filter (a forced host, a rebuild) share the last place, among
        hosts that are equal for the user.
        """
        if not hpc_flavor.has_hpc_keys(weight_properties.flavor.extra_specs or {}):
            return [0.0] * len(weighed_obj_list)
        ranks = [_rank_of_choice(weighed.obj, weight_properties) for weighed in weighed_obj_list]
        wishes = self._wished(weighed_obj_list, weight_properties)
        among = CONTENTION.hosts
        if among > 1:
            names = [f"{weighed.obj.host} {weighed.obj.nodename}" for weighed in weighed_obj_list]
            ranks = between_hosts.mix_best_ranks(
                ranks, wishes, names, among, contention.order_seed_of(weight_properties)
            )
        return between_hosts.packing_scores_of(
            ranks, [self.packing_multiplier(weighed.obj) for weighed in weighed_obj_list], wishes
        )

    def _wished(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        """Return the weight that the users' weighers give to each host, as Nova adds it up."""
        totals = [0.0] * len(weighed_obj_list)
        for weigher in self._wishes:
            normalized = nova_weights.normalize(
                weigher.weigh_objects(weighed_obj_list, weight_properties),
                minval=weigher.minval,
                maxval=weigher.maxval,
            )
            for number, weight in enumerate(normalized):
                totals[number] += weight * weigher.weight_multiplier(weighed_obj_list[number].obj)
        return totals

    def _weigh_object(self, obj: Any, weight_properties: objects.RequestSpec) -> float:
        """Return 0.0: Nova's interface needs this method, but weigh_objects() does not use it."""
        return 0.0


def _build_wish_weighers(names: Sequence[str]) -> list[Any]:
    """Create weighers of the classes in *names* that the operator has enabled."""
    if not names:
        return []
    classes = weights.HostWeightHandler().get_matching_classes(CONF.filter_scheduler.weight_classes)
    return [
        weigher_class()
        for weigher_class in classes
        if weigher_class is not HpcPackingWeigher
        and (
            weigher_class.__name__ in names
            or f"{weigher_class.__module__}.{weigher_class.__name__}" in names
        )
    ]


def _rank_of_choice(host_state: Any, spec: objects.RequestSpec) -> tuple[int, ...] | None:
    """Rank of the filter's choice on this host for exactly this request."""
    choice = getattr(host_state, "hpc_choice", None)
    if choice is None or "pci_requests" not in spec:
        return None
    keys = tuple(str(request.request_id) for request in alias_requests(spec.pci_requests))
    return choice.rank if choice.key == keys else None
