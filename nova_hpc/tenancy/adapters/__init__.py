# SPDX-License-Identifier: Apache-2.0
"""Virtual functions of adapters: their settings before and after a tenancy."""
