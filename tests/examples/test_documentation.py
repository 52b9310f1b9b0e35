"""Python blocks of README and of the documentation run, page by page, in order."""

import re
from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
ALONE = "store=torch.distributed.HashStore(), rank=0, world_size=1"
FEW = {"num_samples=2000, warmup_steps=1000": "num_samples=50, warmup_steps=50"}
REDUCED = {
    **dict.fromkeys(("cointegration.md", "mental_tests.md", "reduced_rank.md", "sea_surface.md"), FEW),
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
    "priors.md": {"num_samples=300": "num_samples=20", "count=300": "count=5"},
    "several_processes.md": {'init_process_group("gloo")': f'init_process_group("gloo", {ALONE})'},
}
"""Replacements for the sake of time or of processes: so that it runs, not to what end."""


def test_the_readme_has_blocks():
    assert BLOCK.search(PAGES[0].read_text())
    assert len(PAGES) > 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")  # of speed alone
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # diverging trajectories of PyMC
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page):
    namespace, text = {}, page.read_text()
    for written, shorter in REDUCED.get(page.name, {}).items():
        assert written in text
        text = text.replace(written, shorter)
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```python"), "each block is found"
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
