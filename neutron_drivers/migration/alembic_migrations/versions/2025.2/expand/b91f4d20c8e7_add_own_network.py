# SPDX-License-Identifier: Apache-2.0
"""The network of a deleted port that is of the port's own project.

Revision ID: b91f4d20c8e7
Revises: 5e83d1b7f09a
"""

import sqlalchemy as sa
from alembic import op

revision = "b91f4d20c8e7"
down_revision = "5e83d1b7f09a"


def upgrade() -> None:
    """Add the column ``own_network`` to the former holders of GUIDs.

    Rows of earlier releases have none, and keep the ports of all networks off.
    """
    column = sa.Column("own_network", sa.String(36), nullable=True)
    op.add_column("hpc_partition_former_holders", column)
