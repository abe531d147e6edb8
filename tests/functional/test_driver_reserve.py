# SPDX-License-Identifier: Apache-2.0
"""Withholding a device harms nobody else: its provider stays, and other claims go on."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from oslo_serialization import jsonutils
from oslo_utils import uuidutils

from nova_hpc.cloud.explain import explain
from nova_hpc.cloud.explain.model import Question
from nova_hpc.from_nova import snapshot
from nova_hpc.tenancy import ledger
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

GPU = {"pci_passthrough:alias": "gpu:1"}
NEAR = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
VF = {"pci_passthrough:alias": "vf:1"}
PF, VFS = "0000:40:01.0", [f"0000:40:01.{function}" for function in (1, 2, 3, 4)]
FIRST, SECOND = "0000:40:00.0", "0000:40:01.0"
TWO = fixtures.Shape((fixtures.Switch(gpus=2),))
ADAPTER = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),))


class ReserveTest(DriverTest):
    """Helpers: what Placement says of a provider, and what others write there."""

    def setUp(self) -> None:
        super().setUp()
        # What others change in Placement is seen at the next update.
        self.flags(resource_provider_association_refresh=1, group="compute")
        # A device that is away for a moment is tried again at the next update.
        self.flags(suspect_retry=0.0, group="hpc")

    def provider(self, host: str, address: str) -> dict[str, Any]:
        name = f"{host}_{address.upper()}"
        found = self.placement.get(f"/resource_providers?name={name}", version="1.14").body
        (provider,) = found["resource_providers"]
        return provider

    def inventory(self, host: str, address: str) -> dict[str, Any]:
        """Total and reserved of its one resource class."""
        uuid = self.provider(host, address)["uuid"]
        body = self.placement.get(f"/resource_providers/{uuid}/inventories").body
        ((name, fields),) = body["inventories"].items()
        return {"class": name, "total": fields["total"], "reserved": fields["reserved"]}

    def reserved(self, host: str) -> dict[str, tuple[int, int]]:
        """Address of each provider -> how much of its total is reserved."""
        found = {each: self.inventory(host, each) for each in self.in_placement(host)}
        return {each: (one["reserved"], one["total"]) for each, one in found.items()}

    def reserve(self, host: str, address: str, amount: int) -> None:
        """What an operator does."""
        provider = self.provider(host, address)
        name = self.inventory(host, address)["class"]
        url = f"/resource_providers/{provider['uuid']}/inventories/{name}"
        fields = self.placement.get(url).body
        self.placement.put(url, {**fields, "reserved": amount}, version="1.26")
        self.refresh(host)

    def allocate(self, host: str, address: str, consumer: str | None = None) -> str:
        """An allocation of a consumer that nobody knows: what a crash leaves behind."""
        consumer = consumer or uuidutils.generate_uuid()
        uuid = self.provider(host, address)["uuid"]
        name = self.inventory(host, address)["class"]
        body = {
            "allocations": {uuid: {"resources": {name: 1}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
        }
        answer = self.placement.put(f"/allocations/{consumer}", body, version="1.28")
        self.assertEqual(204, answer.status, answer.body)
        return consumer

    def consumers(self, host: str, address: str) -> list[str]:
        uuid = self.provider(host, address)["uuid"]
        body = self.placement.get(f"/resource_providers/{uuid}/allocations").body
        return sorted(body["allocations"])

    def refresh(self, host: str) -> None:
        """Nova keeps what Placement said for five minutes."""
        self.computes[host].manager.rt.reportclient.clear_provider_cache()

    def mark(self, host: str, address: str) -> Mapping[str, Any]:
        """An aggregate of an operator's, and the UUID of the provider."""
        provider = self.provider(host, address)
        url = f"/resource_providers/{provider['uuid']}/aggregates"
        body = {
            "aggregates": [AGGREGATE],
            "resource_provider_generation": provider["generation"],
        }
        self.placement.put(url, body, version="1.19")
        self.refresh(host)
        return provider

    def aggregates(self, host: str, address: str) -> list[str]:
        uuid = self.provider(host, address)["uuid"]
        url = f"/resource_providers/{uuid}/aggregates"
        return self.placement.get(url, version="1.19").body["aggregates"]

    @contextlib.contextmanager
    def unlisted(self, host: str, *addresses: str, kernel: bool = True) -> Iterator[None]:
        """Libvirt does not list these devices for a while.

        :param kernel: the kernel has not got them either.
        """
        names = {f"pci_{address.translate(str.maketrans(':.', '__'))}" for address in addresses}
        connection = self.computes[host].driver._host
        plain = connection.list_all_devices

        def without(flags: int) -> list[Any]:
            return [each for each in plain(flags=flags) if each.name() not in names]

        tree = self.sysfs[host]
        with (
            mock.patch.object(connection, "list_all_devices", side_effect=without),
            tempfile.TemporaryDirectory(dir=tree.root) as aside,
        ):
            gone = addresses if kernel else ()
            for address in gone:
                (tree.devices / address).rename(Path(aside) / address)
            try:
                yield
            finally:
                for address in gone:
                    (Path(aside) / address).rename(tree.devices / address)

    def restart(self, host: str) -> None:
        """nova-compute is started again."""
        self.computes[host] = self.restart_compute_service(host, keep_hypervisor_state=True)


