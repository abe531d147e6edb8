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
    ("former", "port", "in_the_way"),
    [
        (SLOT, wanted(), False),
        (SLOT, wanted(slot="0000:81:00.3"), True),
        (SLOT, wanted(host="cn1"), True),
        (SLOT, wanted(slot="0000:81:00.3", server=SERVER), False),
        # Unknown places are equal to nothing, and so are unknown servers.
        ("", wanted(slot=""), True),
        (SLOT, wanted(slot="", server=""), True),
    ],
)
def test_who_is_in_the_way(former, port, in_the_way):
    assert FormerHolder("p", SERVER, "cn0", former).is_in_the_way(port) is in_the_way


def test_the_error_names_the_cure_and_the_log_names_ports_and_servers():
    formers = [FormerHolder(port, SERVER, "cn0", SLOT) for port in ("b", "a")]
    error = conflict_of_formers("main", GUID, formers)
    assert "Delete that server" in str(error)
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
        status, body = self.server.answers.get(self.path, (404, "no such page"))
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

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
    conf.register_opts(loading.get_auth_plugin_conf_options("none"), "nova")
    conf([])
    section = {"auth_type": "none", "endpoint": f"http://127.0.0.1:{port}/v2.1", **section}
    for name, value in section.items():
        conf.set_override(name, value, "nova")
    return NovaServerLookup(conf).explain_server(SERVER)


@pytest.mark.parametrize(
    ("server", "aggregates", "reason"),
    [
        ((404, GONE), (200, {"aggregates": []}), ""),
        ((200, {"server": {}}), (200, {}), "Nova has the server"),
        ((404, GONE), (403, {}), "as an administrator (403)"),
        ((404, NO_PATH), (200, {}), "the answer 404 is not Nova's"),
        ((404, {}), (200, {}), "the answer 404 is not Nova's"),
        ((404, "<html>404</html>"), (200, {}), "Nova does not answer"),
        ((404, []), (200, {}), "Nova does not answer"),
        ((404, {"itemNotFound": None}), (200, {}), "Nova does not answer"),
        ((500, {}), (200, {}), "Nova answers 500"),
        ((300, {}), (200, {}), "Nova answers 300"),
        ((403, {}), (200, {}), "Nova answers 403"),
    ],
)
def test_only_novas_own_word_to_an_administrator_counts(nova, server, aggregates, reason):
    nova.answers = {f"/v2.1/servers/{SERVER}": server, "/v2.1/os-aggregates": aggregates}
    found = ask(nova.server_port)
    assert bool(found) == bool(reason)
    assert reason in found


def test_a_nova_that_is_not_there(nova):
    port = nova.server_port
    nova.shutdown()
    nova.server_close()
    assert "Nova does not answer" in ask(port)


def test_a_section_that_names_no_user():
    assert "Nova does not answer" in ask(1, auth_type=None)
    assert "Nova does not answer" in ask(1, auth_type="password")
