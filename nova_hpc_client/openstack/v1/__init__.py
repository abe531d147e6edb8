# SPDX-License-Identifier: Apache-2.0
"""Version 1 of the commands below ``openstack hpc``."""
