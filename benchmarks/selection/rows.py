# SPDX-License-Identifier: Apache-2.0
"""Many hosts in the databases of Nova and Placement, copied from one that registered itself.

A compute node takes seconds to register, so thousands are inserted as rows. The rows are
copied from a host that registered through the API, and get names, UUIDs and keys of their own.
:func:`check` compares them with the rows of other hosts that registered themselves.
"""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from pymysql import cursors

from benchmarks.concurrency.stage import Stage

Row = dict[str, Any]

#: The most rows in one statement, and the most hosts in one batch.
_CHUNK: Final = 500
#: Columns that differ between two hosts that were registered one after the other.
_OWN: Final = frozenset({"id", "created_at", "updated_at", "last_seen_up", "report_count"})


@attrs.frozen
class Template:
    """All rows of one host; ``resource_providers`` with the host's own first."""

    name: str
    #: (database, table) -> rows.
    rows: Mapping[tuple[str, str], Sequence[Row]]

    @property
    def providers(self) -> Sequence[Row]:
        """The host's tree, its own provider first."""
        return self.rows["placement", "resource_providers"]


#: Tables in an order in which they can be filled.
_PROVIDERS: Final = ("placement", "resource_providers")
_INVENTORIES: Final = ("placement", "inventories")
_TRAITS: Final = ("placement", "resource_provider_traits")
_SERVICES: Final = ("nova", "services")
_COMPUTES: Final = ("nova", "compute_nodes")
_MAPPINGS: Final = ("nova_api", "host_mappings")
_CONSUMERS: Final = ("placement", "consumers")
_ALLOCATIONS: Final = ("placement", "allocations")
_NUMBERED: Final = (_PROVIDERS, _INVENTORIES, _SERVICES, _COMPUTES, _MAPPINGS, _ALLOCATIONS)


