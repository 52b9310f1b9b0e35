"""Numbers that prose quotes from a table are derived from the table again."""

import re
from math import exp, log
from statistics import fmean

import pytest

from .derived_sentences import COMPILED, DERIVED, MODELS, PUBLISHED, WHOLE, of_package, readme_problems
from .tables import BAR, ROOT, blocks, links, number, numbers, page, prose, rows, section, unit, value

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
SUMMARIES = ("README.md", "docs/index.md", "docs/limits.md", "docs/which_kernel.md")
SUMMARIES += ("docs/gallery/index.md", "docs/benchmarks/index.md")
"""Pages whose figures are those of other pages."""
BENCHMARKS = [name for name in PAGES if name.startswith("docs/benchmarks/") and not name.endswith("index.md")]
"""Pages that begin with a conclusion from their own tables."""
UNITS = r"times\b|%|of (?:the )?(?:\d+|[a-z]+teen|ten|eleven|twelve)\b"
NUMERAL = r"(?:\d[\d,]*\.?\d*|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
CLAIM = re.compile(rf"(?:{NUMERAL} to )?{NUMERAL} (?:{UNITS})")


def without_derived(name, text):
    """Text of a page without its derived sentences."""
    for sentence in DERIVED.get(name, ()):
        pattern = r"\s+".join(map(re.escape, sentence().split())).replace(r"\]", r"\](?:\([^)]*\))?")
        text = re.sub(pattern, " ", text)
    return text


@pytest.mark.parametrize(
    ("name", "sentence"),
    [pytest.param(name, each, id=f"{name}, {k}") for name, found in DERIVED.items() for k, each in enumerate(found)],
)
def test_sentences_are_those_of_the_tables(name, sentence):
    assert prose(sentence()) in prose(page(name)), f"{name} should say: {sentence()}"


# ---- the table of README ----------------------------------------------------------------------------------------


def test_the_speed_table_of_readme_is_that_of_the_benchmarks():
    shown = {row["problem"]: list(row.values())[1:] for row in rows("README.md", "speed")}
    expected = readme_problems()
    means = [row["geometric mean of ratios"] for row in rows(PUBLISHED) if row.get("of") == "ESS/s"]
    expected["14 published models, geometric mean"] = [float(means[0]), float(means[2])]
    assert shown.keys() == expected.keys()
    for problem, ratios in expected.items():
        cells = [cell for cell in shown[problem] if cell]
        assert len(cells) == len(ratios), problem
        for cell, ratio in zip(cells, ratios, strict=True):
            assert abs(float(cell) - ratio) <= unit(cell) / 2 + 1e-9, f"{problem}: {cell} in place of {ratio}"


@pytest.mark.parametrize("anchor", [WHOLE, COMPILED])
def test_the_summary_of_published_models_is_that_of_its_rows(anchor):
    columns = {"ESS/s": "ours / theirs", "ESS per CPU second": "ours / theirs 2", "ESS per gradient": "ours / theirs 3"}
    summaries = [row for row in rows(PUBLISHED, anchor) if "of" in row]
    assert len(summaries) == (6 if anchor == WHOLE else 2)
    for row in summaries:
        ratios = {found["model"]: number(found[columns[row["of"]]]) for found in of_package(anchor, row["package"])}
        assert len(ratios) == MODELS
        assert row["ours ahead"].endswith(f" of {MODELS}")
        count = int(number(row["ours ahead"]))  # a ratio shown as 1.00 may be either
        assert sum(ratio > 1 for ratio in ratios.values()) <= count <= sum(ratio >= 1 for ratio in ratios.values())
        mean = exp(fmean(log(ratio) for ratio in ratios.values()))
        assert abs(number(row["geometric mean of ratios"]) - mean) < 0.02 * mean  # of ratios with two digits
        for end, choose in (("least", min), ("largest", max)):
            model = choose(ratios, key=ratios.get)
            assert row[end] == f"{ratios[model]:.2f}, {model}"


# ---- links ------------------------------------------------------------------------------------------------------


def stands_in(text, wanted):
    """Whether a number, as it is written, is a number of a text rounded to as many digits."""
    return any(abs(value(found) - value(wanted)) <= unit(wanted) / 2 + 1e-9 for found in numbers(prose(text)))


def test_a_number_in_the_text_of_a_link_stands_where_it_leads():
    faults = []
    for name in PAGES:
        for text, target, anchor in links(name, without_derived(name, page(name))):
            where = section(target, anchor)
            faults += [f"{name}: [{text}]" for found in numbers(prose(text)) if not stands_in(where, found)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_figure_of_a_summary_stands_where_its_links_lead(name):
    faults = []
    for block in blocks(page(name)):
        where = "\n".join(section(target, anchor) for _, target, anchor in links(name, block))
        text = prose(without_derived(name, block))
        found = [each for each in numbers(text) if where and not stands_in(where, each)]
        found += [claim for claim in claims_of(text) if claim not in claims_of(where)]
        faults += [f"{each} in: {prose(block)}" for each in found]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_figure_of_a_conclusion_stands_in_its_page(name):
    conclusion, rest = page(name).split("\n## ", 1)
    rest = re.sub(r"-(?=\d)", " ", rest)  # signs
    faults = [each for each in numbers(prose(without_derived(name, conclusion))) if not stands_in(rest, each)]
    assert not faults, f"{name}: {faults}"


def claims_of(text):
    return [found[0] for found in CLAIM.finditer(prose(text))]


def test_a_wrong_figure_is_seen():
    section_text = "Of 40 runs 15 % fail, 3.46 times as many. | seven of 14 |"
    assert stands_in(section_text, "3.5")
    assert not stands_in(section_text, "3.4")
    assert claims_of(section_text) == ["15 %", "3.46 times", "seven of 14"]
    assert "seven of 14" not in claims_of("eight of 14, 7 of 14")


def test_rows_of_tables_are_whole():
    faults = []
    for name in PAGES:
        cells = 0
        for line in page(name).splitlines():
            found = len(BAR.findall(line)) if line.startswith("|") else 0
            faults += [f"{name}: {line}"] if cells and found not in (0, cells) else []
            cells = found and (cells or found)
    assert not faults, "\n".join(faults)


# ---- names of the environment -----------------------------------------------------------------------------------


def test_environment_variables_of_the_pages_are_read():
    source = "".join(
        path.read_text()
        for folder in ("pyro_manifold", "benchmarks", "examples", "problems")
        for path in (ROOT / folder).rglob("*.py")
    )
    known = set(re.findall(r"\"(PYRO_MANIFOLD_[A-Z_]+)\"", source))
    for name in [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"]:
        unknown = set(re.findall(r"PYRO_MANIFOLD_\w*", (ROOT / name).read_text())) - known
        assert not unknown, f"{name} names {unknown}; the source reads {known}"
