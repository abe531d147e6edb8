# SPDX-License-Identifier: Apache-2.0
"""Deleted ports whose servers may still have their functions, and Nova's answers on servers."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
from keystoneauth1 import loading
from oslo_config import cfg

from neutron_drivers.held_ports import FormerHolder, conflict_of_formers
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.nova_servers import NovaServerLookup
from neutron_drivers.port_rules import WantedMember
from nova_hpc.fabric.partitions.keys import Membership

GUID = 0x2C90000200001
SERVER = "7f9c2ba4-e88f-4271-9d3d-1d5e7f0a6f11"
SLOT = "0000:81:00.2"


def wanted(host="cn0", slot=SLOT, server="other"):
    key = FabricKey("main", 0x102)
    return WantedMember(key, GUID, GUID, Membership.FULL, host, slot, "n2", server)


@pytest.mark.parametrize(
    ("former", "own", "port", "in_the_way"),
    [
        (SLOT, None, wanted(), False),
        (SLOT, None, wanted(slot="0000:81:00.3"), True),
        (SLOT, "n1", wanted(slot="0000:81:00.3"), True),
        (SLOT, "n2", wanted(slot="0000:81:00.3"), False),
        (SLOT, None, wanted(host="cn1"), True),
        (SLOT, None, wanted(slot="0000:81:00.3", server=SERVER), False),
        # Unknown places are equal to nothing, and so are unknown servers.
        ("", None, wanted(slot=""), True),
        (SLOT, None, wanted(slot="", server=""), True),
    ],
)
def test_who_is_in_the_way(former, own, port, in_the_way):
    assert FormerHolder("p", SERVER, "cn0", former, own).is_in_the_way(port) is in_the_way


def test_the_error_names_the_cure_and_the_log_names_ports_and_servers():
    formers = [FormerHolder(port, SERVER, "cn0", SLOT) for port in ("b", "a")]
    error = conflict_of_formers("main", GUID, formers)
    assert "Delete or move that server" in str(error)
    assert f"main: port a of server {SERVER}, port b of server {SERVER}. Section [nova]" in (
        error.detail
    )
    # Nova shows the text to users.
    assert SERVER not in str(error)
    assert "cn0" not in str(error)


# -- Nova ----------------------------------------------------------------------------------

GONE = {"itemNotFound": {"code": 404, "message": f"Instance {SERVER} could not be found."}}
NO_PATH = {"itemNotFound": {"code": 404, "message": "The resource could not be found."}}


class Nova(http.server.BaseHTTPRequestHandler):
    """Answers each path as a test says."""

    def do_GET(self):
        assert self.headers["OpenStack-API-Version"] == "compute 2.69"
        status, body = self.server.answers.get(self.path, (404, "no such page"))
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        self.send_error(401)

    def log_message(self, *arguments):
        """None is read."""


@pytest.fixture
def nova():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nova) as server:
        worker = threading.Thread(target=server.serve_forever)
        worker.start()
        yield server
        server.shutdown()
        worker.join()


def ask(port, **section):
    """What is read of Nova at a port of this host, with a section like Neutron's."""
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.StrOpt("region_name"), cfg.StrOpt("endpoint_type")], "nova")
    loading.register_session_conf_options(conf, "nova")
    loading.register_auth_conf_options(conf, "nova")
    conf([])
    for plugin in ("none", "v3password"):
        conf.register_opts(loading.get_auth_plugin_conf_options(plugin), "nova")
    section = {"auth_type": "none", "endpoint": f"http://127.0.0.1:{port}/v2.1", **section}
    for name, value in section.items():
        conf.set_override(name, value, "nova")
    return NovaServerLookup(conf).explain_hold(SERVER, "cn0")


def services(*states):
    states = [{"state": state} if state else {} for state in states]
    return 200, {"services": [{"binary": "nova-compute", **state} for state in states]}


def server(host="cn1", vm_state="active", task=None):
    names = ("OS-EXT-SRV-ATTR:host", "OS-EXT-STS:vm_state", "OS-EXT-STS:task_state")
    return 200, {"server": dict(zip(names, (host, vm_state, task), strict=True))}


@pytest.mark.parametrize(
    ("server", "services", "reason"),
    [
        ((404, GONE), services("up"), ""),
        # The operator took the host out.
        ((404, GONE), services(), ""),
        # A server is deleted without its host while that is down; its guest may run on.
        ((404, GONE), services("down"), "nova-compute of its host cn0 is down"),
        # A service of a cell that does not answer.
        ((404, GONE), services(None), "nova-compute of its host cn0 is down"),
        (server(), services("up"), ""),
        (server(), services("down"), "nova-compute of its host cn0 is down"),
        (server("cn0"), services("up"), "Nova has the server there"),
        (server(None, "shelved_offloaded"), services("up"), ""),
        # It may come back to its first host.
        (server(vm_state="resized"), services("up"), "state resized, task None"),
        (server(task="migrating"), services("up"), "state active, task migrating"),
        (server(vm_state="error"), services("up"), "state error"),
        (server(None, "building", "scheduling"), services("up"), "state building"),
        # As Nova shows servers of a cell that does not answer, and to other users.
        ((200, {"server": {"status": "UNKNOWN"}}), services("up"), "Nova has the server there"),
        ((200, {}), services("up"), "Nova does not answer"),
        ((404, GONE), (403, {}), "as an administrator (403)"),
        ((404, GONE), (200, {}), "Nova does not answer"),
        ((404, NO_PATH), services("up"), "the answer 404 is not Nova's"),
        ((404, {}), services("up"), "the answer 404 is not Nova's"),
        ((404, "<html>404</html>"), services("up"), "Nova does not answer"),
        ((404, []), services("up"), "Nova does not answer"),
        ((404, {"itemNotFound": None}), services("up"), "Nova does not answer"),
        ((500, {}), services("up"), "Nova answers 500"),
        ((300, {}), services("up"), "Nova answers 300"),
        ((403, {}), services("up"), "Nova answers 403"),
    ],
)
def test_only_novas_own_word_to_an_administrator_counts(nova, server, services, reason):
    path = "/v2.1/os-services?binary=nova-compute&host=cn0"
    nova.answers = {f"/v2.1/servers/{SERVER}": server, path: services}
    found = ask(nova.server_port)
    assert bool(found) == bool(reason)
    assert reason in found


def test_a_nova_that_is_not_there(nova):
    port = nova.server_port
    nova.shutdown()
    nova.server_close()
    assert "Nova does not answer" in ask(port)


def test_a_keystone_that_refuses_the_user(nova):
    """Its answers differ by the request's ID, and the log is to name a hold once."""
    where = f"http://127.0.0.1:{nova.server_port}/v3"
    user = dict.fromkeys(("username", "password", "user_domain_id"), "x")
    assert ask(1, auth_type="v3password", auth_url=where, **user) == "Keystone answers 401"


def test_a_section_that_names_no_user():
    assert "Nova does not answer" in ask(1, auth_type=None)
    assert "Nova does not answer" in ask(1, auth_type="password")
