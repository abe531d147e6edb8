# SPDX-License-Identifier: Apache-2.0
"""The program inside a service VM: it uses only the standard library of Python."""
