# SPDX-License-Identifier: Apache-2.0
"""A device between two servers: its health, its ledger, and the steps that prepare it."""
