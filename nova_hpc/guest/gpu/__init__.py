# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest gpu``: the two ends of a share of a GPU, inside the guests.

The standard library alone, and Python 3.8. A share is a GPU server that serves clients of its
project; the engine is an existing program, known by a file of data. What the user's commands
wrote lies in the servers' metadata, and everything read from there is of others.
"""
