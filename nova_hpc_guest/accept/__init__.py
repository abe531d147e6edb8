# SPDX-License-Identifier: Apache-2.0
"""Checks whether this machine is as fast as it should be, and names causes if it is not.

Tools of the distribution measure; this package starts them, compares, and names causes. It runs in
guests: it needs only Python 3.8 or newer with its standard library. It needs no root, no network
and no writable directory unless a probe needs one.
"""
