# SPDX-License-Identifier: Apache-2.0
"""The guest domain: Nova's XML, changed in one pass."""
