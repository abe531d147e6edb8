# SPDX-License-Identifier: Apache-2.0
"""The stage between two servers: it checks a device from within, and cleans it there."""
