# SPDX-License-Identifier: Apache-2.0
"""Tests of what developers run: sets of tests, the picture of the architecture."""
