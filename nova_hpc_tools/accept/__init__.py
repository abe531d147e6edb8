# SPDX-License-Identifier: Apache-2.0
"""Measures beside its host whether a server is as fast as expected."""
