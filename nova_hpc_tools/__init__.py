# SPDX-License-Identifier: Apache-2.0
"""What people type: the ``nova-hpc`` command and the ``openstack hpc`` plug-in."""
