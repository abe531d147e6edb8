# SPDX-License-Identifier: Apache-2.0
"""Questions that a snapshot of a cloud answers: explain, capacity, drain, flavors."""
