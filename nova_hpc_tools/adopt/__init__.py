# SPDX-License-Identifier: Apache-2.0
"""Adoption by a node and a cloud: configure, prepare, install-shim, upgrade check."""
