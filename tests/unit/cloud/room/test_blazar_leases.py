# SPDX-License-Identifier: Apache-2.0
"""The end times of Blazar's leases. The answer is Blazar 18's own, of the lab."""

import json

import attrs
import pytest
import requests
from keystoneauth1 import noauth, session

from nova_hpc_tools.cloud.room import blazar_leases, end_times
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.snapshot import Server
from tests.unit.cloud.room.random_clouds import flavor_of
from tests.unit.snapshot import clouds

OWN = "05296274-0c3d-45fb-ba0d-7de294be1222"
LEASE = {
    "id": "c6983512-7d4d-4501-b50b-ba53656c76a6",
    "name": "climate",
    "status": "ACTIVE",
    "start_date": "2026-12-01T12:23:00.000000",
    "end_date": "2026-12-01T12:38:00.000000",
    "degraded": False,
    "reservations": [
        {"id": OWN, "resource_type": "hpc:flavor:instance", "status": "active", "amount": 2}
    ],
}
LATER = {**LEASE, "name": "later", "reservations": [{"id": "another"}]}


class Answering(requests.Session):
    """HTTP without a network: the text of one answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__()
        self._status, self._text, self.urls = status, text, []

    def request(self, method, url, **options):
        self.urls.append(f"{method} {url}")
        answer = requests.Response()
        answer.status_code, answer._content, answer.url = self._status, self._text.encode(), url
        answer.headers["Content-Type"] = "application/json"
        return answer


@attrs.frozen
class Compute:
    session: session.Session
    http: Answering
    region_name: str = "R"


def ask(status: int, text: str) -> Compute:
    http = Answering(status, text)
    plugin = noauth.NoAuth(endpoint="http://blazar/v1")
    return Compute(session.Session(auth=plugin, session=http), http)


def a_cloud():
    flavor = flavor_of(2, "switch")
    leased = {**flavor.extra_specs, blazar_leases.RESERVATION: OWN}
    servers = [
        Server("s", "s-name", "a", "a", OWN, leased),
        Server("t", "t-name", "a", "a", flavor.name, flavor.extra_specs),
    ]
    node = clouds.node("a", [["s", "s"], ["t", "t"]])
    cloud = clouds.cloud(node, flavors=[flavor], servers=servers)
    return attrs.evolve(cloud, taken="2026-12-01T12:30:00+00:00")


def test_servers_end_with_their_lease():
    compute = ask(200, json.dumps({"leases": [LATER, LEASE]}))
    times = end_times.read_end_times(blazar_leases.add_leases(a_cloud(), compute))

    assert [(end.server.uuid, end.time.isoformat(), end.source) for end in times.ends] == [
        ("s", "2026-12-01T12:38:00+00:00", "lease climate")
    ]
    assert times.problems == ()
    assert compute.http.urls == ["GET http://blazar/v1/leases"]


@pytest.mark.parametrize(("status", "text"), [(503, "{}"), (200, "<html>"), (200, "{}")])
def test_blazar_that_does_not_answer_is_named(status, text):
    with pytest.raises(NovaApiError, match="the leases of Blazar cannot be read"):
        blazar_leases.add_leases(a_cloud(), ask(status, text))
