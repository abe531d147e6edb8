# SPDX-License-Identifier: Apache-2.0
"""Code that services, operators' commands and the ``openstack hpc`` plug-in share.

It imports no other package of the project. Services do not load :mod:`nova_hpc_common.output`.
"""
