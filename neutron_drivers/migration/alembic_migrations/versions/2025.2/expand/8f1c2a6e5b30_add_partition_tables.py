# SPDX-License-Identifier: Apache-2.0
"""The tables of networks that are InfiniBand partitions.

Revision ID: 8f1c2a6e5b30
Revises: start_hpc_partitions
"""

import sqlalchemy as sa
from alembic import op
from neutron.db.migration import cli

revision = "8f1c2a6e5b30"
down_revision = "start_hpc_partitions"
branch_labels = (cli.EXPAND_BRANCH,)


def upgrade() -> None:
    """Create the four tables for members, GUIDs, P_Keys and tickets."""
    op.create_table(
        "hpc_partition_members",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column("fabric", sa.String(64), nullable=False),
        sa.Column("port_id", sa.String(36), nullable=False),
        sa.Column("network_id", sa.String(36), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pci_slot", sa.String(32), nullable=False),
        sa.Column("guid", sa.String(18), nullable=False),
        sa.Column("pkey", sa.Integer(), nullable=False),
        sa.Column("membership", sa.String(16), nullable=False),
        sa.Column("wanted", sa.Boolean(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
    )
    for columns in (["port_id"], ["network_id"]):
        op.create_index(f"ix_hpc_partition_members_{columns[0]}", "hpc_partition_members", columns)
    op.create_index("ix_hpc_partition_members_guid", "hpc_partition_members", ["fabric", "guid"])
    op.create_index("ix_hpc_partition_members_pkey", "hpc_partition_members", ["fabric", "pkey"])
    op.create_table(
        "hpc_partition_guids",
        sa.Column("fabric", sa.String(64), primary_key=True),
        sa.Column("guid", sa.String(18), primary_key=True),
        sa.Column("pkey", sa.Integer(), nullable=False),
        sa.Column("network_id", sa.String(36), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
    )
    op.create_table(
        "hpc_partition_keys",
        sa.Column("fabric", sa.String(64), primary_key=True),
        sa.Column("pkey", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("network_id", sa.String(36), nullable=False),
    )
    op.create_index("ix_hpc_partition_keys_network_id", "hpc_partition_keys", ["network_id"])
    op.create_table(
        "hpc_partition_tickets",
        sa.Column("fabric", sa.String(64), primary_key=True),
        sa.Column("ticket", sa.BigInteger(), nullable=False),
    )
