# SPDX-License-Identifier: Apache-2.0
"""The part that nova-compute loads: the libvirt driver subclass."""
