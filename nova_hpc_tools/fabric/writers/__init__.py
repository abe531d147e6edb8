# SPDX-License-Identifier: Apache-2.0
"""What others read: Slurm, topograph, people."""
