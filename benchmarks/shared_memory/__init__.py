# SPDX-License-Identifier: Apache-2.0
"""MPI between two virtual machines of one host: shared memory against the network."""
