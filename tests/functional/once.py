# SPDX-License-Identifier: Apache-2.0
"""Do once a process what Nova's fixtures and Placement do again for every test.

A test has databases of its own, hence SQLAlchemy engines of its own, each of which compiles
every statement anew; and a request's JSON schema is checked against the schema of schemas
each time. Both come to the same in all tests, and cost a sixth of their time. So do the
routes of Nova's API, which each test makes twice, and what Python's garbage collector
looks at again and again: together another eighth.
"""

from __future__ import annotations

import gc
from typing import Any, Final

import jsonschema
from nova import rpc
from nova.api.openstack.compute import routes
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.util import LRUCache

#: As many statements as all tests have together, several times over.
_STATEMENTS: Final[Any] = LRUCache(20_000)


def compile_statements() -> None:
    """Let all SQLite engines of the process have one cache of compiled statements.

    A statement is found by its dialect, too: those of two engines count as equal.
    """

    def share(connection: Connection) -> None:
        if type(connection.dialect) is SQLiteDialect_pysqlite:
            connection.engine._compiled_cache = _STATEMENTS

    event.listen(Engine, "engine_connect", share)
    dialect: Any = SQLiteDialect_pysqlite
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))


def check_schemas() -> None:
    """Check each JSON schema once."""
    # The schema is kept, so that no other gets its id.
    known: dict[tuple[type, int], Any] = {}

    def once(validator: Any) -> classmethod[Any, Any, None]:
        check = validator.check_schema

        def check_schema(cls: type, schema: Any, *args: Any, **keywords: Any) -> None:
            if (cls, id(schema)) not in known:
                check(schema, *args, **keywords)
                known[cls, id(schema)] = schema

        return classmethod(check_schema)

    for validator in (jsonschema.Draft4Validator, jsonschema.Draft202012Validator):
        validator.check_schema = once(validator)


def share_routes() -> None:
    """Let both versions of the API of one test (/v2 and /v2.1) have the same routes.

    Each has a controller, and these have clients of the test's message bus.
    """
    make = routes.APIRouterV21.factory.__func__
    last: list[Any] = [None, None]

    def factory(cls: type, global_config: Any, **local_config: Any) -> Any:
        if rpc.TRANSPORT is None:
            return make(cls, global_config, **local_config)
        if last[0] is not rpc.TRANSPORT:
            last[:] = rpc.TRANSPORT, make(cls, global_config, **local_config)
        return last[1]

    routes.APIRouterV21.factory = classmethod(factory)


def keep_modules() -> None:
    """Leave what is imported to the end: modules are no garbage, and they are a million objects.

    To be called when all tests have been collected. What tests leave behind is found
    later than Python would find it by itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
