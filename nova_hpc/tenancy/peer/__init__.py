# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer below a switch as the operator wishes it: set, and read back."""
