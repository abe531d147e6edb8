# SPDX-License-Identifier: Apache-2.0
"""What ``openstack hpc gpu`` asks of Neutron, by real Neutron on a real database.

Two projects; each sends what a member of it may send.
"""

import types

import pytest
import requests

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, Pace
from nova_hpc_client.gpu import cleaning, model, refusals
from nova_hpc_client.gpu.cloud import ProjectView
from nova_hpc_client.openstack.gpu_cloud import SdkShareCloud
from nova_hpc_client.openstack.rest import RestClient
from tests.fabric.neutron_stage import BLUE, RED, ROLES

SHARE = "0f4b3c2a-1111-4222-8333-444455556666"


def cloud_of(neutron, role, project):
    """The product's requests, sent to a process of Neutron as this role."""

    def request(path, method, params=None, headers=None, json=None, **_):
        url = f"http://127.0.0.1:{neutron.processes[0].port}/v2.0{path}"
        with requests.Session() as session:
            session.trust_env = False
            return session.request(
                method, url, params=params, json=json, headers={**ROLES[role], **headers}
            )

    network = types.SimpleNamespace(request=request, get_endpoint=lambda: "here")
    connection = types.SimpleNamespace(network=network, current_project_id=project)
    return SdkShareCloud(RestClient(connection))


@pytest.fixture
def red(neutron):
    cloud = cloud_of(neutron, "red", RED)
    # There is no Nova here: a look has no servers.
    cloud.look = lambda: ProjectView(
        (), {}, tuple(map(model.read_gpu_port, cloud.rest.ports())), groups_of(cloud)
    )
    yield cloud
    for port in cloud.rest.ports():
        cloud.rest.neutron("DELETE", f"/ports/{port['id']}")
    for group in groups_of(cloud):
        if group.share:
            cloud.delete_security_group(group.id)


def groups_of(cloud):
    answer = cloud.rest.neutron("GET", "/security-groups", project_id=cloud.project)
    return tuple(map(model.read_gpu_group, answer["security_groups"]))


def make_port(cloud):
    network = cloud.rest.neutron("POST", "/networks", {"network": {}})["network"]["id"]
    body = {"network_id": network, "cidr": "10.9.0.0/24", "ip_version": 4}
    cloud.rest.neutron("POST", "/subnets", {"subnet": body})
    made = cloud.rest.neutron("POST", "/ports", {"port": {"network_id": network}})["port"]
    return model.read_gpu_port(made)


def make_groups(cloud):
    own, clients = (
        cloud.make_security_group(model.group_name_of(SHARE, clients), "a share")
        for clients in (False, True)
    )
    for body in refusals.rule_bodies_of(own, clients):
        cloud.make_rule(body)
    return own, clients


def test_the_filter_of_a_share(red, neutron):
    own, clients = make_groups(red)
    # The same once more: a killed command goes on.
    for body in refusals.rule_bodies_of(own, clients):
        red.make_rule(body)
    port = make_port(red)
    assert port.filtered
    assert port.addresses.keys() == set(red.subnets())
    (default,) = [group for group in groups_of(red) if group.name == "default"]
    # Its members reach each other, so it is refused for a share.
    assert refusals.opens_slots(default, clients)
    assert port.groups == (default.id,)
    share = model.SharedGpu(
        SHARE, groups=tuple(g for g in groups_of(red) if g.share), ports=(port,)
    )
    assert not model.is_closed(share)
    cleaning.change_port_groups(red, port.id, Pace(), frozenset({own}), frozenset(port.groups))
    (closed,) = red.look().ports
    assert closed.groups == (own,)
    groups = tuple(group for group in groups_of(red) if group.share)
    assert model.is_closed(model.SharedGpu(SHARE, groups=groups, ports=(closed,)))
    assert not refusals.opens_slots(next(g for g in groups if not g.is_clients), clients)
    # What others changed meanwhile is not overwritten.
    assert not red.set_port_groups(port, [])
    assert red.set_port_groups(closed, [own, clients])


def test_a_port_without_a_filter(red):
    port = make_port(red)
    body = {"port": {"security_groups": [], "port_security_enabled": False}}
    red.rest.neutron("PUT", f"/ports/{port.id}", body)
    assert not model.read_gpu_port(red.rest.ports()[0]).filtered


def test_groups_go_when_nobody_is_in_them(red):
    own, clients = make_groups(red)
    port = make_port(red)
    cleaning.change_port_groups(red, port.id, Pace(), frozenset({clients}))
    with pytest.raises(ClusterCloudError, match="in use"):
        red.delete_security_group(clients)
    groups = tuple(group for group in groups_of(red) if group.share)
    cleaning.end_share_remains(red, red.look(), model.SharedGpu(SHARE, groups=groups), Pace())
    assert not [group for group in groups_of(red) if group.share]
    # Gone already is no error.
    red.delete_security_group(own)


def test_another_project_sees_and_opens_nothing(red, neutron):
    own, clients = make_groups(red)
    port = make_port(red)
    blue = cloud_of(neutron, "blue", BLUE)
    assert not [group for group in groups_of(blue) if group.share]
    assert blue.rest.ports() == []
    rule = refusals.rule_bodies_of(own, clients)[0] | {"remote_group_id": None}
    for ask in (
        lambda: blue.make_rule(rule),
        lambda: blue.rest.neutron("PUT", f"/ports/{port.id}", {"port": {"name": "x"}}),
        lambda: blue.rest.neutron("DELETE", f"/security-groups/{own}"),
    ):
        with pytest.raises(ClusterCloudError):
            ask()
    # Its own port cannot be put into the clients' group.
    strange = make_port(blue)
    with pytest.raises(ClusterCloudError):
        blue.set_port_groups(strange, [clients])
    blue.rest.neutron("DELETE", f"/ports/{strange.id}")
