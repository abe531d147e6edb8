# SPDX-License-Identifier: Apache-2.0
"""What Nova's scheduler loads: filters, weighers, extra-spec validators."""
