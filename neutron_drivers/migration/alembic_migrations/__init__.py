# SPDX-License-Identifier: Apache-2.0
"""What alembic runs; the versions lie in folders named after releases of Neutron."""
