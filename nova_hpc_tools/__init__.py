# SPDX-License-Identifier: Apache-2.0
"""The commands that people type: ``nova-hpc`` and the ``openstack hpc`` plug-in."""
