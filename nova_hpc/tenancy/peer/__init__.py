# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer below a switch: ports are set to the operator's choice, and read back."""