AGGREGATE = "6f6f6f6f-0000-4000-8000-000000000001"


class OrphanTest(ReserveTest):
    """An allocation that was left behind on a device that is withheld."""

    def test_others_are_not_harmed(self) -> None:
        self.host("alpha", TWO)
        self.allocate("alpha", FIRST)
        self.quarantine("alpha", FIRST, "overheats")
        for _ in range(3):
            self.update("alpha")
        self.assertFalse(self.log_lines("Error updating resources for node"))
        self.assertFalse(self.log_lines("Failed to synchronize the placement"))
        # For a healthy GPU, and without any.
        server = self.boot(self.make_flavor(GPU))
        self.assertEqual([SECOND], [each.address for each in self.devices_of(server)])
        self.boot(self.make_flavor({}))


class FlapTest(ReserveTest):
    """A device that is withheld for a while keeps all that is known of it in Placement."""

    def test_everything_survives(self) -> None:
        self.host("alpha", TWO)
        before = self.mark("alpha", FIRST)
        self.quarantine("alpha", FIRST, "overheats")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual({SECOND: "available"}, self.tracked("alpha"))
        self.ledger_file("alpha").release(FIRST)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual(before["uuid"], self.provider("alpha", FIRST)["uuid"])
        self.assertEqual([AGGREGATE], self.aggregates("alpha", FIRST))
        self.assertEqual({FIRST: "available", SECOND: "available"}, self.tracked("alpha"))

    def test_one_that_is_ill_when_it_is_first_seen_is_left_out(self) -> None:
        self.host("alpha", TWO, before=lambda tree: tree.bind(FIRST, None) or tree.vanish(FIRST))
        self.update("alpha")
        self.assertEqual({SECOND: (0, 1)}, self.reserved("alpha"))

    def test_a_restart_changes_nothing(self) -> None:
        self.host("alpha", TWO)
        before = self.provider("alpha", FIRST)["uuid"]
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        self.restart("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual(before, self.provider("alpha", FIRST)["uuid"])
        self.ledger_file("alpha").release(FIRST)
        self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_what_nobody_remembers_is_named_once(self) -> None:
        """A ledger that was lost, or a node that was installed anew under its name."""
        self.host("alpha", TWO)
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        self.restart("alpha")
        self.update("alpha")
        self.assertFalse(self.log_lines("does not know by whom"))
        (self.sysfs["alpha"].root / "ledger").unlink()
        self.restart("alpha")
        for _ in range(3):
            self.update("alpha")
        (line,) = self.log_lines("does not know by whom")
        uuid = self.provider("alpha", FIRST)["uuid"]
        command = f"inventory set --amend --resource {fixtures.GPU_CLASS}:reserved=0 {uuid}"
        self.assertIn(f"{FIRST}: openstack resource provider {command}", line)
        self.assertNotIn(SECOND, line)
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_a_server_that_has_it_loses_nothing(self) -> None:
        """It is reserved once the server has gone, and not before."""
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(NEAR))
        (mine,) = (device.address for device in self.devices_of(server))
        self.quarantine("alpha", mine, "overheats")
        self.update("alpha")
        self.assertEqual((0, 1), self.reserved("alpha")[mine])
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual((1, 1), self.reserved("alpha")[mine])

    def test_inventories_that_could_not_be_read(self) -> None:
        """Nova takes them for empty ones, and would delete what it does not track."""
        self.host("alpha", TWO)
        before = self.mark("alpha", FIRST)["uuid"]
        self.quarantine("alpha", FIRST, "overheats")
        self.reserve("alpha", SECOND, 1)
        for _ in range(2):
            self.update("alpha")
        client = self.computes["alpha"].manager.rt.reportclient
        client.clear_provider_cache()
        with mock.patch.object(client, "_get_inventory", return_value=None):
            self.update("alpha")
        self.refresh("alpha")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (1, 1)}, self.reserved("alpha"))
        self.assertEqual(before, self.provider("alpha", FIRST)["uuid"])
        self.assertEqual([AGGREGATE], self.aggregates("alpha", FIRST))
        known = self.ledger("alpha").providers
        self.assertEqual((0, 1), (known[FIRST].operators, known[SECOND].operators))

    def test_one_that_does_not_pass_is_reserved_when_its_server_is_deleted(self) -> None:
        """There is no time in which it is free by Placement."""
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(NEAR))
        (mine,) = (device.address for device in self.devices_of(server))
        (self.sysfs["alpha"].devices / mine / "reset").unlink()
        self._delete_server(server)
        self.assertEqual([mine], list(self.ledger("alpha").quarantined))
        self.assertEqual((1, 1), self.reserved("alpha")[mine])


