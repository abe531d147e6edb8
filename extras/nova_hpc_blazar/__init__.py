# SPDX-License-Identifier: Apache-2.0
"""Leases of whole clusters: a plug-in of Blazar."""
