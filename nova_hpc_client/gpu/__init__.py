# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU inside a project: their records in Nova and Neutron, and their changes."""
