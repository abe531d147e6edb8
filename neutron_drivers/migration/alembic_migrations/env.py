# SPDX-License-Identifier: Apache-2.0
"""Alembic's access to Neutron's database for this branch; run by ``neutron-db-manage``.

The branch has a version table of its own, so it does not conflict with Neutron's or another
project's.
"""

from __future__ import annotations

from typing import Any, Final

from alembic import context
from neutron.db.migration.connection import DBConnection
from neutron_lib.db import model_base

from neutron_drivers import member_rows

VERSION_TABLE: Final = "hpc_alembic_version"
_TABLES: Final = frozenset(
    row.__tablename__
    for row in (
        member_rows.PartitionMemberRow,
        member_rows.PartitionHolderRow,
        member_rows.PartitionGuidRow,
        member_rows.PartitionKeyRow,
        member_rows.PartitionTicketRow,
    )
)


def _is_of_branch(_item: Any, name: str, kind: str, *_: Any) -> bool:
    return kind != "table" or name in _TABLES


def _run_migrations(**target: Any) -> None:
    context.configure(
        **target,
        version_table=VERSION_TABLE,
        target_metadata=model_base.BASEV2.metadata,
        include_object=_is_of_branch,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_branch() -> None:
    """Migrate the database, or print the SQL of the migration if alembic runs offline."""
    database = context.config.neutron_config.database
    if context.is_offline_mode():
        where = (
            {"url": database.connection}
            if database.connection
            else {"dialect_name": database.engine}
        )
        _run_migrations(**where)
        return
    given = context.config.attributes.get("connection")
    with DBConnection(database.connection, given) as connection:
        _run_migrations(connection=connection)


run_branch()
