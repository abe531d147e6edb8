# SPDX-License-Identifier: Apache-2.0
"""The guest domain: Nova's own, changed in one pass."""
