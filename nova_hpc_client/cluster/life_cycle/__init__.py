# SPDX-License-Identifier: Apache-2.0
"""Creates, changes and deletes the members of a cluster as its ``ClusterWish`` describes them."""
