# SPDX-License-Identifier: Apache-2.0
"""Virtual functions of adapters: what they are set to around a tenancy."""
