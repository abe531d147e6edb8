# SPDX-License-Identifier: Apache-2.0
"""The ``nova-hpc`` command."""
