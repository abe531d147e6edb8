# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest gpu``: the two ends of a share of a GPU, inside the guests.

It needs only Python 3.8 with its standard library. A share is a GPU server that serves clients of
its project; the engine is an existing program, described by a file of data. The user's commands
write records into the servers' metadata, and others may change everything that is read there.
"""
