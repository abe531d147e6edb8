# SPDX-License-Identifier: Apache-2.0
"""The driver's branch of Neutron's database: ``neutron-db-manage --subproject nova-hpc``."""
