# SPDX-License-Identifier: Apache-2.0
"""Which networks are partitions, in real Neutron on a real database."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fabric.neutron_stage import migrate


def reason(answer):
    status, document = answer
    return status, document["NeutronError"]["message"]


def made(answer):
    status, document = answer
    assert status == 201, document
    return next(iter(document.values()))


def keys(neutron):
    rows = neutron.rows("SELECT fabric, pkey, network_id FROM hpc_partition_keys")
    return {(fabric, pkey): network for fabric, pkey, network in rows}


def test_a_network_of_type_vlan_is_a_partition(neutron):
    network = made(neutron.network(0x101))
    assert keys(neutron) == {("main", 0x101): network["id"]}
    answer = neutron.processes[0].http(
        "nova", "PUT", f"/networks/{network['id']}", {"network": {"name": "a"}}
    )
    assert answer[0] == 200
    neutron.processes[0].http("nova", "DELETE", f"/networks/{network['id']}")
    assert keys(neutron) == {}


def test_a_project_gets_a_key_by_itself(neutron):
    status, document = neutron.processes[0].http("red", "POST", "/networks", {"network": {}})
    assert status == 201
    _, seen = neutron.processes[0].http("nova", "GET", f"/networks/{document['network']['id']}")
    found = seen["network"]
    assert list(keys(neutron)) == [("main", found["provider:segmentation_id"])]


def test_a_flat_network_is_refused(neutron):
    status, why = reason(neutron.network(None, **{"provider:network_type": "flat"}))
    assert status == 400
    assert "of type vlan" in why
    assert keys(neutron) == {}


@pytest.mark.parametrize("pkey", [0, 4095, 0x7FFF])
def test_what_is_no_key_is_neutrons_own_error(neutron, pkey):
    assert neutron.network(pkey)[0] == 400


def test_the_operators_reserved_keys_are_refused(neutron):
    status, why = reason(neutron.network(0x63))
    assert (status, why) == (400, "P_Key 0x0063 is reserved by the operator")


@pytest.mark.parametrize("age", [0, 4000])
@pytest.mark.parametrize("foreign", [0x222, "0x222", "0x8222"])
def test_keys_of_the_administrators_partitions_are_refused(neutron, foreign, age):
    neutron.heartbeat(age=age, foreign_pkeys=[foreign])
    status, why = reason(neutron.network(0x222))
    assert status == 400
    assert "the fabric's administrator" in why
    assert neutron.network(0x222, "ibother")[0] == 201


def test_one_key_on_two_physical_networks_of_a_fabric_is_refused(neutron):
    first = made(neutron.network(0x300))
    status, why = reason(neutron.network(0x300, "ibrail1"))
    assert status == 409
    assert why == (
        "P_Key 0x0300 is in use on another physical network of the same InfiniBand fabric"
    )
    assert first["id"] not in why
    assert neutron.network(0x300, "ibother")[0] == 201


def test_two_processes_give_one_key_once(neutron):
    def ask(number):
        pkey, side = divmod(number, 2)
        return neutron.network(0x310 + pkey, f"ibrail{side}", api=side)[0]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(ask, range(12)))
    for pair in zip(found[::2], found[1::2], strict=True):
        assert sorted(pair) == [201, 409]


def test_a_network_of_before_the_driver_has_its_key(neutron):
    first = made(neutron.network(0x330))
    neutron.rows("DELETE FROM hpc_partition_keys")
    assert neutron.network(0x330, "ibrail1")[0] == 409
    port = made(neutron.port(first["id"]))
    with neutron.agent():
        assert neutron.bind(port["id"])[1]["port"]["status"] == "ACTIVE"
    assert keys(neutron) == {("main", 0x330): first["id"]}


def test_a_key_with_members_is_not_given_out(neutron):
    network = made(neutron.network(0x340))
    port = made(neutron.port(network["id"]))
    with neutron.agent():
        neutron.bind(port["id"])
    assert neutron.processes[0].http("nova", "DELETE", f"/ports/{port['id']}")[0] == 204
    assert neutron.processes[0].http("nova", "DELETE", f"/networks/{network['id']}")[0] == 204
    for physical in ("ibrail0", "ibrail1"):
        status, why = reason(neutron.network(0x340, physical))
        assert status == 409
        assert "still has members of a deleted network" in why
    neutron.agent_round()
    assert keys(neutron) == {}
    assert neutron.network(0x340)[0] == 201


def test_a_changed_key_waits_for_the_last_member(neutron):
    network = made(neutron.network(0x350))
    port = made(neutron.port(network["id"]))

    def change(pkey):
        body = {"network": {"provider:segmentation_id": pkey}}
        return neutron.processes[1].http("nova", "PUT", f"/networks/{network['id']}", body)

    with neutron.agent():
        neutron.bind(port["id"])
    assert change(0x351)[0] == 400  # Neutron's own: a port is bound.
    neutron.unbind(port["id"])
    status, why = reason(change(0x351))
    assert status == 409
    assert "not rid of it yet" in why
    assert list(keys(neutron)) == [("main", 0x350)]
    neutron.agent_round()
    assert change(0x63)[0] == 400  # reserved
    assert change(0x351)[0] == 200
    assert list(keys(neutron)) == [("main", 0x351)]
    assert neutron.network(0x350, "ibrail1")[0] == 201


def test_a_network_has_one_segment(neutron):
    def segment(physical, pkey):
        return {
            "provider:network_type": "vlan",
            "provider:physical_network": physical,
            "provider:segmentation_id": pkey,
        }

    both = [segment("ibrail0", 0x360), segment("ibother", 0x361)]
    answer = neutron.processes[0].http("nova", "POST", "/networks", {"network": {"segments": both}})
    assert answer[0] == 400
    network = made(neutron.network(0x360))
    more = {
        "network_id": network["id"],
        "network_type": "vlan",
        "physical_network": "ibother",
        "segmentation_id": 0x362,
    }
    answer = neutron.processes[0].http("nova", "POST", "/segments", {"segment": more})
    assert answer[0] in (400, 409)
    assert "has one segment" in str(answer[1])
    assert list(keys(neutron)) == [("main", 0x360)]


def test_the_branch_of_the_database_is_the_models(neutron):
    assert "3d7be0a914c2" in migrate(neutron, "--subproject", "nova-hpc", "current")
    assert "b91f4d20c8e7" in migrate(neutron, "--subproject", "nova-hpc", "current")
    migrate(neutron, "--subproject", "nova-hpc", "upgrade", "head")
    assert "No offline migrations pending" in migrate(neutron, "has_offline_migrations")
    # alembic's own comparison of the tables with the models.
    script = (
        "import neutron, sys, sqlalchemy as sa\n"
        "from alembic import autogenerate, migration\n"
        "from neutron_lib.db import model_base\n"
        "from neutron_drivers import member_rows\n"
        "engine = sa.create_engine(sys.argv[1])\n"
        "ours = lambda item, name, kind, *_: kind != 'table' or name.startswith('hpc_partition')\n"
        "with engine.connect() as connection:\n"
        "    context = migration.MigrationContext.configure(\n"
        "        connection, opts={'include_object': ours, 'compare_type': True})\n"
        "    print(autogenerate.compare_metadata(context, model_base.BASEV2.metadata))\n"
    )
    url = f"mysql+pymysql://root@localhost/neutron?unix_socket={neutron.socket}"
    assert neutron.run_python(script, url).strip() == "[]"
