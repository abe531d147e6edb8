# SPDX-License-Identifier: Apache-2.0
"""What placement policies do to a cloud over time; arrays, no I/O, no Nova."""
