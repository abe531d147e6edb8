# SPDX-License-Identifier: Apache-2.0
"""Ports that were deleted while they were bound, with the functions of their servers.

Revision ID: 5e83d1b7f09a
Revises: c47a90e2d615
"""

import sqlalchemy as sa
from alembic import op

revision = "5e83d1b7f09a"
down_revision = "c47a90e2d615"

_TABLE = "hpc_partition_former_holders"


def upgrade() -> None:
    """Create the table of ports that were deleted while bound."""
    op.create_table(
        _TABLE,
        sa.Column("port_id", sa.String(36), primary_key=True),
        sa.Column("fabric", sa.String(64), nullable=False),
        sa.Column("guid", sa.String(18), nullable=False),
        sa.Column("server_id", sa.String(36), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pci_slot", sa.String(32), nullable=False),
    )
    op.create_index(f"ix_{_TABLE}_guid", _TABLE, ["fabric", "guid"])
    op.create_index(f"ix_{_TABLE}_place", _TABLE, ["host", "pci_slot"])
