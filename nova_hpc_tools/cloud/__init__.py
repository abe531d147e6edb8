# SPDX-License-Identifier: Apache-2.0
"""Commands that work on a snapshot of a cloud: explain, capacity, drain, flavors."""
