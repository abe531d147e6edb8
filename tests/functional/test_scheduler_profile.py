# SPDX-License-Identifier: Apache-2.0
"""The cloud's flavors as the profile that damage is measured against, from Nova's own database."""

from __future__ import annotations

from unittest import mock

from nova import context, objects, test
from oslo_config import cfg
from oslo_serialization import jsonutils

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import pools, profile
from nova_hpc.placement import shape_mix
from nova_hpc.placement.profile import DEFAULT, FlavorShape
from nova_hpc_common.level import Level
from tests.functional import fixtures

CONF = cfg.CONF

#: The alias is not called as the role of its devices.
ALIASES = (
    {"name": "h100", "resource_class": fixtures.GPU_CLASS},
    {"name": "vf", "resource_class": fixtures.VF_CLASS},
    {"name": "fpga", "vendor_id": "1172", "product_id": "09c4"},
)


def pool(role: str, resource_class: str, **fields: object) -> dict[str, object]:
    """A pool as the scheduler sees it."""
    return {
        "vendor_id": "10de",
        "product_id": "20b2",
        "dev_type": "type-PCI",
        "numa_node": 0,
        "count": 1,
        "hpc_tags": "1",
        "hpc_role": role,
        "hpc_resource_class": resource_class,
    } | fields


