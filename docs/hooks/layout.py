"""The version at the foot of each page; a page that is a part of the site has no list of pages beside it."""

import runpy
from pathlib import Path

from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.pages import Page


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Read the version without importing the package."""
    file = Path(config.config_file_path).parent / "pyro_manifold/version.py"
    config.copyright = f"{config.site_name} {runpy.run_path(str(file))['__version__']}"
    return config


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Hide the list."""
    if page.parent is None:
        page.meta["hide"] = ["navigation", *page.meta.get("hide", ())]
    return markdown
