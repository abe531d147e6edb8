# SPDX-License-Identifier: Apache-2.0
"""nova-hpc: virtual HPC clusters on OpenStack Nova.

The core. In it only :mod:`nova_hpc.from_nova` imports Nova. It translates Nova's objects into
the types of the core for the two plug-in packages (``scheduler_filters`` and
``virt_driver_patches``).
"""
