# SPDX-License-Identifier: Apache-2.0
"""Networks as InfiniBand partitions: a real Neutron, a real opensm, a simulated fabric."""
