# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc drain`` on Nova's stack: all servers leave a host, or it stops and says so."""

from __future__ import annotations

import json

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_tools.cloud import drain_api
from tests.functional.drain_base import PAIR, STOCK, DrainCase


class DrainTest(DrainCase):
    # -- all, or nothing is begun -------------------------------------------------

    def test_all_leave(self) -> None:
        """The member has to stay in its leaf, so the other one goes to where it would fit less."""
        other = self.make("z", self.member, "beta", group=True)
        member = self.make("m", self.member, "alpha", group=True)
        free = self.make("a", self.pair, "alpha")
        stays = self.make("s", self.make_flavor(STOCK), "gamma")
        status, out, err = self.drain()
        self.assertEqual(1, status, err)
        self.assertIn(f"to do: m ({member['id']}) to beta, level switch, in leaf leaf1\n", out)
        self.assertIn(f"to do: a ({free['id']}) to gamma, level switch\n", out)
        self.assertIn("2 servers; nothing was changed, --yes does it", out)
        self.assertEqual(["alpha", "alpha"], self.where(member, free))
        self.assertEqual(("enabled", None), self.service())

        status, out, err = self.drain("--yes")
        self.assertEqual(0, status, err)
        self.assertIn("2 servers have left alpha\n", out)
        self.assertEqual(["beta", "gamma", "beta"], self.where(member, free, other))
        self.assertEqual(["gamma"], self.where(stays))
        self.assertEqual(("disabled", "nova-hpc drain"), self.service())
        for each in (member, free):
            self.assertEqual("switch", self.decision(each).reached.word)
        self.assert_all_free("alpha")
        self.assert_given_once()
        # Once more: nothing is left to do.
        status, out, err = self.drain("--yes")
        self.assertEqual((0, "no server with hpc: keys is on alpha\n"), (status, out), err)

    @pytest.mark.slow
    def test_one_without_a_place_keeps_all(self) -> None:
        # The leaf is full, though the other has room.
        self.make("z", self.member, "beta", group=True)
        self.make("y", self.pair, "beta")
        member = self.make("m", self.member, "alpha", group=True)
        free = self.make("a", self.pair, "alpha")
        for words in ((), ("--yes",)):
            status, out, err = self.drain(*words)
            self.assertEqual((2, ""), (status, out))
            self.assertIn("nothing was changed on alpha", err)
            self.assertIn(f"m ({member['id']}): no host in leaf leaf1 has room for it", err)
            self.assertEqual(["alpha", "alpha"], self.where(member, free))
            self.assertEqual(("enabled", None), self.service())

    @pytest.mark.slow
    def test_what_cannot_be_moved_is_named(self) -> None:
        tied = self.api.post_server_groups({"name": "t", "policy": "affinity"})
        self.group = tied
        one = self.make("one", self.pair, "alpha", group=True)
        self.make("two", self.pair, "alpha", group=True)
        self.admin_api.post_server_action(one["id"], {"pause": None})
        self._wait_for_state_change(one, "PAUSED")
        status, out, err = self.drain("--yes")
        self.assertEqual((2, ""), (status, out))
        self.assertIn(f"one ({one['id']}): it is PAUSED; Nova moves servers that are", err)
        self.assertIn(f"its server group {tied['id']} has the policy affinity", err)
        self.assertEqual(("enabled", None), self.service())
        # A resize that waits for its user is the user's to confirm.
        self.admin_api.post_server_action(one["id"], {"unpause": None})
        self._wait_for_state_change(one, "ACTIVE")
        resized = self.make("r", self.pair, "beta")
        status, out, err = self.drain()
        self.assertNotIn(resized["id"], out + err)

    @pytest.mark.slow
    def test_a_resize_is_its_users(self) -> None:
        one = self.make("one", self.pair, "alpha")
        self.flags(allow_resize_to_same_host=False)
        resize = {"resize": {"flavorRef": self.make_flavor(PAIR)}}
        self.admin_api.post_server_action(one["id"], resize)
        self._wait_for_state_change(one, "VERIFY_RESIZE")
        status, out, err = self.drain("--yes")
        self.assertEqual((2, ""), (status, out))
        self.assertIn(f"one ({one['id']}): its resize waits for its user", err)
        self.assertEqual("VERIFY_RESIZE", self.admin_api.get_server(one["id"])["status"])

    # -- it stops, and goes on ------------------------------------------------------

    @pytest.mark.slow
    def test_a_move_that_fails_stops_it_and_the_next_run_goes_on(self) -> None:
        first = self.make("a", self.pair, "alpha")
        second = self.make("b", self.pair, "alpha")
        self.make("x", self.pair, "beta")
        status, out, _ = self.drain()
        planned = {line.split()[2]: line.split()[5].strip(",") for line in out.splitlines()[:2]}
        self.assertEqual({"a", "b"}, set(planned))
        down = planned["b"]
        (service,) = self.admin_api.get_services(host=down, binary="nova-compute")

        def fall() -> None:
            self.admin_api.put_service_force_down(service["id"], True)

        class Fails(drain_api.DrainCloud):
            def migrate(self, uuid: str, target: str | None) -> None:
                if uuid == second["id"]:
                    fall()
                super().migrate(uuid, target)

        status, out, err = self.drain("--yes", cloud=Fails)
        self.assertEqual(1, status)
        self.assertIn(f"done: a is on {planned['a']}\n", out)
        self.assertIn("1 of 2 servers have left alpha, which takes no new ones; stopped at b", err)
        self.assertIn("is ACTIVE on alpha as before: Nova did not move it", err)
        self.assertIn("run it again to go on", err)
        self.assertEqual([planned["a"], "alpha"], self.where(first, second))
        self.admin_api.put_service_force_down(service["id"], False)
        status, out, err = self.drain("--yes")
        self.assertEqual(0, status, err)
        self.assertIn("1 server has left alpha\n", out)
        self.assertNotIn("alpha", self.where(first, second))
        self.assert_given_once()

    @pytest.mark.slow
    def test_cut_short_between_move_and_confirmation(self) -> None:
        server = self.make("a", self.pair, "alpha")

        class Dies(drain_api.DrainCloud):
            def confirm(self, uuid: str) -> None:
                raise KeyboardInterrupt

        status, out, err = self.drain("--yes", cloud=Dies)
        self.assertNotEqual(0, status)
        self.assertIn("0 of 1 servers have left alpha", err)
        self.assertEqual("VERIFY_RESIZE", self.admin_api.get_server(server["id"])["status"])
        status, out, err = self.drain()
        self.assertEqual(1, status)
        self.assertIn(f"to do: a ({server['id']}) to ", out)
        status, out, err = self.drain("--yes")
        self.assertEqual(0, status, err)
        self.assertNotIn("alpha", self.where(server))
        self.assert_all_free("alpha")

    # -- a dead host ------------------------------------------------------------------

    def test_of_a_dead_host_the_servers_with_a_place_leave(self) -> None:
        """Stock Nova sets a server without a place to ERROR."""
        member = self.make("m", self.member, "alpha", group=True)
        free = self.make("a", self.pair, "alpha")
        self.make("y", self.pair, "beta")
        self.make("x", self.pair, "beta")
        status, out, err = self.drain("--dead", "--yes")
        self.assertEqual((2, ""), (status, out))
        self.assertIn("nova-compute on alpha is up: Nova evacuates no server of it", err)
        self.die()
        status, out, err = self.drain("--dead")
        self.assertEqual(1, status, err)
        self.assertIn(f"to do: a ({free['id']}) to gamma, level switch\n", out)
        self.assertIn(f"stays: m ({member['id']}): no host in leaf leaf1 has room for it", err)
        self.assertEqual([("ACTIVE", "alpha")] * 2, [self.status(each) for each in (member, free)])

        status, out, err = self.drain("--dead", "--yes", "-f", "json")
        self.assertEqual(1, status, err)
        rows = {row["ID"]: row for row in json.loads(out)}
        self.assertEqual((True, ""), (rows[free["id"]]["Done"], rows[free["id"]]["Reason"]))
        self.assertIs(False, rows[member["id"]]["Done"])
        self.assertIn("no host in leaf leaf1", rows[member["id"]]["Reason"])
        self.assertEqual(("ACTIVE", "gamma"), self.status(free))
        self.assertEqual(("ACTIVE", "alpha"), self.status(member))
        self.assertEqual("switch", self.decision(free).reached.word)
        self.assertEqual(("disabled", "nova-hpc drain"), self.service())
        # Room comes free in its leaf.
        (guest,) = [each for each in self.api.get_servers() if each["name"] == "x"]
        self.api.delete_server(guest["id"])
        self._wait_until_deleted(guest)
        status, out, err = self.drain("--dead", "--yes")
        self.assertEqual(0, status, err)
        self.assertEqual(("ACTIVE", "beta"), self.status(member))

    @pytest.mark.slow
    def test_one_evacuation_that_fails_ends_no_other(self) -> None:
        servers = [self.make(name, self.pair, "alpha") for name in ("a", "b")]
        paused = self.make("p", self.make_flavor({**PAIR, "hpc:guest_topology": "flat"}), "gamma")
        self.admin_api.post_server_action(paused["id"], {"pause": None})
        self.die()

        class Fails(drain_api.DrainCloud):
            def evacuate(self, uuid: str, target: str | None) -> None:
                if uuid == servers[0]["id"]:
                    raise drain_api.NovaApiError("Nova answers 500")
                super().evacuate(uuid, target)

        status, out, err = self.drain("--dead", "--yes", cloud=Fails)
        self.assertEqual(1, status)
        self.assertIn(f"failed: a ({servers[0]['id']}): Nova answers 500\n", err)
        self.assertIn("1 server has left alpha\n", out)
        self.assertEqual(("ACTIVE", "alpha"), self.status(servers[0]))
        self.assertNotEqual("alpha", self.status(servers[1])[1])
        # Only the named server.
        status, out, err = self.drain("--dead", "--server", paused["id"])
        self.assertEqual((0, "no server with hpc: keys is on alpha\n"), (status, out), err)
        status, out, err = self.drain("--server", servers[0]["id"])
        self.assertEqual(2, status)
        self.assertIn("--server needs --dead", err)
        # A task of the dead service never ends.
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(context, servers[0]["id"])
        instance.task_state = "rebooting"
        instance.save()
        status, out, err = self.drain("--dead")
        self.assertEqual(
            (1, "no server with hpc: keys of alpha has a place elsewhere\n"), (status, out)
        )
        self.assertIn(f"openstack server set --state error {servers[0]['id']}", err)
        self.admin_api.post_server_action(servers[0]["id"], {"os-resetState": {"state": "error"}})
        status, out, err = self.drain("--dead", "--yes")
        self.assertEqual(0, status, err)
        self.assertEqual("ACTIVE", self.status(servers[0])[0])
        self.assert_given_once()
