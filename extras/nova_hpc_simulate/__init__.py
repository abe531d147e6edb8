# SPDX-License-Identifier: Apache-2.0
"""A day of a cloud replayed under several policies of placement."""
