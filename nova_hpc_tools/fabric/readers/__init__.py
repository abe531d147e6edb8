# SPDX-License-Identifier: Apache-2.0
"""Readers of what others know of the fabric.

A reader takes a text and never raises for what is wrong in a part of it: the part is
unknown in the map, and the problem says why, with its line. :exc:`FabricMapError` is for
a text that is no map at all.
"""
