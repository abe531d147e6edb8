# SPDX-License-Identifier: Apache-2.0
"""Wire documents that only commands write or read, and the table of all documents."""
