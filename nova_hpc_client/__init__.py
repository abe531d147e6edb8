# SPDX-License-Identifier: Apache-2.0
"""The ``openstack hpc`` plug-in: clusters, their acceptance, and GPU shares. It needs no Nova."""
