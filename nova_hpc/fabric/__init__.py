# SPDX-License-Identifier: Apache-2.0
"""The fabric outside the node: the distance between hosts, and the copy of it in Nova."""
