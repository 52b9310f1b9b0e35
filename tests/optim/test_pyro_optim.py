"""The Riemannian optimisers in Pyro's SVI."""

import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule, PyroParam
from torch.distributions import transform_to

from pyro_manifold import constraints, optim
from pyro_manifold.infer.autoguide import AutoProductStiefelLowRankMultivariateNormal
from pyro_manifold.manifolds import Grassmann, Sphere, Stiefel
from pyro_manifold.optim import TorchRiemannianAdam

METHODS = {
    "RiemannianSGD": {"lr": 0.02},
    "RiemannianMomentum": {"lr": 0.005},
    "RiemannianRMSProp": {"lr": 0.02},
    "RiemannianAdaDelta": {"eps": 1e-4},
    "RiemannianAdam": {"lr": 0.02},
}
over_methods = pytest.mark.parametrize("method", METHODS)
CONSTRAINTS = {"stiefel": constraints.stiefel, "grassmann": constraints.grassmann, "sphere": constraints.sphere}
MANIFOLDS = {"stiefel": Stiefel(), "grassmann": Grassmann()}
Y = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
A = torch.diag(torch.tensor([4.0, 3.0, 1.0, 0.5, 0.2], dtype=torch.float64))


def make(method, **more):
    return getattr(optim, method)({**METHODS[method], **more})


def no_guide(*args):
    pass


def model(constraint=constraints.stiefel):
    """Maximum likelihood: a subspace, and a scale that has nothing to do with it."""
    X = pyro.param("X", lambda: Stiefel().random_point(5, 2), constraint=constraint)
    scale = pyro.param("scale", torch.tensor(3.0), constraint=constraints.positive)
    pyro.factor("fit", (X.mT @ A @ X).diagonal().sum())
    pyro.sample("y", dist.Normal(0.0, scale).expand([4]).to_event(1), obs=Y)


def fit(optimiser, steps, *args):
    svi = SVI(model, no_guide, optimiser, Trace_ELBO())
    for _ in range(steps):
        svi.step(*args)


def found(X):
    """Smallest cosine between the span of X and that of the first two axes."""
    return torch.linalg.svdvals(X[:2]).min()


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_gradient_of_an_unconstrained_value_on_the_manifold_is_the_riemannian_one(kind):
    """Optimisers need not distinguish a parameter from its unconstrained value."""
    sphere = kind == "sphere"
    point = (Sphere().random_point(6) if sphere else Stiefel().random_point(6, 3)).requires_grad_()
    ambient = torch.randn_like(point)
    (transform_to(CONSTRAINTS[kind])(point) * ambient).sum().backward()
    manifold = Sphere() if sphere else Stiefel()
    torch.testing.assert_close(point.grad, manifold.tangent_projection(point.detach(), ambient))


@over_methods
@pytest.mark.parametrize("kind", ["stiefel", "grassmann"])
def test_steps_of_svi_are_those_of_the_torch_optimiser(method, kind):
    """Of a matrix on its manifold, and of the logarithm of a scale."""
    start = Stiefel().random_point(5, 2)
    pyro.param("X", start.clone(), constraint=CONSTRAINTS[kind])
    fit(make(method), 20, CONSTRAINTS[kind])

    point, logarithm = start.clone().requires_grad_(), torch.tensor(3.0).log().requires_grad_()
    groups = [{"params": [point], "manifold": MANIFOLDS[kind]}, {"params": [logarithm]}]
    alone = getattr(optim, f"Torch{method}")(groups, **METHODS[method])
    for _ in range(20):
        alone.zero_grad()
        X, normal = transform_to(CONSTRAINTS[kind])(point), torch.distributions.Normal(0.0, logarithm.exp())
        (-(X.mT @ A @ X).diagonal().sum() - normal.log_prob(Y).sum()).backward()
        alone.step()
    torch.testing.assert_close(pyro.param("X"), point)
    torch.testing.assert_close(pyro.param("scale"), logarithm.exp())
    # The unconstrained value is the point itself.
    torch.testing.assert_close(dict(pyro.get_param_store().named_parameters())["X"], point)


def test_other_parameters_take_the_steps_of_pyro():
    """A positive number, and a matrix whose transform has coordinates of its own."""
    householder, start = constraints.householder_stiefel(5, 2), Stiefel().random_point(5, 2)
    ends = []
    for optimiser in (make("RiemannianAdam"), pyro.optim.Adam({"lr": 0.02})):
        pyro.clear_param_store()
        pyro.param("X", start.clone(), constraint=householder)
        fit(optimiser, 50, householder)
        ends.append({name: value.detach() for name, value in pyro.get_param_store().items()})
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-11, atol=1e-11)
    assert (ends[0]["X"] - start).norm() > 0.1


def test_options_for_each_parameter_and_clipping():
    frozen = optim.RiemannianSGD(lambda name: {"lr": 0.0 if name == "X" else 0.1}, {"clip_norm": 1e-3})
    pyro.param("X", Stiefel().random_point(5, 2), constraint=constraints.stiefel)
    start = pyro.param("X").detach()
    fit(frozen, 3)
    torch.testing.assert_close(pyro.param("X").detach(), start)
    assert 0 < 3.0 - pyro.param("scale") < 3 * 1e-3


