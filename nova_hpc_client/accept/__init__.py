# SPDX-License-Identifier: Apache-2.0
"""Measures whether all members of a cluster are as fast as expected."""
