# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built: ``sphinx-build -W docs/source docs/build/html``."""

import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import architecture
import block_languages
import measured
import release_notes
import sidebar

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
    "sphinx_copybutton",
    "sphinx_design",
]

html_theme = "furo"
html_title = "nova-hpc"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_theme_options = {
    # The colour of links and doors; a contrast of 4.5:1 on both grounds.
    "light_css_variables": {
        "color-brand-primary": "#0b5c8a",
        "color-brand-content": "#0b5c8a",
        "sd-color-primary": "#0b5c8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cb8e6",
        "color-brand-content": "#6cb8e6",
        "sd-color-primary": "#6cb8e6",
    },
}
#: One for each program, of the pages that describe its commands.
man_pages = [
    ("cli/index", "nova-hpc", "virtual HPC clusters on OpenStack, for operators", [author], 1),
    ("user/guest", "nova-hpc-guest", "what a guest was promised, and what it has", [author], 1),
    ("cli/cluster", "openstack-hpc-cluster", "virtual HPC clusters", [author], 1),
    ("cli/gpu", "openstack-hpc-gpu", "GPUs that servers share", [author], 1),
]
# The copy button leaves out prompts and output.
copybutton_exclude = ".linenos, .gp, .go"

autoprogram_cliff_application = "nova-hpc"
autoprogram_cliff_app_dist_name = "nova-hpc-tools"
# Options are typed as they are printed: two hyphens are no dash.
smartquotes = False

# The language of a block that names none; see docs/block_languages.py.
highlight_language = "none"
nitpicky = True


def setup(app):
    """Write the parts of pages that come from the code before Sphinx reads the pages."""
    generated = Path(app.srcdir) / "contributor" / "generated"
    app.connect("builder-inited", lambda app: architecture.write_files(generated))
    notes = Path(app.srcdir).parents[1] / "releasenotes" / "notes"
    page = generated / "releasenotes.inc"
    app.connect("builder-inited", lambda app: release_notes.write_file(notes, page))
    table = generated / "measured.inc"
    app.connect("builder-inited", lambda app: measured.write_file(table))
    app.connect("doctree-read", block_languages.name_languages)
    # Furo makes the side bar at 500.
    app.connect("html-page-context", sidebar.keep_tenants_pages, priority=600)
