# SPDX-License-Identifier: Apache-2.0
"""Measures from outside whether a cluster, or a server beside its host, is as fast as expected."""
