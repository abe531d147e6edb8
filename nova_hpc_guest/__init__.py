# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-hpc-guest``: the cloud's promise, compared with this machine.

It runs in guests: it needs only Python 3.8 or newer with its standard library, and imports no
other part of the project. :mod:`nova_hpc_guest.build` packs it into a single file.
"""
