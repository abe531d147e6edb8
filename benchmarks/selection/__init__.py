# SPDX-License-Identifier: Apache-2.0
"""The whole of a scheduler's answer, with a real Placement on MariaDB, beside stock Nova's."""
