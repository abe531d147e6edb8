# SPDX-License-Identifier: Apache-2.0
"""Nova's own numa, pci_in_placement and pci_sriov functional tests, run without
and with this project switched on, and compared test by test.

    python -m tests.functional.nova_suites
"""
