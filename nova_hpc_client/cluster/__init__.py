# SPDX-License-Identifier: Apache-2.0
"""Virtual clusters through Nova's API: plan, create, scale and show them."""
