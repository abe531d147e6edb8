# SPDX-License-Identifier: Apache-2.0
"""Readers of fabric descriptions by other programs.

A reader takes a text and never raises an exception for an error in a part of it. That part is
unknown in the map, and a problem contains the reason and the line. :exc:`FabricMapError` is for a
text that is not a map at all.
"""
