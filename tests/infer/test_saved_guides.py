"""A guide that was fitted in one process is the same in another, and its fit goes on there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MODEL = """
import sys
import pyro, torch
import pyro.distributions as dist
import pyro.infer
from pyro.infer import Trace_ELBO, autoguide
import pyro_manifold.infer
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer.autoguide import *
from pyro_manifold.optim import RiemannianAdam

torch.set_default_dtype(torch.float64)


def model(y):
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    factor, diagonal = U * scales[..., None, :], noise**2 * torch.ones(4)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), factor, diagonal), obs=y)


y = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
GUIDES = {
    "normal": lambda: autoguide.AutoNormal(model),
    "point": lambda: autoguide.AutoDelta(model),
    "full rank": lambda: autoguide.AutoMultivariateNormal(model),
    "Stiefel": lambda: AutoStiefelLowRankMultivariateNormal(model, rank=2),
    "product": lambda: AutoProductStiefelLowRankMultivariateNormal(model, rank=2),
    "Grassmann": lambda: AutoGrassmannLowRankMultivariateNormal(model, rank=2),
}


def fitting(guide):
    return pyro.infer.SVI(model, guide, RiemannianAdam({"lr": 0.02}), Trace_ELBO())


def go_on(guide, svi):
    pyro.set_rng_seed(3)
    losses = torch.tensor([svi.step(y) for _ in range(5)])
    return {"losses": losses, **{name: value.detach() for name, value in guide(y).items()}}
"""

FIRST = """
for name, make in GUIDES.items():
    pyro.clear_param_store()
    guide = make()
    svi = fitting(guide)
    for _ in range(10):
        svi.step(y)
    torch.save(guide.state_dict(), f"{name}.pt")
    svi.optim.save(f"{name}.optim.pt")
    torch.save(go_on(guide, svi), f"{name}.next.pt")
"""

SECOND = """
for name, make in GUIDES.items():
    pyro.clear_param_store()
    guide = make()
    guide(y)
    guide.load_state_dict(torch.load(f"{name}.pt", weights_only=True))
    svi = fitting(guide)
    svi.optim.load(f"{name}.optim.pt")
    expected = torch.load(f"{name}.next.pt", weights_only=True)
    for site, value in go_on(guide, svi).items():
        assert torch.equal(value, expected[site]), (name, site)
    print(name)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guides")
    (folder / "fits.py").write_text(MODEL)
    return folder


def in_a_process(source, folder):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    program = "from fits import *\n" + source
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_fits_continue_in_another_process(folder):
    """Bit for bit: parameters, orthonormal ones too, and the averages of the optimiser."""
    in_a_process(FIRST, folder)
    assert len(in_a_process(SECOND, folder).splitlines()) == 6
