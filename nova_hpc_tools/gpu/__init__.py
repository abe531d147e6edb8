# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU inside a project: what Nova and Neutron say of them, and how they change."""
