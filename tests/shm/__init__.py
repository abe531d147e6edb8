# SPDX-License-Identifier: Apache-2.0
"""The library of shm/ with real MPI programs, on one machine: no servers, no Nova."""