class ForcedTest(ReserveTest):
    """A forced host does not give what is withheld either."""

    def test_placement_refuses(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=1),)))
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        for specs in (GPU, NEAR):
            server = self.boot(self.make_flavor(specs), state="ERROR", az="nova:alpha")
            fault = self.api.get_server(server["id"])["fault"]
            self.assertIn("No valid host", fault["message"])
            self._delete_server(server)
        self.assertEqual(0, self.failed_builds("alpha"))
        self.boot(self.make_flavor({}), az="nova:alpha")


class FunctionsTest(ReserveTest):
    """Functions of one adapter, which share a provider."""

    def test_the_withheld_one_is_never_given(self) -> None:
        self.host("alpha", ADAPTER)
        self.quarantine("alpha", VFS[3], "lost its link")
        self.update("alpha")
        self.assertEqual((1, 4), self.reserved("alpha")[PF])
        flavor = self.make_flavor(VF)
        servers = [self.boot(flavor) for _ in range(3)]
        given = {device.address for server in servers for device in self.devices_of(server)}
        self.assertEqual(set(VFS[:3]), given)
        self.boot(flavor, state="ERROR")
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assertEqual((1, 4), self.reserved("alpha")[PF])
        # It is well again, and there is one more server.
        self.ledger_file("alpha").release(VFS[3])
        self.update("alpha")
        server = self.boot(flavor)
        self.assertEqual([VFS[3]], [each.address for each in self.devices_of(server)])

    def test_what_is_reserved_survives_another_total(self) -> None:
        """Nova sends no ``reserved`` with a new total, and Placement takes 0."""
        self.host("alpha", ADAPTER)
        uuid = self.provider("alpha", PF)["uuid"]
        self.quarantine("alpha", VFS[0], "lost its link")
        self.update("alpha")
        self.reserve("alpha", PF, 2)
        self.update("alpha")
        self.assertEqual((2, 4), self.reserved("alpha")[PF])
        with self.unlisted("alpha", VFS[3], kernel=False):
            self.update("alpha")
            self.assertEqual((2, 3), self.reserved("alpha")[PF])
        self.update("alpha")
        self.assertEqual((2, 4), self.reserved("alpha")[PF])
        self.ledger_file("alpha").release(VFS[0])
        self.update("alpha")
        # What is left is the operator's.
        self.assertEqual((2, 4), self.reserved("alpha")[PF])
        self.assertEqual(uuid, self.provider("alpha", PF)["uuid"])
        known = self.ledger("alpha").providers[PF]
        self.assertEqual((0, 2), (known.ours, known.operators))

    def test_functions_that_are_made_anew(self) -> None:
        """A driver that is loaded again takes all of them away for a moment."""
        self.host("alpha", ADAPTER)
        before = self.mark("alpha", PF)["uuid"]
        with self.unlisted("alpha", *VFS):
            for _ in range(2):
                self.update("alpha")
            self.assertEqual((4, 4), self.reserved("alpha")[PF])
            self.assertIn("vanished", self.stats_of("alpha").withheld[PF])
            self.boot(self.make_flavor(VF), state="ERROR")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual((0, 4), self.reserved("alpha")[PF])
        self.assertEqual(before, self.provider("alpha", PF)["uuid"])
        self.assertEqual([AGGREGATE], self.aggregates("alpha", PF))


