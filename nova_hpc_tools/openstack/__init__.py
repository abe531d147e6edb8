# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc``: virtual clusters as commands of the OpenStack client.

It speaks to Nova, Neutron and Keystone alone, with the rights of its user.
"""
