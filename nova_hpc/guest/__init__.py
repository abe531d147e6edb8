# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-hpc-guest``: what the cloud promised, and what is there.

It runs in guests: Python's standard library only, Python 3.8 or newer, and
nothing of the rest of the project. :mod:`nova_hpc.guest.build` packs it into a
single file.
"""
