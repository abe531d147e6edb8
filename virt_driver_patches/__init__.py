# SPDX-License-Identifier: Apache-2.0
"""What nova-compute loads: the libvirt driver subclass."""
