# SPDX-License-Identifier: Apache-2.0
"""The root of the branch: no table yet.

Revision ID: start_hpc_partitions
Revises: None
"""

revision = "start_hpc_partitions"
down_revision = None


def upgrade() -> None:
    """Do nothing: both branches begin at this revision."""
