# SPDX-License-Identifier: Apache-2.0
"""When a request that does not fit will fit, and the moves that make room for it. Pure."""
