# SPDX-License-Identifier: Apache-2.0
"""Devices between two servers: marked before, cleaned and checked after."""
