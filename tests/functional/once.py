# SPDX-License-Identifier: Apache-2.0
"""Do once a process what Nova's fixtures and Placement do again for every test.

A test has databases of its own, hence SQLAlchemy engines of its own, each of which compiles
every statement anew; and a request's JSON schema is checked against the schema of schemas
each time. Both come to the same in all tests, and cost a sixth of their time.
"""

from __future__ import annotations

from typing import Any, Final

import jsonschema
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
