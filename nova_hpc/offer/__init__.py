# SPDX-License-Identifier: Apache-2.0
"""From the inventory of a node to what Nova is told to offer."""
