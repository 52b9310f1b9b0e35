"""Formulas of the site: TeX becomes MathML while the site is built, with a font that the site brings along.

A formula that is not valid is a warning, which ends `properdocs build --strict`. Pages need no script and no network.
"""

import html
import re
from importlib.metadata import distribution
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from math_core import LatexError, LatexToMathML
from properdocs.config.defaults import ProperDocsConfig
from properdocs.plugins import get_plugin_logger
from properdocs.structure.pages import Page

log = get_plugin_logger("formulas")

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
"""Arithmatex writes them so, as \\(...\\) within lines and as \\[...\\] on lines of their own."""

ITALICS = (0x210E, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C))
"""Letters as a browser draws the names of variables."""
RADICAL = 0x221A
"""Drawn by a browser without being written."""

used = {*range(0x20, 0x7F), *ITALICS, RADICAL}
"""Characters that the font needs."""

convert = LatexToMathML(fancy_error=False).convert_with_local_state


def on_page_content(content: str, page: Page, **_: object) -> str:
    """Replace the formulas of a page."""

    def replaced(match: re.Match[str]) -> str:
        tag, text = match.groups()
        tex = html.unescape(text).strip()[2:-2]
        try:
            formula = convert(tex, displaystyle=tag == "div")
        except LatexError as error:
            log.warning(f"{page.file.src_uri}: the formula {tex!r} is not valid: {error}")
            return match[0]
        used.update(map(ord, html.unescape(formula)))
        return f'<{tag} class="formula">{formula}</{tag}>'

    return FORMULA.sub(replaced, content)


def on_post_build(config: ProperDocsConfig) -> None:
    """Write the font, STIX Two Math, of which ziamath has a copy."""
    font = TTFont(distribution("ziamath").locate_file("ziamath/fonts/STIXTwoMath-Regular.ttf"))
    subsetter = subset.Subsetter(subset.Options(layout_features=["*"], name_IDs=["*"]))
    subsetter.populate(unicodes=used)
    subsetter.subset(font)
    font.flavor = "woff"
    target = Path(config.site_dir) / "assets" / "fonts" / "STIXTwoMath.woff"
    target.parent.mkdir(parents=True, exist_ok=True)
    font.save(target)
