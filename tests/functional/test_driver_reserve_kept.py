# SPDX-License-Identifier: Apache-2.0
"""What is reserved is kept and shown: for operators, without tags, for consumers left behind."""

from __future__ import annotations

from unittest import mock

from oslo_serialization import jsonutils

from nova_hpc.tenancy import ledger
from nova_hpc_tools.cloud.explain import explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion
from nova_hpc_tools.readers import snapshot
from tests.functional import fixtures
from tests.functional.reserve_base import (
    ADAPTER,
    FIRST,
    GPU,
    NEAR,
    PF,
    SECOND,
    TWO,
    VF,
    VFS,
    ReserveTest,
)
from virt_driver_patches.driver import provider_tree


class OperatorTest(ReserveTest):
    """What an operator reserves in Placement is followed, and lifted by nobody else."""

    def test_it_is_shown_and_kept(self) -> None:
        self.host("alpha", TWO)
        self.reserve("alpha", FIRST, 1)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual(
            {FIRST: "reserved in Placement by an operator"}, self.stats_of("alpha").withheld
        )
        # The node withholds it meanwhile, is started again, and withholds it no more.
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        self.assertEqual({FIRST: "in quarantine: overheats"}, self.stats_of("alpha").withheld)
        self.restart("alpha")
        self.ledger_file("alpha").release(FIRST)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual((1, 1), self.reserved("alpha")[FIRST])
        server = self.boot(self.make_flavor(GPU))
        self.assertEqual([SECOND], [each.address for each in self.devices_of(server)])
        self.reserve("alpha", FIRST, 0)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({}, self.stats_of("alpha").withheld)
        self.boot(self.make_flavor(GPU))

    def test_part_of_an_adapter(self) -> None:
        self.host("alpha", ADAPTER)
        self.reserve("alpha", PF, 3)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual(
            {PF: "3 of its 4 functions are reserved in Placement by an operator"},
            self.stats_of("alpha").withheld,
        )
        flavor = self.make_flavor(VF)
        self.boot(flavor)
        self.boot(flavor, state="ERROR")


