# SPDX-License-Identifier: Apache-2.0
"""A whole cloud as data: snapshots, explanations, simulations."""
