"""How the documentation is built: ``sphinx-build -W docs/source docs/build/html``."""

from importlib.metadata import PackageNotFoundError, version as installed_version

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
    "openstackdocstheme",
    "oslo_config.sphinxext",
]

html_theme = "openstackdocs"
openstackdocs_repo_name = "nova-hpc"
openstackdocs_pdf_link = False
openstackdocs_auto_name = False
openstackdocs_auto_version = False
# No bug tracker is named on the pages.
openstackdocs_use_storyboard = False
openstackdocs_bug_project = ""
openstackdocs_bug_tag = ""

autoprogram_cliff_application = "nova-hpc"
autoprogram_cliff_app_dist_name = "nova-hpc"
# Options are typed as they are printed: two hyphens are no dash.
smartquotes = False

highlight_language = "none"
nitpicky = True
