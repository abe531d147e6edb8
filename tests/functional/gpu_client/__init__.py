# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc gpu`` against Nova's own API in this process."""
