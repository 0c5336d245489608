"""Settings of the manual. It builds without a network: no pages of other projects are looked up."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parent.parent

project = "Quabla"
author = "The Quabla maintainers"
copyright = "The Quabla maintainers"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_generated"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else the fields of a NamedTuple are described twice
# Docstrings put code in single backticks, as Markdown does.
default_role = "code"

html_theme = "furo"
html_title = f"Quabla {release}"


def setup(app: Any) -> None:
    """Make a public name that the reference lacks an error of the build."""
    app.connect("builder-inited", check_page)
    app.connect("env-check-consistency", check_objects)


def check_page(app: Any) -> None:
    """The page of public names is what its script writes."""
    if runpy.run_path(str(ROOT / "tools" / "api_page.py"))["main"](["--check"]):
        raise ExtensionError("docs/api.md differs from the public names; run: python tools/api_page.py")


def check_objects(app: Any, env: Any) -> None:
    """Every public name was described."""
    there = env.get_domain("py").objects
    names = [name for _, name, _ in runpy.run_path(str(ROOT / "tools" / "api_page.py"))["described"]()]
    missing = [name for name in names if name not in there]
    if missing:
        raise ExtensionError(f"the reference lacks {', '.join(missing)}")
