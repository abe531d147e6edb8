# SPDX-License-Identifier: Apache-2.0
"""nova-hpc: virtual HPC clusters on OpenStack Nova.

The core. It imports no Nova: the two plug-in packages (``scheduler_filters``
and ``virt_driver_patches``) translate between Nova's objects and the types
defined here.
"""
