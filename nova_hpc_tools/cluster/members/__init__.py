# SPDX-License-Identifier: Apache-2.0
"""The members of a cluster: what the cloud says of them, and how near they are."""
