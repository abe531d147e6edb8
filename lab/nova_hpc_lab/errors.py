# SPDX-License-Identifier: Apache-2.0
"""Errors of the lab, told to the person who typed the command."""

from __future__ import annotations


class LabError(RuntimeError):
    """A failure that the user can act on; the text names the thing and the cure."""


class InterruptedStepError(LabError):
    """A step ended early because another one failed, or the user said so."""

    def __init__(self) -> None:
        super().__init__("interrupted")
