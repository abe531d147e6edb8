# SPDX-License-Identifier: Apache-2.0
"""Tempest, a real client: its tests of servers with HPC flavors; computes, client, results."""
