"""The site as text for language models: `llms.txt` names the pages, `llms-full.txt` has their texts and docstrings.

Source: the convention at llmstxt.org.
"""

import re
from pathlib import Path

import griffe
from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.nav import Navigation
from properdocs.structure.pages import Page

ENTRY = re.compile(r"^::: (\S+)\n(?:    .*\n)*", re.MULTILINE)
"""A name of the reference, of which mkdocstrings makes an entry."""

pages: dict[str, tuple[str, str, str, str]] = {}
"""Part of the site, title, address and text of each page by its file, in the order of the site."""


def on_nav(nav: Navigation, **_: object) -> None:
    """Keep the order of the pages."""
    pages.clear()
    pages.update({page.file.src_uri: ("", "", "", "") for page in nav.pages})


def on_page_markdown(markdown: str, page: Page, **_: object) -> None:
    """Keep the text of a page."""
    part = page.ancestors[-1].title if page.ancestors else "Start"
    pages[page.file.src_uri] = part, str(page.title), page.url or "index.html", markdown


def on_post_build(config: ProperDocsConfig) -> None:
    """Write both files."""
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    parts: dict[str, list[str]] = {}
    for part, title, address, markdown in pages.values():
        parts.setdefault(part, []).append(f"- [{title}]({address}): {first_sentence(markdown)}")
    lists = [f"## {part}\n\n" + "\n".join(lines) + "\n" for part, lines in parts.items()]
    package = griffe.load("pyro_manifold", search_paths=[Path(config.config_file_path).parent])

    def docstring(entry: re.Match[str]) -> str:
        item = package.modules_collection[entry[1]]
        return f"## {entry[1]}\n\n{item.docstring.value if item.docstring else ''}\n"

    texts = [f"<!-- {address} -->\n\n{ENTRY.sub(docstring, markdown)}" for _, _, address, markdown in pages.values()]
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join([head, *lists]))
    (site / "llms-full.txt").write_text("\n".join([head, *texts]))


def first_sentence(markdown: str) -> str:
    """Return the first sentence of the first paragraph, which is no heading, picture or block."""
    blocks = [block.strip() for block in markdown.split("\n\n")]
    texts = [" ".join(block.split()) for block in blocks if block and block[0] not in "#!`|<[:>-"]
    return re.split(r"(?<=\.)\s", texts[0])[0] if texts else ""
