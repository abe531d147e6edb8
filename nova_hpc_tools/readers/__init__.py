# SPDX-License-Identifier: Apache-2.0
"""Whole clouds read from Nova's database and Placement, for the tools."""
