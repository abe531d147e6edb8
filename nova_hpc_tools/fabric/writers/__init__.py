# SPDX-License-Identifier: Apache-2.0
"""Writers of maps for others: Slurm, topograph, people."""
