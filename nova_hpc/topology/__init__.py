# SPDX-License-Identifier: Apache-2.0
"""A node as data: model, readers and writers."""
