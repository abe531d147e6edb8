# SPDX-License-Identifier: Apache-2.0
"""Errors of the lab, shown to the user of the command."""

from __future__ import annotations


class LabError(RuntimeError):
    """A failure that the user can act on; the text names the thing and the cure."""


class InterruptedStepError(LabError):
    """A step ended early because another one failed, or because the user interrupted it."""

    def __init__(self) -> None:
        super().__init__("interrupted")
