# SPDX-License-Identifier: Apache-2.0
"""Partitions of a node's NVLink fabric, and the servers that have them."""
