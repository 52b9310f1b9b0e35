"""`import pyro_manifold` leaves out what few users need, and packages that take long to import, until first use."""

import json
import subprocess
import sys

import pytest

from tests.infer.mcmc.compilers import native_code

HEAVY = (
    "arviz",
    "matplotlib",
    "numba",
    "pandas",
    "scipy.stats",
    "sklearn",
    "torch._dynamo",
    "torch._inductor",
    "xarray",
)


def printed(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imported():
    """Modules that one process imports: with the package, to prepare a run, and to make its native code."""
    return printed(
        """
import json, sys, torch, pyro, pyro.distributions as dist
torch.vmap(torch.neg)(torch.zeros(2))  # which in some versions of torch (2.6) itself imports the compiler
seen, found = set(sys.modules), {}

def note(name):
    found[name] = sorted(set(sys.modules) - seen)

import pyro_manifold
note("package")
from pyro_manifold.compiled.native import compiler
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC

def model():
    Q = pyro.sample("Q", StiefelUniform(4, 2))
    scales = pyro.sample("scales", dist.HalfNormal(1.0).expand([2]).to_event(1))
    parts = dist.Normal(torch.stack([Q * scales, -Q]), 1.0).to_event(2)
    mixture = dist.MixtureSameFamily(dist.Categorical(logits=scales), parts)
    pyro.sample("y", mixture, obs=torch.ones(4, 2))

run = OHMC(model).prepare(2, 50, None)
note("prepared")
run.advance()
run.policy.make(run.state)
note("native")
found["backend"] = run.transitions[-1].graph.backend
assert pyro_manifold.infer.ReplicaExchange(4) == pyro_manifold.infer.ReplicaExchange(levels=4)
note("replica exchange")
print(json.dumps(found))
"""
    )


def test_heavy_packages_are_imported_on_first_use(imported):
    assert not set(imported["package"]) & set(HEAVY)


def test_parts_of_contrib_are_imported_on_first_use(imported):
    def parts(name):
        return {each.split(".")[2] for each in imported[name] if each.startswith("pyro_manifold.contrib.")}

    assert parts("package") == {"distributed"}
    assert "replica_exchange" in parts("replica exchange")


@native_code
def test_what_compiling_needs_is_not_imported(imported):
    """It takes a second, in which a small model has been sampled; nor what takes a third of one."""
    assert imported["backend"] == "native"
    assert "sympy" not in imported["prepared"]
    assert not {"torch._dynamo", "scipy.optimize", "scipy.interpolate"} & set(imported["native"])


@pytest.mark.long
def test_heavy_packages_are_seen():
    code = "import json, sys, pandas, scipy.stats\nprint(json.dumps(sorted(sys.modules)))"
    assert set(printed(code)) & set(HEAVY) >= {"pandas", "scipy.stats"}
