# SPDX-License-Identifier: Apache-2.0
"""Bound ports and the GUIDs that they have until they are unbound.

The table begins empty: ``neutron-rpc-server`` adds the ports that are bound already.

Revision ID: c47a90e2d615
Revises: 8f1c2a6e5b30
"""

import sqlalchemy as sa
from alembic import op

revision = "c47a90e2d615"
down_revision = "8f1c2a6e5b30"

_TABLE = "hpc_partition_holders"


def upgrade() -> None:
    """Create the table of bound ports and their GUIDs."""
    op.create_table(
        _TABLE,
        sa.Column("port_id", sa.String(36), primary_key=True),
        sa.Column("fabric", sa.String(64), nullable=False),
        sa.Column("guid", sa.String(18), nullable=False),
        sa.Column("physical_guid", sa.String(18), nullable=False),
        sa.Column("pkey", sa.Integer(), nullable=False),
        sa.Column("network_id", sa.String(36), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pci_slot", sa.String(32), nullable=False),
        sa.Column("membership", sa.String(16), nullable=False),
    )
    op.create_index(f"ix_{_TABLE}_network_id", _TABLE, ["network_id"])
    op.create_index(f"ix_{_TABLE}_guid", _TABLE, ["fabric", "guid"])
    op.create_index(f"ix_{_TABLE}_physical_guid", _TABLE, ["fabric", "physical_guid"])
