# SPDX-License-Identifier: Apache-2.0
"""InfiniBand partitions: who is to be in which, and what the subnet manager makes of it."""
