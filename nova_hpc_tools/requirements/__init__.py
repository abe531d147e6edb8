# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's *Requirements for AI Clouds*, held against this cloud id by id."""
