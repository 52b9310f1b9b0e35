"""Docstrings, messages and pages use the words of the field, not our own for the same things."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyro_manifold"
PARTS = sorted({file.relative_to(PACKAGE).parts[0] for file in PACKAGE.rglob("*.py")})
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])

BANNED = {
    r"told|tells?|telling|says?|said|saying": "reported, recorded, returned",
    r"knows|wants?|wanted|dares?": "a program has, needs, requires",
    r"(?<!power-)laws?": "distribution",
    r"(?<!data )(?<!stack )frames": "orthonormal matrices",
    r"beside": "next to, in addition to",
    r"nobody|whoever|somebody|anybody": "name the thing",
    r"anew|renew(?:s|ed|ing)?(?!:)": "again, recompute, update, reset",
    r"haste|hasten(?:s|ed|ing)?": "compilation trigger, policy",
    r"keepers?": "draw storage, backend",
    r"remarks?": "warnings, footnotes",
    r"misfits?": "negative log likelihood",
    r"schooling": "training configuration",
    r"sessions?": "run",
    r"whole numbers": "integers",
    r"truths|truth values?": "booleans, reference values",
    r"trusted": "verified, checked",
}
"""Regular expressions of words of our own, and the words of the field."""

_BANNED = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)
_CODE = re.compile(r"^```.*?^```|^<!-- make bench .*?^<!-- end of |`+[^`\n]*`+", re.DOTALL | re.MULTILINE)
"""Code, and figures that benchmarks print into their pages."""


def banned(text: str) -> list[str]:
    return [match.group().lower() for match in _BANNED.finditer(text)]


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of docstrings, messages and other strings of more than one word, with their first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.parametrize("part", PARTS)
def test_strings_of_the_package(part):
    folder = PACKAGE / part
    found = [
        f"{file.relative_to(ROOT)}:{line}: {', '.join(words)}"
        for file in ([folder] if folder.is_file() else sorted(folder.rglob("*.py")))
        for line, text in strings(file.read_text())
        if (words := banned(_CODE.sub("", text)))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page):
    text = _CODE.sub(lambda match: "\n" * match.group().count("\n"), page.read_text())
    found = [
        f"{number}: {', '.join(words)}" for number, line in enumerate(text.splitlines(), 1) if (words := banned(line))
    ]
    assert not found, "\n".join(found)


def test_banned_words_are_seen():
    assert banned("The law, told anew, of a lawful frame: it tells of framework.") == ["law", "told", "anew", "tells"]
    (found,) = strings("def f():\n    raise ValueError(f'{x} wants a number')")
    assert found == (2, " wants a number")
    assert banned(found[1]) == ["wants"]
