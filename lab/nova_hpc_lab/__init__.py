# SPDX-License-Identifier: Apache-2.0
"""The one-command cloud with virtual HPC nodes."""
