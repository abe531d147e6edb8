# SPDX-License-Identifier: Apache-2.0
"""Nova's own answers on servers, as Neutron's mechanism driver reads them."""

from __future__ import annotations

from keystoneauth1 import adapter, noauth, session
from nova import utils
from nova.tests.functional import integrated_helpers

from neutron_drivers.nova_servers import NovaServerLookup


class MissingServersTest(integrated_helpers._IntegratedTestBase):
    """Nova reports other projects' servers as missing, too."""

    ADMIN_API = True

    def _explain(self, user: str, roles: str, server: str) -> str:
        """The driver's reading as a user of another project."""
        servers = NovaServerLookup(None)
        servers._api = adapter.Adapter(
            session.Session(auth=noauth.NoAuth(endpoint=self.api_fixture.base_url)),
            service_type="compute",
            additional_headers={
                "X-Auth-User": user,
                "X-Auth-Project-Id": "1f5a0c6e7b3d4e0f9a2b8c7d6e5f4a3b",
                "X-Roles": roles,
            },
        )
        return servers.explain_hold(server, self.compute.host)

    def test_only_an_administrator_sees_that_a_server_is_gone(self) -> None:
        server = self._create_server(networks=[])["id"]
        self.assertEqual("Nova has the server there", self._explain("admin", "admin", server))
        # The server runs, and Nova reports it as missing.
        seen = self._explain("neutron", "service", server)
        self.assertIn("does not reach Nova as an administrator (403)", seen)

        self._delete_server({"id": server})
        self.assertEqual("", self._explain("admin", "admin", server))
        self.assertNotEqual("", self._explain("neutron", "service", server))

    def test_a_server_is_away_when_it_is_shelved_or_its_move_is_confirmed(self) -> None:
        server = self._create_server(networks=[])
        self._start_compute("second")
        self._migrate_server(server)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        seen = self._explain("admin", "admin", server["id"])
        self.assertIn("state resized", seen)
        self._confirm_resize(server)
        self.assertEqual("", self._explain("admin", "admin", server["id"]))
        self._migrate_server(server)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._confirm_resize(server)
        seen = self._explain("admin", "admin", server["id"])
        self.assertEqual("Nova has the server there", seen)
        self._shelve_server(server)
        self.assertEqual("", self._explain("admin", "admin", server["id"]))

    def test_a_server_that_is_deleted_while_its_host_is_down_may_run_on(self) -> None:
        server = self._create_server(networks=[])
        service = self.compute.service_ref.uuid
        with utils.temporary_mutation(self.api, microversion="2.53"):
            self.api.put_service_force_down(service, True)
        self.compute.stop()
        self._delete_server(server)
        seen = self._explain("admin", "admin", server["id"])
        self.assertEqual(f"nova-compute of its host {self.compute.host} is down", seen)
