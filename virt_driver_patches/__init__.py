# SPDX-License-Identifier: Apache-2.0
"""The package that nova-compute loads: a subclass of Nova's libvirt driver, and its patches."""