class Databases:
    """The stage's databases, as rows."""

    def __init__(self, made: Stage) -> None:
        self._made = made

    def read(self, database: str, query: str, *arguments: Any) -> list[Row]:
        """The rows of a query, as dictionaries."""
        with (
            contextlib.closing(self._made.connect(database)) as connection,
            connection.cursor(cursors.DictCursor) as cursor,
        ):
            cursor.execute(query, arguments)
            return list(cursor.fetchall())

    def write(self, table: tuple[str, str], rows: Sequence[Row]) -> None:
        """Insert rows, which have the same columns."""
        database, name = table
        if not rows:
            return
        columns = ", ".join(f"`{column}`" for column in rows[0])
        marks = ", ".join(["%s"] * len(rows[0]))
        with (
            contextlib.closing(self._made.connect(database)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET foreign_key_checks = 0")
            for begin in range(0, len(rows), _CHUNK):
                cursor.executemany(
                    f"INSERT INTO {name} ({columns}) VALUES ({marks})",
                    [tuple(row.values()) for row in rows[begin : begin + _CHUNK]],
                )

    def analyse(self) -> None:
        """Let MariaDB update its statistics, so that its plans fit the filled tables."""
        for database, table in (*_NUMBERED, _TRAITS, _CONSUMERS):
            self.read(database, f"ANALYZE TABLE {table}")

    def highest(self, table: tuple[str, str]) -> int:
        """The largest key of a table."""
        (row,) = self.read(table[0], f"SELECT COALESCE(MAX(id), 0) AS most FROM {table[1]}")
        return int(row["most"])

    def template(self, host: str) -> Template:
        """All rows of a host that registered itself."""
        tree = self.read(
            "placement",
            "SELECT * FROM resource_providers WHERE root_provider_id ="
            " (SELECT id FROM resource_providers WHERE name = %s) ORDER BY id",
            host,
        )
        among = ", ".join(str(row["id"]) for row in tree)
        where = f"WHERE resource_provider_id IN ({among})"
        return Template(
            host,
            {
                _PROVIDERS: tree,
                _INVENTORIES: self.read(
                    "placement", f"SELECT * FROM inventories {where} ORDER BY id"
                ),
                _TRAITS: self.read(
                    "placement", f"SELECT * FROM resource_provider_traits {where} ORDER BY trait_id"
                ),
                _SERVICES: self.read("nova", "SELECT * FROM services WHERE host = %s", host),
                _COMPUTES: self.read("nova", "SELECT * FROM compute_nodes WHERE host = %s", host),
                _MAPPINGS: self.read(
                    "nova_api", "SELECT * FROM host_mappings WHERE host = %s", host
                ),
            },
        )


@attrs.define
class Copies:
    """Makes hosts from a template, with unused keys."""

    template: Template
    next_id: dict[tuple[str, str], int]
    rng: random.Random

    def rows(self, host: str, root: str | None = None) -> dict[tuple[str, str], list[Row]]:
        """The rows of one more host.

        :param root: the UUID of its compute node; None for a random one.
        """
        uuids = {row["uuid"]: self._uuid() for row in self.template.providers}
        if root is not None:
            uuids[self.template.providers[0]["uuid"]] = root
        ids = {row["id"]: self._id(_PROVIDERS) for row in self.template.providers}
        service = self._id(_SERVICES)
        old = self.template.name

        def named(text: Any) -> Any:
            return text.replace(old, host) if isinstance(text, str) else text

        def other(row: Row, **changed: Any) -> Row:
            return {**row, **changed}

        rows = self.template.rows
        return {
            _PROVIDERS: [
                other(
                    row,
                    id=ids[row["id"]],
                    uuid=uuids[row["uuid"]],
                    name=named(row["name"]),
                    root_provider_id=ids[row["root_provider_id"]],
                    parent_provider_id=ids.get(row["parent_provider_id"]),
                )
                for row in rows[_PROVIDERS]
            ],
            _INVENTORIES: [
                other(
                    row,
                    id=self._id(_INVENTORIES),
                    resource_provider_id=ids[row["resource_provider_id"]],
                )
                for row in rows[_INVENTORIES]
            ],
            _TRAITS: [
                other(row, resource_provider_id=ids[row["resource_provider_id"]])
                for row in rows[_TRAITS]
            ],
            _SERVICES: [
                other(row, id=service, uuid=self._uuid(), host=host) for row in rows[_SERVICES]
            ],
            _COMPUTES: [
                other(
                    row,
                    id=self._id(_COMPUTES),
                    uuid=uuids[row["uuid"]],
                    service_id=service if row["service_id"] is not None else None,
                    host=host,
                    hypervisor_hostname=named(row["hypervisor_hostname"]),
                    pci_stats=replaced(row["pci_stats"], uuids),
                )
                for row in rows[_COMPUTES]
            ],
            _MAPPINGS: [other(row, id=self._id(_MAPPINGS), host=host) for row in rows[_MAPPINGS]],
        }

    def _id(self, table: tuple[str, str]) -> int:
        self.next_id[table] += 1
        return self.next_id[table]

    def _uuid(self) -> str:
        return random_uuid(self.rng)


def random_uuid(rng: random.Random) -> str:
    """A UUID, the same for the same state of *rng*."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def replaced(text: str, uuids: Mapping[str, str]) -> str:
    """A text with other UUIDs."""
    for old, new in uuids.items():
        text = text.replace(old, new)
    return text


def copies(databases: Databases, template: Template, seed: int) -> Copies:
    """A maker of hosts from a template."""
    highest = {table: databases.highest(table) for table in _NUMBERED}
    return Copies(template, highest, random.Random(seed))


def check(databases: Databases, template: Template, others: Sequence[str]) -> None:
    """Compare made rows with those of hosts that registered themselves.

    :raises AssertionError: a made row differs from the API's.
    """
    maker = Copies(template, dict.fromkeys(_NUMBERED, 0), random.Random(0))
    for name in others:
        real, made = databases.template(name), Template(name, maker.rows(name))
        assert _normal(real) == _normal(made), name


def _normal(one: Template) -> dict[tuple[str, str], list[Row]]:
    """Rows without the values of only one host: keys become positions, times are removed."""
    places = {row["id"]: index for index, row in enumerate(one.providers)}
    uuids = {row["uuid"]: f"uuid {index}" for index, row in enumerate(one.providers)}
    found: dict[tuple[str, str], list[Row]] = {}
    for table, rows in one.rows.items():
        found[table] = []
        for row in rows:
            plain = {key: value for key, value in row.items() if key not in _OWN}
            for key in ("resource_provider_id", "root_provider_id", "parent_provider_id"):
                if plain.get(key) is not None:
                    plain[key] = places[plain[key]]
            if "uuid" in plain:
                plain["uuid"] = uuids.get(plain["uuid"], "its own")
            if "service_id" in plain:
                plain["service_id"] = plain["service_id"] is not None
            if plain.get("pci_stats"):
                plain["pci_stats"] = _sorted_pools(replaced(plain["pci_stats"], uuids))
            found[table].append(plain)
        found[table].sort(key=repr)
    return found


def _sorted_pools(text: str) -> list[str]:
    """The pools in a fixed order, because Nova saves them in the order of a set."""
    return sorted(json.dumps(pool, sort_keys=True) for pool in _pools(json.loads(text)))


def _pools(saved: Any) -> list[Any]:
    found: list[Any] = saved["nova_object.data"]["objects"]
    return found


def fill(databases: Databases, maker: Copies, names: Sequence[str]) -> Iterator[int]:
    """Insert hosts; some of each host's devices are in use, as in a real cloud.

    :returns: the number of inserted hosts, from time to time.
    """
    owner = _owner(databases)
    for begin in range(0, len(names), _CHUNK):
        some = names[begin : begin + _CHUNK]
        tables: dict[tuple[str, str], list[Row]] = {}
        for name in some:
            host = maker.rows(name)
            used = _use(maker, host, owner)
            for table, rows in {**host, **used}.items():
                tables.setdefault(table, []).extend(rows)
        for table, rows in tables.items():
            databases.write(table, rows)
        yield begin + len(some)


def _owner(databases: Databases) -> Row:
    """Make a project and a user in Placement, who own the servers."""
    for table in ("projects", "users"):
        databases.write(("placement", table), [{"external_id": f"benchmark {table}"}])
    (project,) = databases.read("placement", "SELECT MAX(id) AS id FROM projects")
    (user,) = databases.read("placement", "SELECT MAX(id) AS id FROM users")
    return {"project_id": project["id"], "user_id": user["id"]}


def _use(
    maker: Copies, host: Mapping[tuple[str, str], Sequence[Row]], owner: Row
) -> dict[tuple[str, str], list[Row]]:
    """Add servers to a host's rows, each with one of its GPUs, and change the pools to match."""
    rng = maker.rng
    (compute,) = host[_COMPUTES]
    saved = json.loads(compute["pci_stats"])
    pools = [each["nova_object.data"] for each in _pools(saved)]
    whole = [each for each in pools if each["tags"].get("dev_type") == "type-PCI"]
    chosen = rng.sample(whole, min(len(whole), rng.choice((0, 0, 1, 2, 3, 4))))
    ids = {row["uuid"]: row["id"] for row in host[_PROVIDERS]}
    classes = {row["resource_provider_id"]: row["resource_class_id"] for row in host[_INVENTORIES]}
    consumers, allocations = [], []
    for pool in chosen:
        pool["count"] = 0
        provider, server = ids[pool["tags"]["rp_uuid"]], maker._uuid()
        consumers.append({"uuid": server, "generation": 1, "consumer_type_id": None, **owner})
        allocations.append(
            {
                "id": maker._id(_ALLOCATIONS),
                "resource_provider_id": provider,
                "consumer_id": server,
                "resource_class_id": classes[provider],
                "used": 1,
            }
        )
    compute["pci_stats"] = json.dumps(saved)
    return {_CONSUMERS: consumers, _ALLOCATIONS: allocations}
