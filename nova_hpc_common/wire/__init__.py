# SPDX-License-Identifier: Apache-2.0
"""Wire documents that clients read or write; the base of all of them."""
