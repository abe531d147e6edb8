# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's *Requirements for AI Clouds*, compared with this cloud id by id."""
