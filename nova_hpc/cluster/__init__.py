# SPDX-License-Identifier: Apache-2.0
"""Virtual clusters: the places of members, and the domains of server groups."""
