# SPDX-License-Identifier: Apache-2.0
"""Random histories of two nodes in Nova's own stack: their world, what happens, what must hold."""
