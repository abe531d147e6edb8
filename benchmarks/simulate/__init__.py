# SPDX-License-Identifier: Apache-2.0
"""Policies of research, beside those of ``nova-hpc simulate``."""
