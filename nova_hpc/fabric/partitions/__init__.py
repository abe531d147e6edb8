# SPDX-License-Identifier: Apache-2.0
"""InfiniBand partitions: the desired members of each, and their state at the subnet manager."""
