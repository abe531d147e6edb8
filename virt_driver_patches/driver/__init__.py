# SPDX-License-Identifier: Apache-2.0
"""The libvirt driver of HPC nodes, and its actions around a server."""
