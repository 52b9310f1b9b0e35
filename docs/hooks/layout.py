"""Pages that are a part of the site by themselves have no list of pages beside them, and more width."""

from properdocs.structure.pages import Page


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Hide the list."""
    if page.parent is None:
        page.meta["hide"] = ["navigation", *page.meta.get("hide", ())]
    return markdown
