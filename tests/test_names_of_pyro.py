"""Names of Pyro are at the same path here: ours where there is one, else Pyro's."""

import importlib

import pytest

MODULES = ("infer", "infer.autoguide", "optim", "distributions")


@pytest.mark.parametrize("path", MODULES)
def test_every_public_name_is_here(path):
    ours, theirs = importlib.import_module(f"pyro_manifold.{path}"), importlib.import_module(f"pyro.{path}")
    for name in (name for name in theirs.__all__ if not name.startswith("_")):
        found = getattr(ours, name)
        own = getattr(found, "__module__", "").startswith("pyro_manifold") or name in vars(ours)
        assert own or found is getattr(theirs, name), name
    assert {name for name in (*theirs.__all__, *ours.__all__) if not name.startswith("_")} <= set(dir(ours))


@pytest.mark.parametrize("path", [*MODULES, "diagnostics"])
def test_other_names_are_an_error(path):
    module = importlib.import_module(f"pyro_manifold.{path}")
    with pytest.raises(AttributeError, match=f"module 'pyro_manifold.{path}' has no attribute 'Nothing'"):
        _ = module.Nothing


def test_a_script_of_pyro_finds_its_names():
    from pyro_manifold.distributions import Normal
    from pyro_manifold.infer import MCMC, NUTS, Trace_ELBO
    from pyro_manifold.infer.autoguide import AutoNormal
    from pyro_manifold.optim import Adam

    assert MCMC.__module__ == "pyro_manifold.infer.api"
    assert {each.__module__.split(".")[0] for each in (NUTS, Trace_ELBO, AutoNormal)} == {"pyro"}
    assert callable(Adam)
    assert Normal(0.0, 1.0).sample().shape == ()
