# SPDX-License-Identifier: Apache-2.0
"""Synthetic nodes: whole machines, described in a few lines and written as sysfs.

:mod:`describe` has the words of a description, :mod:`catalogue` the nodes,
:mod:`plan` gives every function its address and its IOMMU group, and
:mod:`write` makes the files. Nothing here uses the product, so that what the
product reads can be held against what was described.
"""
