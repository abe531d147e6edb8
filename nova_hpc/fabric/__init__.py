# SPDX-License-Identifier: Apache-2.0
"""The fabric outside the node: who is near whom, and what Nova is told of it."""
