# SPDX-License-Identifier: Apache-2.0
"""Two processes of Neutron on one database at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from tests.fabric.test_mechanism_networks import made
from tests.fabric.test_mechanism_ports import GUID, members, rows


def owners(neutron):
    """Networks that have a GUID, by the table that makes it one, and by the members."""
    table = neutron.rows("SELECT fabric, guid, network_id FROM hpc_partition_guids")
    query = "SELECT DISTINCT fabric, guid, network_id FROM hpc_partition_members"
    return sorted(table), sorted(neutron.rows(query))


def test_six_networks_that_want_one_port_at_once(neutron):
    ports = [
        made(neutron.port(made(neutron.network(0x200 + number))["id"]))["id"] for number in range(6)
    ]

    def bind(number):
        return neutron.bind(ports[number], api=number % 2)[0]

    with neutron.agent(), ThreadPoolExecutor(6) as pool:
        found = list(pool.map(bind, range(6)))
    assert sorted(found) == [200, 409, 409, 409, 409, 409]
    winner = ports[found.index(200)]
    assert members(neutron) == [(winner, GUID, 0x200 + found.index(200), True, "ACTIVE")]
    table, of_members = owners(neutron)
    assert table == of_members
    # Whoever came second is not bound, and can be once the first one has left.
    loser = ports[found.index(409)]
    assert neutron.get_port(loser)["binding:vif_type"] == "unbound"
    with neutron.agent():
        neutron.unbind(winner)
        assert neutron.bind(loser)[1]["port"]["status"] == "ACTIVE"


def test_ports_of_one_network_want_one_port_at_once(neutron):
    network = made(neutron.network(0x210))["id"]
    ports = [made(neutron.port(network))["id"] for _ in range(4)]
    with neutron.agent(), ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda number: neutron.bind(ports[number], api=number % 2)[0], range(4))
        )
    assert found == [200] * 4
    assert len(members(neutron)) == 4
    table, of_members = owners(neutron)
    assert table == of_members
    assert len(table) == 1


def test_networks_take_turns_at_one_port(neutron):
    """Bind and unbind at once, while reports on former members come in from the other side."""
    ports = [
        made(neutron.port(made(neutron.network(0x220 + number))["id"]))["id"] for number in range(2)
    ]

    def take_turns(number):
        answers = []
        for _ in range(5):
            answers.append(neutron.bind(ports[number], api=number)[0])
            answers.append(neutron.unbind(ports[number], api=number)[0])
        return answers

    with neutron.agent(), ThreadPoolExecutor(2) as pool:
        found = [one for turns in pool.map(take_turns, range(2)) for one in turns]
    assert set(found) <= {200, 409}
    assert 200 in found
    neutron.agent_round()
    # Nothing is left behind, and nothing was lost under way.
    assert rows(neutron) == []
    assert owners(neutron) == ([], [])


def test_a_later_ticket_has_seen_more(neutron):
    """Rows come one after the other; who has the later ticket sees all that the earlier one saw."""
    statement = (
        "INSERT INTO hpc_partition_members (fabric, port_id, network_id, host, pci_slot, guid, "
        "pkey, membership, wanted, since) VALUES ('main', 'p', 'n', 'cn0', '', %s, 5, 'full', 1, "
        "NOW())"
    )
    seen, ended = {}, threading.Event()

    def read(api):
        while not ended.is_set():
            document = neutron.desired(api=api)
            assert document["ticket"] not in seen
            seen[document["ticket"]] = len(document["members"])

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, api) for api in (0, 1)]
        connection = neutron.connect()
        for number in range(1, 200):
            with connection.cursor() as cursor:
                cursor.execute(statement, (f"0x{number:016x}",))
        ended.set()
        for one in readers:
            one.result()
        connection.close()
    neutron.rows("DELETE FROM hpc_partition_members")
    counts = [seen[ticket] for ticket in sorted(seen)]
    assert len(counts) > 5
    assert counts == sorted(counts)
