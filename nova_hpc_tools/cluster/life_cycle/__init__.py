# SPDX-License-Identifier: Apache-2.0
"""From the wish for a cluster to its members, and back to nothing."""
