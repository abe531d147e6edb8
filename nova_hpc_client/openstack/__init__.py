# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc``: virtual clusters as commands of the OpenStack client.

It uses only the public APIs of OpenStack services, with the rights of its user.
"""
