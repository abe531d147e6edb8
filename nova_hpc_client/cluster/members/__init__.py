# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster: their records in the cloud, and how close they are to each other."""
