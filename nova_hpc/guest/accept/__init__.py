# SPDX-License-Identifier: Apache-2.0
"""Is this machine as fast as it should be, and if not, by which cause?

Tools of the distribution measure; what is here starts them, compares, and names causes. It
runs in guests: Python's standard library only, Python 3.8 or newer, without root, network or
a directory to write in where a probe does not need one.
"""
