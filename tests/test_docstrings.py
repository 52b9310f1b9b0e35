"""First lines of docstrings stand alone: they begin with a verb or name the thing."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pyro_manifold"
FRAGMENTS = (
    *("What", "Of", "Where", "Whether", "Who", "Whose", "Whom", "When", "How", "Which", "Why", "That", "From", "By"),
    *("As", "In", "At", "For", "To", "With", "Such", "So", "Until", "If", "Than", "Those", "Also", "And", "Or", "But"),
    *("On", "Under", "After", "Before", "Not", "Nothing", "Whatever", "Whoever", "Is", "Are", "Does", "Has", "It"),
)


def first_lines(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text.splitlines()[0]


def is_fragment(line: str) -> bool:
    return line.split()[0].rstrip(",:;") in FRAGMENTS


def test_docstrings_do_not_begin_as_fragments():
    found = [
        f"{file.relative_to(PACKAGE)}: {line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line in first_lines(file.read_text())
        if is_fragment(line)
    ]
    assert not found, "\n".join(found)


def test_fragments_are_seen():
    assert [is_fragment(line) for line in ("Of the sites.", "What it is.", "Return a draw.", "Leapfrog step.")] == [
        True,
        True,
        False,
        False,
    ]
