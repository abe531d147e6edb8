# SPDX-License-Identifier: Apache-2.0
"""Pictures of a node, a rack and a cloud: one page or one drawing, without external files."""
