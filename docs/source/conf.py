# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built: ``sphinx-build -W docs/source docs/build/html``."""

import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import architecture

project = "nova-hpc"
author = "nova-hpc developers"
copyright = author
try:
    release = installed_version("nova-hpc")
except PackageNotFoundError:
    release = "unknown"
version = release

extensions = [
    "cliff.sphinxext",
    "oslo_config.sphinxext",
]

html_theme = "alabaster"
html_theme_options = {
    "description": "Virtual HPC clusters for OpenStack Nova",
    "fixed_sidebar": True,
    "page_width": "1100px",
}

autoprogram_cliff_application = "nova-hpc"
autoprogram_cliff_app_dist_name = "nova-hpc"
# Options are typed as they are printed: two hyphens are no dash.
smartquotes = False

highlight_language = "none"
nitpicky = True


def setup(app):
    """Draw the rooms before the pages are read: the picture is never older than the code."""
    generated = Path(app.srcdir) / "contributor" / "generated"
    app.connect("builder-inited", lambda app: architecture.write_files(generated))
