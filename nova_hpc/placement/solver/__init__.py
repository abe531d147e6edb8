# SPDX-License-Identifier: Apache-2.0
"""The exact search behind choose() and judge(). Nobody else imports from here."""
