# SPDX-License-Identifier: Apache-2.0
"""What runs inside a service VM: the standard library of Python alone."""
