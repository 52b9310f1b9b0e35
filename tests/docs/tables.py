"""Sections, tables and numbers of pages in Markdown."""

import re
import unicodedata
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
NUMBER = re.compile(rf"(?<![\w.,^(×-])(\d[\d,]*(?:\.\d+)?|{'|'.join(WORDS[2:])})(?![\w×^(]|\.\d)")
BAR = re.compile(r"(?<!\\)\|")
"""Border of a cell."""


@cache
def page(name):
    """Return the text of a page without the blocks of code."""
    return re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)


def anchor(heading):
    """Return the anchor that Markdown's table of contents makes of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


@cache
def section(name, wanted=""):
    """Return the text below a heading, given by its anchor, with all lower ones; the whole page for an empty anchor."""
    if not wanted:
        return page(name)
    found, level = [], 0
    for line in page(name).splitlines():
        heading = re.match(r"(#+) (.*)", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and not level and anchor(heading[2]) == wanted:
            level = len(heading[1])
        if level:
            found.append(line)
    assert found, f"{name} has no heading with the anchor {wanted}"
    return "\n".join(found)


def headings(name):
    return re.findall(r"^#+ (.*)$", page(name), flags=re.MULTILINE)


def rows(name, wanted=""):
    """Return the rows of all tables of a section as dictionaries by column; a second column of a name is "name 2"."""
    found, columns = [], []
    for line in section(name, wanted).splitlines():
        cells = [cell.strip() for cell in BAR.split(line)[1:-1]] if line.startswith("|") else []
        if not cells:
            columns = []
        elif not columns:
            seen = {}
            for cell in cells:
                seen[cell] = seen.get(cell, 0) + 1
                columns.append(cell if seen[cell] == 1 else f"{cell} {seen[cell]}")
        elif set(line) - set("|-: "):
            found.append(dict(zip(columns, cells, strict=True)))
    return found


def number(text):
    """Return the first number of a cell, or None."""
    found = re.search(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text.replace("−", "-"))
    return None if found is None else float(found[0].replace(",", ""))


def largest(text):
    """Return the largest number of a cell with a range, such as "1.029 (1.015 to 1.097)"."""
    return max(map(float, re.findall(r"\d+\.?\d*", text)))


def rounded(number, digits=0):
    """Return a number with so many decimals, 5 rounded up as by hand."""
    return str(Decimal(f"{number:.6f}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def word(count):
    """Return a small number in words."""
    return WORDS[count]


def value(text):
    """Return the value of a number in digits or in words."""
    return float(WORDS.index(text)) if text in WORDS else float(text.replace(",", ""))


def unit(text):
    """Return the value of the last digit that is written."""
    return 10.0 ** -len(text.partition(".")[2]) if text not in WORDS else 1.0


def prose(text):
    """Return text on one line, without code, formulas, and addresses of links."""
    text = re.sub(r"`[^`]*`|\$[^$]*\$", " ", text)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def numbers(text):
    """Return the numbers of a text as they are written, in digits or in words."""
    return NUMBER.findall(text.lower())


def blocks(text):
    """Yield the paragraphs, items of lists and rows of tables of a page."""
    lines = []
    for line in [*text.splitlines(), ""]:
        if lines and (not line.strip() or re.match(r"- |\||#|\d+\. ", line)):
            yield "\n".join(lines)
            lines = []
        if line.strip():
            lines.append(line)


def links(name, text):
    """Yield the text of each link to a page, with the page and its anchor."""
    for found in re.finditer(r"(?<!!)\[([^\[\]]+)\]\(([^)#:\s]*\.md)?(?:#([^)\s]*))?\)", text):
        if found[2] or found[3]:
            target = (ROOT / name).parent / found[2] if found[2] else ROOT / name
            if target.exists():  # the reference is written when the site is built, whose tests find dead links
                yield found[1], str(target.resolve().relative_to(ROOT)), found[3] or ""
