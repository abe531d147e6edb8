# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed with SIGKILL at each step of a spawn and a destroy.

``python -m tests.functional.kills`` runs it; ``README.rst`` says what is real
and what is not.
"""
