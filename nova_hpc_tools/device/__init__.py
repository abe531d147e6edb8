# SPDX-License-Identifier: Apache-2.0
"""One node's devices and their health states, on this node and in a cloud."""
