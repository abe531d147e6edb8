# SPDX-License-Identifier: Apache-2.0
"""Scripts that alembic runs; the versions are in folders named after releases of Neutron."""