class VanishedTest(ReserveTest):
    """A device that is gone from the machine."""

    def test_it_is_kept_while_anybody_has_it(self) -> None:
        self.host("alpha", TWO)
        self.allocate("alpha", FIRST)
        with self.unlisted("alpha", FIRST):
            for _ in range(3):
                self.update("alpha")
            self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
            self.assertFalse(self.log_lines("Error updating resources for node"))
            self.boot(self.make_flavor(GPU))

    def test_it_goes_after_a_week(self) -> None:
        self.goes_after(7 * 24 * 3600)

    def test_it_goes_after_the_time_that_is_configured(self) -> None:
        self.flags(keep_vanished=3600.0, group="hpc")
        self.goes_after(3600)

    def goes_after(self, seconds: int) -> None:
        self.host("alpha", TWO)
        with self.unlisted("alpha", FIRST):
            self.update("alpha")
            self.assertEqual((1, 1), self.reserved("alpha")[FIRST])
            gone = self.ledger("alpha").providers[FIRST].gone
            with mock.patch("virt_driver_patches.driver.reserve.time") as clock:
                clock.time.return_value = gone + seconds - 1
                self.update("alpha")
                self.assertEqual((1, 1), self.reserved("alpha")[FIRST])
                clock.time.return_value = gone + seconds + 1
                self.update("alpha")
            self.assertEqual({SECOND: (0, 1)}, self.reserved("alpha"))
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_one_that_is_configured_no_more_goes_at_once(self) -> None:
        self.host("alpha", TWO)
        entries = [
            {**entry, "address": SECOND}
            for entry in TWO.device_spec()
            if entry["hpc_role"] == "gpu"
        ][:1]
        self.flags(device_spec=[jsonutils.dumps(each) for each in entries], group="pci")
        self.restart("alpha")
        self.update("alpha")
        self.assertEqual({SECOND: (0, 1)}, self.reserved("alpha"))


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
        """Nothing is reserved that nobody would remember; nobody gets the device either."""
        self.host("alpha", TWO)
        self.quarantine("alpha", FIRST, "overheats")
        with mock.patch(
            "nova_hpc.tenancy.ledger._save", side_effect=ledger.LedgerError("no space left")
        ):
            self.update("alpha")
        self.assertEqual((0, 1), self.reserved("alpha")[FIRST])
        self.assertEqual({SECOND: "available"}, self.tracked("alpha"))
        server = self.boot(self.make_flavor(GPU))
        self.assertEqual([SECOND], [each.address for each in self.devices_of(server)])
        self.update("alpha")
        self.assertEqual((1, 1), self.reserved("alpha")[FIRST])


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
            (verdict,) = explain(snapshot.take(), Question(pair)).verdicts
            self.assertEqual("1 gpu free (needs 2)", verdict.reason)
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
        (verdict,) = explain(snapshot.take(), Question(flavor)).verdicts
        self.assertEqual("2 vf free (needs 3)", verdict.reason)
