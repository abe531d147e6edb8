# SPDX-License-Identifier: Apache-2.0
"""The stage between two servers: a device is looked at from within, and cleaned there."""