class ProfileTest(test.TestCase):
    """Flavors are read from the API database."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        self.flags(alias=[jsonutils.dumps(each) for each in ALIASES], group="pci")
        self.flags(pci_in_placement=True, group="filter_scheduler")
        self.samples = pools.Samples()
        self.samples.learn(pool("gpu", fixtures.GPU_CLASS), fixtures.GPU_CLASS, frozenset(), "gpu")
        self.samples.learn(
            pool("vf", fixtures.VF_CLASS, dev_type="type-VF"), fixtures.VF_CLASS, frozenset(), "vf"
        )
        # A test must not inherit what another one was told once.
        self.useFixture(fixtures.fixtures.MockPatchObject(profile, "_ONCE", profile.Once()))
        self.profiles = profile.CloudProfiles(self.samples)

    def sell(self, name: str, vcpus: int = 8, memory_mb: int = 4096, **specs: str) -> None:
        objects.Flavor(
            context.get_admin_context(),
            name=name,
            flavorid=name,
            vcpus=vcpus,
            memory_mb=memory_mb,
            root_gb=1,
            ephemeral_gb=0,
            swap=0,
            rxtx_factor=1.0,
            vcpu_weight=0,
            disabled=False,
            is_public=True,
            extra_specs={key.replace("__", ":"): value for key, value in specs.items()},
        ).create()

    def shapes(self) -> tuple[FlavorShape, ...]:
        return self.profiles.current().profile.shapes

    def test_no_flavors_with_devices(self) -> None:
        self.assertEqual(DEFAULT.shapes, self.shapes())

    def test_a_flavor_becomes_a_shape(self) -> None:
        self.sell(
            "pairs",
            **{
                "pci_passthrough__alias": "h100:4,vf:4",
                "hpc__group": "gpu:1,vf:1",
                "hpc__affinity": "switch",
                "hw__cpu_policy": "dedicated",
                "hw__mem_page_size": "2048",
                "hw__numa_nodes": "2",
                "hw__pci_numa_affinity_policy": "required",
            },
        )
        self.assertEqual(
            (
                FlavorShape(
                    {"gpu": 1, "vf": 1},
                    groups=4,
                    level=Level.SWITCH,
                    cpus=8,
                    memory_kib=4096 * 1024,
                    page_kib=2048,
                ),
            ),
            self.shapes(),
        )

    def test_stock_flavors_and_unknown_roles(self) -> None:
        """An alias whose devices nobody has seen is taken for its own role."""
        self.sell("stock", pci_passthrough__alias="fpga:2")
        self.assertEqual((FlavorShape({"fpga": 2}),), self.shapes())

    def test_broken_flavors_are_left_out(self) -> None:
        self.sell("good", pci_passthrough__alias="h100:1")
        self.sell("bad alias", pci_passthrough__alias="nobody:1")
        self.sell("bad key", pci_passthrough__alias="h100:1", hpc__affinity="swtich")
        self.assertEqual((FlavorShape({"gpu": 1}),), self.shapes())

    def test_weights(self) -> None:
        for name in ("one", "same", "never"):
            self.sell(name, pci_passthrough__alias="h100:1")
        self.sell("two", pci_passthrough__alias="h100:2")
        self.flags(flavor_weights={"one": 3, "two": 9, "never": 0, "gone": 1}, group="hpc")
        self.assertEqual(
            (FlavorShape({"gpu": 2}, weight=9), FlavorShape({"gpu": 1}, weight=4)), self.shapes()
        )
        self.assertIn("flavor_weights names gone", self.stdlog.logger.output)

    def run_servers(self, name: str, count: int, cell: str = "cell1") -> None:
        """So many servers of a flavor, one of which was deleted."""
        admin = context.get_admin_context()
        flavor = objects.Flavor.get_by_name(admin, name)
        with context.target_cell(admin, self.cell_mappings[cell]) as inside:
            for number in range(count + 1):
                instance = objects.Instance(
                    inside, flavor=flavor, instance_type_id=flavor.id, project_id="p", user_id="u"
                )
                instance.create()
                if number == count:
                    instance.destroy()

    def test_flavors_count_by_their_servers(self) -> None:
        for name, gpus in (("one", 1), ("two", 2), ("eight", 8)):
            self.sell(name, pci_passthrough__alias=f"h100:{gpus}")
        self.sell("plain")
        self.run_servers("plain", 9)
        self.assertEqual({1}, {each.weight for each in self.shapes()})
        self.profiles = profile.CloudProfiles(self.samples)
        self.run_servers("one", 12)
        self.run_servers("two", 4)
        expected = shape_mix.learn_weights({"one": 12, "two": 4, "eight": 0})
        self.assertEqual({"one": 512, "two": 256, "eight": 128}, expected)
        self.assertEqual(
            {1: 512, 2: 256, 8: 128}, {each.counts["gpu"]: each.weight for each in self.shapes()}
        )

    def test_what_the_operator_says_counts_and_learning_can_be_off(self) -> None:
        for name, gpus in (("one", 1), ("two", 2)):
            self.sell(name, pci_passthrough__alias=f"h100:{gpus}")
        self.run_servers("one", 12)
        self.flags(flavor_weights={"two": 3}, group="hpc")
        self.assertEqual(
            (FlavorShape({"gpu": 2}, weight=3), FlavorShape({"gpu": 1})), self.shapes()
        )
        self.flags(flavor_weights={}, learn_flavor_weights=False, group="hpc")
        self.assertEqual({1}, {each.weight for each in self.shapes()})

    def test_a_cell_that_does_not_answer_leaves_the_weights_as_they_are(self) -> None:
        for name, gpus in (("one", 1), ("two", 2)):
            self.sell(name, pci_passthrough__alias=f"h100:{gpus}")
        self.run_servers("one", 12)
        before = self.shapes()
        self.assertEqual({1: 1024, 2: 256}, {e.counts["gpu"]: e.weight for e in before})
        self.run_servers("two", 40)
        self.profiles._until = 0.0
        with mock.patch.object(profile, "_count_running_servers", side_effect=OSError("no route")):
            self.assertEqual(before, self.shapes())
        self.assertIn("keep the weights that they have", self.stdlog.logger.output)
        self.profiles._until = 0.0
        self.assertEqual({1: 256, 2: 1024}, {e.counts["gpu"]: e.weight for e in self.shapes()})

    def test_of_many_flavors_none_is_left_out(self) -> None:
        """Forty sizes of memory for one GPU, and a large server that is sold seldom."""
        for number in range(40):
            self.sell(
                f"one{number}",
                memory_mb=4096 + 64 * number,
                pci_passthrough__alias="h100:1",
                hw__mem_page_size="2048",
            )
        self.sell("whole", pci_passthrough__alias="h100:8")
        self.flags(flavor_weights={f"one{number}": 9 for number in range(40)}, group="hpc")
        shapes = self.shapes()
        self.assertEqual(32, len(shapes))
        self.assertEqual(40 * 9 + 1, sum(each.weight for each in shapes))
        self.assertIn(FlavorShape({"gpu": 8}), shapes)
        self.assertEqual(1, self.stdlog.logger.output.count("41 flavors request different devices"))

    def test_weights_are_checked(self) -> None:
        self.assertRaises(ValueError, CONF.set_override, "flavor_weights", "a:-1", group="hpc")

    def test_read_once_in_a_while(self) -> None:
        self.sell("one", pci_passthrough__alias="h100:1")
        first = self.profiles.current()
        self.sell("two", pci_passthrough__alias="h100:2")
        self.assertIs(first, self.profiles.current())
        self.profiles._until = 0
        self.assertEqual(2, len(self.shapes()))
        changed = self.profiles.current()
        self.profiles._until = 0
        # The same flavors are the same profile: what was found with it stays.
        self.assertIs(changed, self.profiles.current())

    def test_a_kind_of_device_that_is_seen_later(self) -> None:
        self.sell("stock", pci_passthrough__alias="fpga:1")
        self.assertEqual((FlavorShape({"fpga": 1}),), self.shapes())
        late = pool("card", "CUSTOM_PCI_1172_09C4", vendor_id="1172", product_id="09c4")
        self.samples.learn(late, "CUSTOM_PCI_1172_09C4", frozenset(), "card")
        self.assertEqual((FlavorShape({"card": 1}),), self.shapes())

    def test_an_unreadable_database_is_said_once(self) -> None:
        self.sell("one", pci_passthrough__alias="h100:1")
        with mock.patch.object(objects.FlavorList, "get_all", side_effect=OSError("no route")):
            for _ in range(2):
                self.assertEqual(DEFAULT.shapes, self.shapes())
                self.profiles._until = 0
        lines = self.stdlog.logger.output.splitlines()
        self.assertEqual(1, sum("flavors cannot be read (OSError" in line for line in lines))
        self.assertEqual((FlavorShape({"gpu": 1}),), self.shapes())
        self.profiles._until = 0
        with mock.patch.object(objects.FlavorList, "get_all", side_effect=OSError("no route")):
            self.assertEqual((FlavorShape({"gpu": 1}),), self.shapes())

    def test_whatever_happens_servers_are_scheduled(self) -> None:
        self.sell("one", pci_passthrough__alias="h100:1")
        with mock.patch.object(profile, "build_cloud_profile", side_effect=KeyError("bug")):
            self.assertEqual(DEFAULT.shapes, self.shapes())
        self.assertIn("no measure of the damage", self.stdlog.logger.output)
