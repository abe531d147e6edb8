# SPDX-License-Identifier: Apache-2.0
"""Output of commands: their streams, and text and names that they print."""
