# SPDX-License-Identifier: Apache-2.0
"""A simulated InfiniBand fabric with a real subnet manager: ibsim and opensm."""
