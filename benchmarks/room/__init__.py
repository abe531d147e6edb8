# SPDX-License-Identifier: Apache-2.0
"""The planners of room: their answers against brute force, and their time in large clouds.

``python -m benchmarks.room trials FOLDER`` compares small random clouds, in pieces that can run on
another day. ``python -m benchmarks.room speed FOLDER`` times ``nova-hpc when``, and
``python -m benchmarks.room write FOLDER`` writes the table of both.
"""
