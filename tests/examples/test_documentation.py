"""Python blocks of the documentation run, page by page, in order; that of the README is run by test_readme.py.

Those of the guide are selected by ``-k "docs/start or docs/how_to"``.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
import torch

from tests.examples import short_runs
from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE

matplotlib.use("Agg")
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(page.read_text())]
SHORT = ("docs/index.md", "docs/how_to/priors.md", "docs/how_to/several_processes.md")
"""Pages that `make test` runs; `make test-all` runs all."""
CHECKOUT = "a checkout of the repository"
OF_PACKAGES = {
    **dict.fromkeys(("jax", "numpyro", "pymc", "pytensor"), "bench of pyproject.toml"),
    **dict.fromkeys(("MDAnalysis", "MDAnalysisTests"), "trajectories of pyproject.toml"),
    **dict.fromkeys(("botorch", "matplotlib", "sklearn"), "the extra examples"),
    **dict.fromkeys(("benchmarks", "examples", "problems", "tests"), CHECKOUT),
}
"""What brings packages that blocks import, other than the package and what it depends on."""
ALONE = "store=torch.distributed.HashStore(), rank=0, world_size=1"
FEW = {"num_samples=2000, warmup_steps=1000": "num_samples=50, warmup_steps=50"}
REDUCED = {
    **dict.fromkeys(
        ("cointegration.md", "equity_factors.md", "mental_tests.md", "reduced_rank.md", "sea_surface.md"), FEW
    ),
    "canonical_correlations.md": {"num_samples=2000, warmup_steps=2000": "num_samples=50, warmup_steps=50"},
    "independent_components.md": {"num_samples=1000, warmup_steps=1000": "num_samples=20, warmup_steps=20"},
    "protein_motions.md": {"num_samples=1000, warmup_steps=500": "num_samples=20, warmup_steps=20"},
    "sparse_inputs.md": {
        "num_samples=1000, warmup_steps=500": "num_samples=20, warmup_steps=20",
        "fit(gp)": "fit(gp, 32, 20)",
    },
    "diffusion_tensors.md": {"num_samples=1000, warmup_steps=1000": "num_samples=20, warmup_steps=20"},
    "vectorcardiograms.md": {
        "num_samples=1000, warmup_steps=500": "num_samples=20, warmup_steps=20",
        "from examples import datasets": "from tests.examples import simulated as datasets",  # no network
    },
    "social_networks.md": {**FEW, ", tempering=True)\nmcmc.run": ")\nmcmc.run"},
    "envelope.md": {**FEW, "datasets.wheat_protein()": "torch.randn(50, 6).numpy(), 9.75 + torch.randn(50).numpy()"},
    "calibrated_network.md": {
        "num_samples=150, warmup_steps=150": "num_samples=4, warmup_steps=4",
        "slice(0, 200)": "slice(0, 60)",
        "for _ in range(200)": "for _ in range(5)",
    },
    "calibrate.md": {"num_datasets=200": "num_datasets=25", "num_datasets=100": "num_datasets=25"},
    "rank.md": {"(1, 2, 3)": "(2,)", "num_samples=100, warmup_steps=100": "num_samples=25, warmup_steps=25"},
    "from_other_libraries.md": {
        "num_samples=500, warmup_steps=500": "num_samples=50, warmup_steps=50",
        '"num_warmup": 500, "num_samples": 500': '"num_warmup": 20, "num_samples": 20',
        "pm.sample(200, tune=200": "pm.sample(10, tune=10",
    },
    "priors.md": {
        "num_samples=300": "num_samples=20",
        "count=300": "count=5",
        "num_samples=400, warmup": "num_samples=20, warmup",
    },
    "several_processes.md": {'init_process_group("gloo")': f'init_process_group("gloo", {ALONE})'},
}
"""Replacements for the sake of time or of processes: so that it runs, not to what end."""
pytestmark = [
    *short_runs.ignored,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:No native code"),  # of speed alone, as the next one
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),  # diverging trajectories of PyMC
]


def imported(block: str) -> Iterator[str]:
    """Names of modules that a block imports."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def lacking(block: str) -> str | None:
    """Return what a block needs and is not here, or None."""
    for module in imported(block):
        package = module.partition(".")[0]
        if package in OF_PACKAGES and importlib.util.find_spec(package) is None:
            return f"{OF_PACKAGES[package]}: {package} is not installed"
        if module == "tests.compiled.native.loops" and WITHOUT_NATIVE_CODE:
            return "a C compiler (cc, gcc or clang)"
    if "torch.distributed" in block and not torch.distributed.is_available():
        return "torch.distributed, which torchrun starts"
    return None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name_of(page), marks=[] if name_of(page) in SHORT else pytest.mark.long) for page in PAGES],
)
def test_blocks_run(page):
    namespace, text = {}, page.read_text()
    for written, shorter in REDUCED.get(page.name, {}).items():
        assert written in text
        text = text.replace(written, shorter)
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python"), "each block is found"
    for number, block in enumerate(blocks, 1):
        if needed := lacking(block):
            pytest.skip(f"block {number} and those after it need {needed}")
        exec(compile(block, str(page), "exec"), namespace)


def test_what_is_lacking_is_seen(monkeypatch):
    blocks = {
        "import jax, numpyro": "bench of pyproject.toml: jax is not installed",
        "def later():\n    from examples import datasets": f"{CHECKOUT}: examples is not installed",
        "torch.distributed.init_process_group('gloo')": "torch.distributed, which torchrun starts",
        "import torch, pyro\nfrom pyro_manifold.infer import OHMC": None,
    }
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    assert {block: lacking(block) for block in blocks} == blocks
    monkeypatch.undo()
    assert lacking("from tests.examples import simulated\nimport arviz") is None


def test_pages_of_the_short_suite_are_there():
    assert set(SHORT) < {name_of(page) for page in PAGES}
