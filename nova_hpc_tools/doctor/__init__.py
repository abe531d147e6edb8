# SPDX-License-Identifier: Apache-2.0
"""What is wrong on a node or in a cloud, each finding with its cure."""
