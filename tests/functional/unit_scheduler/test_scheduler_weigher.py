# SPDX-License-Identifier: Apache-2.0
"""The weigher on host states that the filter has been at."""

from __future__ import annotations

from types import SimpleNamespace

from nova import objects, test
from nova.scheduler import weights as nova_weights
from oslo_config import cfg
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.placement.model import DeviceSet
from nova_hpc_common.level import Distance, Level
from scheduler_filters import choice, hpc_packing_weigher
from tests.functional.unit_scheduler.states import spec

CONF = cfg.CONF


class WeigherTest(test.NoDBTestCase):
    """Places instead of sums: ranks are tuples."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)

    def host(self, name: str, score: tuple[int, ...] | None, key: str = uuids.request):
        host = SimpleNamespace(host=name, nodename=name, aggregates=[])
        if score is not None:
            devices = DeviceSet(picks=(), level=Level.SWITCH, distance=Distance.PIX)
            host.hpc_choice = choice.HostChoice((key,), devices, score, {}, {})
        return nova_weights.WeighedHost(host, 0.0)

    def test_order(self) -> None:
        weigher = hpc_packing_weigher.HpcPackingWeigher()
        hosts = [
            self.host("b", (0, 1, 9, 0)),
            self.host("stale", (0, 0, 0, 0), key="another request"),
            self.host("a", (0, 1, 2, 0)),
            self.host("c", (1, 0, 0, 0)),
            self.host("forced", None),
            self.host("a too", (0, 1, 2, 0)),
        ]
        thirds = [2, 0, 3, 1, 0, 3]
        self.assertEqual(
            [10000.0 * (each / 3) for each in thirds], weigher.weigh_objects(hosts, spec())
        )

    def test_nova_leaves_the_weights_as_they_are(self) -> None:
        """Its handler would bring them to the range from 0 to 1."""
        hosts = [self.host(name, (number, 0)).obj for number, name in enumerate("abc")]
        weigher = hpc_packing_weigher.HpcPackingWeigher()
        found = nova_weights.HostWeightHandler().get_weighed_objects([weigher], hosts, spec())
        self.assertEqual([10000.0, 5000.0, 0.0], [each.weight for each in found])

    def test_stock_flavor(self) -> None:
        stock = spec()
        stock.flavor.extra_specs = {"hw:cpu_policy": "dedicated"}
        hosts = [self.host("a", (0,)), self.host("b", None)]
        weights = hpc_packing_weigher.HpcPackingWeigher().weigh_objects(hosts, stock)
        self.assertEqual([0.0, 0.0], weights)

    def test_multiplier(self) -> None:
        weigher = hpc_packing_weigher.HpcPackingWeigher()
        host = SimpleNamespace(host="a", aggregates=[])
        self.assertEqual(CONF.hpc.packing_weight_multiplier, weigher.packing_multiplier(host))
        host.aggregates = [
            objects.Aggregate(id=1, metadata={"hpc_packing_weight_multiplier": "-2.5"})
        ]
        self.assertEqual(-2.5, weigher.packing_multiplier(host))
        host.aggregates[0].metadata = {"hpc_packing_weight_multiplier": "much"}
        self.assertEqual(CONF.hpc.packing_weight_multiplier, weigher.packing_multiplier(host))
