# SPDX-License-Identifier: Apache-2.0
"""A node's devices shown, saved and compared."""
