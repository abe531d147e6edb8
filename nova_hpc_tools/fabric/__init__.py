# SPDX-License-Identifier: Apache-2.0
"""The fabric map: read, merged, drawn, compared, and written into Nova."""
