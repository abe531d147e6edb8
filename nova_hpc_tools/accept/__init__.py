# SPDX-License-Identifier: Apache-2.0
"""Is a cluster, or a server beside its host, as fast as it should be? From outside of it."""
