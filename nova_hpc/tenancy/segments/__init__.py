# SPDX-License-Identifier: Apache-2.0
"""Segments: memory that servers of one group on one host share, and nobody else can reach."""
