# SPDX-License-Identifier: Apache-2.0
"""Virtual clusters: who goes where, who has which domain, and how they live."""
