# SPDX-License-Identifier: Apache-2.0
"""The plug-ins of Nova's scheduler: filters, weighers, extra-spec validators."""
