# SPDX-License-Identifier: Apache-2.0
"""nova-hpc: lets ``[DEFAULT]compute_driver = hpc.HpcLibvirtDriver`` load.

Nova looks drivers up below ``nova.virt``, which is no namespace package; this
file is all that nova-hpc places there. ``nova-hpc install-shim`` manages it.
"""

from virt_driver_patches.driver.hpc_libvirt import HpcLibvirtDriver

__all__ = ["HpcLibvirtDriver"]