class SwitchedOffTest(ReserveTest):
    """Without the tags the project is not in use: what it has reserved is lifted."""

    def test_the_tags_are_taken_away(self) -> None:
        self.host("alpha", TWO)
        self.quarantine("alpha", FIRST, "overheats")
        self.reserve("alpha", SECOND, 1)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (1, 1)}, self.reserved("alpha"))
        plain = [jsonutils.dumps(each) for each in TWO.device_spec(tags=False)]
        self.flags(device_spec=plain, group="pci")
        self.restart("alpha")
        self.update("alpha")
        # The operator's stays.
        self.assertEqual({FIRST: (0, 1), SECOND: (1, 1)}, self.reserved("alpha"))
        self.assertFalse(any(each.ours for each in self.ledger("alpha").providers.values()))

    def test_a_ledger_that_cannot_be_written(self) -> None:
        """It is reserved all the same: the provider itself says by whom, until the disk does."""
        self.host("alpha", TWO)
        self.quarantine("alpha", FIRST, "overheats")
        with mock.patch(
            "nova_hpc.tenancy.ledger._save_with_copy",
            side_effect=ledger.LedgerError("no space left"),
        ):
            self.update("alpha")
            self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
            self.restart("alpha")  # it knows nothing but what Placement and the disk say
            self.update("alpha")
            self.assertEqual((1, 1), self.reserved("alpha")[FIRST])
            self.assertEqual(["0"], self.unwritten("alpha", FIRST))
        self.update("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual([], self.unwritten("alpha", FIRST))
        self.ledger_file("alpha").release(FIRST)
        self.update("alpha")
        self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_what_an_operator_had_reserved_stays_through_it(self) -> None:
        self.host("alpha", ADAPTER)
        self.reserve("alpha", PF, 1)
        self.update("alpha")
        for each in VFS[:3]:
            self.quarantine("alpha", each, "overheats")
        with mock.patch(
            "nova_hpc.tenancy.ledger._save_with_copy",
            side_effect=ledger.LedgerError("no space left"),
        ):
            self.update("alpha")
            self.assertEqual((3, 4), self.reserved("alpha")[PF])
            self.restart("alpha")
            self.update("alpha")
        for each in VFS[:3]:
            self.ledger_file("alpha").release(each)
        self.update("alpha")
        self.update("alpha")
        self.assertEqual((1, 4), self.reserved("alpha")[PF])

    def unwritten(self, host: str, address: str) -> list[str]:
        """What a provider's trait says that was an operator's."""
        url = f"/resource_providers/{self.provider(host, address)['uuid']}/traits"
        traits = self.placement.get(url, version="1.6").body["traits"]
        found = [each for each in traits if each.startswith(provider_tree.UNWRITTEN)]
        return [each.removeprefix(provider_tree.UNWRITTEN) for each in found]


class LeftBehindTest(ReserveTest):
    """Who left an allocation behind is named, with the command against it."""

    def test_it_is_named(self) -> None:
        self.host("alpha", TWO)
        consumer = self.allocate("alpha", FIRST)
        for _ in range(3):
            self.update("alpha")
        text = (
            f"{FIRST}: allocation left behind by {consumer}: openstack resource provider "
            f"allocation delete {consumer}"
        )
        self.assertIn(text, self.stats_of("alpha").notes)
        self.assertEqual(1, len(self.log_lines("allocation left behind by")))
        self.placement.delete(f"/allocations/{consumer}")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual((), self.stats_of("alpha").notes)

    def test_a_server_that_lives_elsewhere_loses_nothing_there(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor({}))
        self.host("beta", TWO)
        self.placement.get(f"/allocations/{server['id']}", version="1.28")
        body = self.placement.get(f"/allocations/{server['id']}", version="1.28").body
        provider = self.provider("beta", FIRST)["uuid"]
        name = self.inventory("beta", FIRST)["class"]
        body["allocations"][provider] = {"resources": {name: 1}}
        self.placement.put(f"/allocations/{server['id']}", body, version="1.28")
        for _ in range(3):
            self.update("beta")
        (text,) = self.stats_of("beta").notes
        self.assertIn(f"allocation unset --provider {provider} {server['id']}", text)

    def test_servers_and_migrations_are_none(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(NEAR))
        self.host("beta", TWO)
        self.useFixture(fixtures.Moves())
        self._migrate_server(server)
        for confirmed in (False, True):
            for name in ("alpha", "beta"):
                for _ in range(3):
                    self.update(name)
                self.assertEqual((), self.stats_of(name).notes)
            if not confirmed:
                self._confirm_resize(server)


class RefusedTest(ReserveTest):
    """Whatever Placement refuses for one device concerns that device alone."""

    def test_a_resource_class_that_is_in_use(self) -> None:
        """An operator renames a class while an allocation of the old one is left."""
        self.host("alpha", TWO)
        self.allocate("alpha", FIRST)
        entries = [
            {**entry, "resource_class": "CUSTOM_OTHER"} for entry in TWO.device_spec(tags=True)
        ]
        self.flags(
            device_spec=[jsonutils.dumps(each) for each in entries],
            alias=[jsonutils.dumps({"name": "gpu", "resource_class": "CUSTOM_OTHER"})],
            group="pci",
        )
        self.restart("alpha")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual("CUSTOM_OTHER", self.inventory("alpha", SECOND)["class"])
        self.assertNotEqual("CUSTOM_OTHER", self.inventory("alpha", FIRST)["class"])
        self.assertIn("Placement refuses", self.stats_of("alpha").withheld[FIRST])
        server = self.boot(self.make_flavor(GPU))
        self.assertEqual([SECOND], [each.address for each in self.devices_of(server)])

    def test_allocations_that_cannot_be_set_right(self) -> None:
        """Somebody else has in Placement what a server has by Nova."""
        self.host("alpha", TWO)
        flavor = self.make_flavor(NEAR)
        server = self.boot(flavor)
        (mine,) = (device.address for device in self.devices_of(server))
        url = f"/allocations/{server['id']}"
        body = self.placement.get(url, version="1.28").body
        del body["allocations"][self.provider("alpha", mine)["uuid"]]
        self.assertEqual(204, self.placement.put(url, body, version="1.28").status)
        self.allocate("alpha", mine)
        self.refresh("alpha")
        for _ in range(2):
            self.update("alpha")
        self.assertFalse(self.log_lines("Error updating resources for node"))
        notes = " ".join(self.stats_of("alpha").notes)
        self.assertIn(f"refuses to set right the allocations of {server['id']}", notes)
        self.boot(flavor)
        self.boot(self.make_flavor({}))
        # Whoever took it has gone: Nova's healing goes on.
        for consumer in self.consumers("alpha", mine):
            self.placement.delete(f"/allocations/{consumer}")
        self.refresh("alpha")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual([server["id"]], self.consumers("alpha", mine))
        self.assertEqual((), self.stats_of("alpha").notes)


class ReaderTest(ReserveTest):
    """Whoever reads a cloud counts no device as free that is reserved, and says why."""

    def test_explain(self) -> None:
        self.host("alpha", TWO)
        pair = self.make_flavor(NEAR | {"pci_passthrough:alias": "gpu:2"})
        for case, text in (("operator", "by an operator"), ("node", "overheats")):
            if case == "operator":
                self.reserve("alpha", FIRST, 1)
            else:
                self.reserve("alpha", FIRST, 0)
                self.quarantine("alpha", FIRST, "overheats")
            for _ in range(2):
                self.update("alpha")
            (verdict,) = explain_flavor(
                snapshot.take_cloud_snapshot(), FlavorQuestion(pair)
            ).verdicts
            self.assertEqual("1 of 2 gpu, one is withheld", verdict.reason)
            self.assertTrue(any(FIRST in note and text in note for note in verdict.notes))
            server = self.boot(pair, state="ERROR")
            self._delete_server(server)

    def test_functions_of_an_adapter(self) -> None:
        self.host("alpha", ADAPTER)
        self.reserve("alpha", PF, 2)
        self.quarantine("alpha", VFS[0], "lost its link")
        for _ in range(2):
            self.update("alpha")
        flavor = self.make_flavor({"pci_passthrough:alias": "vf:3", "hpc:affinity": "switch"})
        (verdict,) = explain_flavor(snapshot.take_cloud_snapshot(), FlavorQuestion(flavor)).verdicts
        self.assertEqual("2 of 3 vf, one is withheld", verdict.reason)
