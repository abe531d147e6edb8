# SPDX-License-Identifier: Apache-2.0
"""The program inside a service VM: the standard library of Python alone."""
