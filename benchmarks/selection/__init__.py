# SPDX-License-Identifier: Apache-2.0
"""The time of a scheduler's whole answer, with a real Placement on MariaDB, beside stock Nova's."""
