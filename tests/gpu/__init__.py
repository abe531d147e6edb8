# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU with a real engine: PoCL-R, in network namespaces, without a GPU."""
