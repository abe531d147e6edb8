# SPDX-License-Identifier: Apache-2.0
"""The beginning of the contract branch, which neutron-db-manage asks for.

Revision ID: 3d7be0a914c2
Revises: start_hpc_partitions
"""

from neutron.db.migration import cli

revision = "3d7be0a914c2"
down_revision = "start_hpc_partitions"
branch_labels = (cli.CONTRACT_BRANCH,)


def upgrade() -> None:
    """Do nothing: this branch has no tables to remove yet."""
