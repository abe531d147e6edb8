# SPDX-License-Identifier: Apache-2.0
"""Findings of faults on a node or in a cloud, each with its cure."""
