# SPDX-License-Identifier: Apache-2.0
"""The layout of the wheel: its folder is the package, and man pages are beside packages."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShareManPages(BuildHookInterface):
    """Keep the targets of ``shared-data`` as ``pyproject.toml`` names them."""

    def initialize(self, version: str, build_data: "dict[str, Any]") -> None:
        """Put a source for ``share/`` before that of the package, which takes all paths."""
        # hatchling takes the first source that matches, and sorts those of pyproject.toml.
        sources = self.build_config.sources
        sources["share/"] = "share/"
        sources[""] = sources.pop("")
