# SPDX-License-Identifier: Apache-2.0
"""Segments: memory that only the servers of one group on one host can reach and share."""
