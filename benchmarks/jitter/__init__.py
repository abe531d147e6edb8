# SPDX-License-Identifier: Apache-2.0
"""How late a timer wakes on a CPU, before and after the host's work has left it."""
