"""Pictures of the pages of benchmarks are drawn from their tables."""

import re
import runpy

from .tables import ROOT
from .test_quoted_numbers import BENCHMARKS

SCRIPT = ROOT / "docs" / "benchmark_figures.py"


def test_pictures_are_drawn_from_the_tables(tmp_path):
    runpy.run_path(str(SCRIPT))["main"](["--folder", str(tmp_path)])
    drawn = {path.name for path in tmp_path.iterdir()}
    assert len(drawn) == 6
    shown = re.findall(r"benchmark_\w+\.png", "".join((ROOT / name).read_text() for name in BENCHMARKS))
    assert set(shown) <= drawn