def test_learning_rate_schedules_of_pyro():
    schedule = pyro.optim.ExponentialLR({"optimizer": TorchRiemannianAdam, "optim_args": {"lr": 0.05}, "gamma": 0.99})
    svi = SVI(model, no_guide, schedule, Trace_ELBO())
    for _ in range(250):
        svi.step()
        schedule.step()
    assert found(pyro.param("X").detach()) > 1 - 1e-3
    assert Stiefel().contains(dict(pyro.get_param_store().named_parameters())["X"])


@over_methods
def test_a_saved_run_continues_unchanged(method, tmp_path):
    first = make(method)
    fit(first, 20)
    pyro.get_param_store().save(tmp_path / "params")
    first.save(tmp_path / "optimiser")
    fit(first, 20)
    uninterrupted = pyro.param("X").detach()

    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "params")
    second = make(method)
    second.load(tmp_path / "optimiser")
    fit(second, 20)
    torch.testing.assert_close(pyro.param("X").detach(), uninterrupted, rtol=0, atol=0)


def test_a_state_of_another_rank():
    first = make("RiemannianAdam")
    fit(first, 2)
    state = first.get_state()
    pyro.clear_param_store()
    pyro.param("X", Stiefel().random_point(5, 3), constraint=constraints.stiefel)
    second = make("RiemannianAdam")
    second.set_state(state)
    with pytest.raises(ValueError, match=r"parameter 'X' has 'momentum' of shape \(5, 2\), expected \(5, 3\)"):
        fit(second, 1)


def test_a_value_off_the_manifold_is_brought_back_with_the_parameter_unchanged():
    X = Stiefel().random_point(5, 2)
    pyro.param("X", X @ torch.tensor([[3.0, 0.5], [0.5, 1.0]]), constraint=constraints.grassmann)
    before = pyro.param("X").detach()
    fit(optim.RiemannianSGD({"lr": 0.0}), 1)
    torch.testing.assert_close(pyro.param("X").detach(), before)
    assert Stiefel().contains(dict(pyro.get_param_store().named_parameters())["X"])


def test_a_value_set_between_steps_is_kept():
    optimiser = optim.RiemannianSGD({"lr": 0.0})
    fit(optimiser, 1)
    unconstrained = dict(pyro.get_param_store().named_parameters())["X"]
    with torch.no_grad():
        unconstrained.copy_(torch.randn(5, 2))
    before = pyro.param("X").detach()
    fit(optimiser, 1)
    torch.testing.assert_close(pyro.param("X").detach(), before)


def train(optimiser, loss, steps):
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


@pytest.mark.parametrize("local", [False, True])
def test_torch_optimisers_of_a_guide(local):
    """Pyro's other way to train: the ELBO as a module, with or without the param store."""

    def flat():
        pyro.sample("x", dist.Normal(torch.zeros(5), 1.0).to_event(1))

    with pyro.settings.context(module_local_params=local):
        guide = AutoProductStiefelLowRankMultivariateNormal(flat, rank=2)
        loss = Trace_ELBO()(flat, guide)
        loss()
        build = TorchRiemannianAdam(optim.parameter_groups(guide) if local else loss.parameters(), lr=0.1)
        train(build, loss, 20)
        assert Stiefel().contains(guide.cov_factor_unconstrained.detach())


def test_an_optimiser_built_before_the_first_call_of_a_module():
    module = PyroModule()
    module.loadings = PyroParam(Stiefel().random_point(5, 2), constraint=constraints.stiefel)
    optimiser = TorchRiemannianAdam(module.parameters(), lr=0.1)

    class Caller(PyroModule):
        def forward(self):
            return self.inner.loadings[0, 0]

    caller = Caller("caller")
    caller.inner = module
    train(optimiser, caller, 10)
    assert Stiefel().contains(module.loadings_unconstrained.detach())


@pytest.mark.parametrize("kind", ["stiefel", "grassmann"])
def test_a_constraint_on_a_matrix_with_more_columns_than_rows(kind):
    with pytest.raises(ValueError, match=rf"constraints.{kind}: got n=2, p=3.*transpose the matrix\."):
        pyro.param("X", torch.randn(2, 3), constraint=CONSTRAINTS[kind])


def test_the_pyro_class_where_the_torch_class_belongs():
    schedule = pyro.optim.ExponentialLR({"optimizer": optim.RiemannianAdam, "optim_args": {"lr": 0.05}, "gamma": 0.9})
    with pytest.raises(ValueError, match=r"pyro_manifold\.optim\.TorchRiemannianAdam"):
        fit(schedule, 1)
    with pytest.raises(ValueError, match=r"pyro_manifold\.optim\.TorchRiemannianAdam"):
        optim.RiemannianAdam([torch.zeros(2)])


def test_optimisers_can_be_pickled():
    restored = pickle.loads(pickle.dumps(make("RiemannianRMSProp")))
    fit(restored, 2)
    assert Grassmann().contains(pyro.param("X").detach())
