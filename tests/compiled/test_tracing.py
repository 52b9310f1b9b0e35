"""Traced graphs are the function that was traced, in a form that torch can differentiate."""

import sys
import weakref

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_manifold.compiled import FORWARD_MODE, copied_graph, recorder_works, run, trace
from pyro_manifold.compiled.native import decompositions
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC
from tests.infer.mcmc.compilers import native_code

ATANH = torch.ops.aten.atanh.default


def curve(x):
    return (2.0 * torch.atanh(x) + 1.0) / 3.0


def rewritten(function, *example):
    """The graph without atanh. Looked at before it is traced again, which would end the process with torch's own."""
    graph = trace(function, *example)
    assert ATANH in {node.target for node in graph.graph.nodes}
    run(FORWARD_MODE, graph)
    assert ATANH not in {node.target for node in graph.graph.nodes}
    return graph


def test_the_rewritten_graph_is_the_same_function():
    for shape in ((), (3,)):
        x = 0.4 * torch.ones(shape)
        graph = rewritten(curve, x)
        assert torch.allclose(graph(-x), curve(-x))


def test_the_logarithms_for_atanh_keep_all_digits_near_zero_and_the_poles():
    x = torch.cat([10.0 ** torch.arange(-300, 0, 13), 1 - 10.0 ** torch.arange(-15, 0)])
    x = torch.cat([-x, x])
    torch.testing.assert_close(
        rewritten(torch.atanh, x)(x), torch.atanh(x), rtol=10 * torch.finfo(x.dtype).eps, atol=0.0
    )


def test_tangents_keep_single_precision():
    x = torch.tensor(0.4, dtype=torch.float32)
    _, tangent = torch.func.jvp(rewritten(curve, x), (x,), (torch.ones_like(x),))
    assert tangent.dtype == torch.float32


def test_reverse_derivatives_of_tangents_of_atanh_can_be_traced():
    x = torch.tensor([0.1, 0.5])
    graph = rewritten(curve, x)

    def pull(x):
        return torch.func.vjp(torch.func.jacfwd(graph), x)[1](torch.eye(2))[0]

    assert torch.allclose(trace(pull, x)(x), 2 / 3 * 2 * x / (1 - x**2) ** 2)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_cumulative_products_and_their_derivative_are_plain_multiplications(size):
    """Zeros too: torch's own derivative looks for them, in ways that follow the values."""
    x = torch.randn(3, size)
    x[0, size // 2] = 0

    def gradient(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            value = (leaf.cumprod(1).sin() + torch.cumprod(leaf, dim=-1)).sum()
        return torch.autograd.grad(value, leaf)[0]

    expected = gradient(x)
    graph = trace(gradient, x.clone())
    names = {node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"}
    assert not any(name.startswith(("cumprod", "max", "scatter", "gather")) for name in names)
    torch.testing.assert_close(graph(x), expected)
    other = torch.randn(3, size)
    torch.testing.assert_close(graph(other), gradient(other))


# ---- comparison with the tracer of torch ---------------------------------------------------------------------------

DATA = torch.arange(6, dtype=torch.float64).reshape(2, 3)


def in_place(x):
    y = torch.zeros(3)
    y[1:] = x[1:]
    y.add_(1).mul_(DATA[0])
    return y.sum(), y


def of_derivatives(x):
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        value = (leaf.sigmoid().log() @ DATA.T).logsumexp(0) + torch.tensor([1.0, 2.0]).sum()
        (gradient,) = torch.autograd.grad(value, [leaf])
    return {"value": value.detach(), "gradients": [gradient, torch.func.hessian(lambda z: z.exp().prod())(x)]}


def of_many_outputs(x):
    matrix = x.outer(x) + torch.eye(3)
    values, vectors = torch.linalg.eigh(matrix)
    first, *rest = matrix.unbind()
    return values, vectors.abs(), torch.linalg.slogdet(matrix), first, rest


def of_rows(x):
    return torch.vmap(lambda row: row.cumsum(0).diff() * DATA[:, :2].exp())(x.expand(4, 3))


@pytest.mark.parametrize("function", [in_place, of_derivatives, of_many_outputs, of_rows, curve])
def test_graphs_have_the_operators_and_values_of_torchs_own(function):
    x, other = torch.tensor([[0.3, -0.2, 0.5], [-0.1, 0.7, 0.2]], dtype=torch.float64).unbind()
    graph, own = trace(function, x), make_fx(function)(x)
    assert _operators(graph) == _operators(own)
    for point in (x, other, x):  # twice the same: nothing is left behind in constants
        torch.testing.assert_close(graph(point), function(point))


def of_several_results(x):
    first = torch.ops.aten.log_sigmoid_forward(x)[0]
    parts = torch.ops.aten.unsafe_split.Tensor(x, 1)
    normalised = torch.ops.aten.native_layer_norm(x.outer(x), [3], None, None, 1e-3)
    return first, torch.stack([parts[0], parts[2]]), *normalised


@pytest.mark.parametrize("function", [in_place, of_derivatives, of_many_outputs, of_rows, curve, of_several_results])
def test_a_copied_graph_is_decomposed_as_the_function_is(function):
    x, other = torch.tensor([[0.3, -0.2, 0.5], [-0.1, 0.7, 0.2]], dtype=torch.float64).unbind()

    def flat(x):
        return tuple(torch.utils._pytree.tree_leaves(function(x)))

    copy = copied_graph(trace(flat, x))
    graph = trace(lambda x: copy(x), x, decompositions=decompositions())
    assert not {node.target for node in graph.graph.nodes if node.all_input_nodes} & decompositions().keys()
    for point in (x, other, x):
        for found, expected in zip(graph(point), flat(point), strict=True):
            torch.testing.assert_close(found, expected)


def _operators(graph):
    """`make_fx` records `detach` as `alias` from torch 2.14 on."""
    named = {torch.ops.aten.detach.default: torch.ops.aten.alias.default}
    return [named.get(node.target, node.target) for node in graph.graph.nodes if node.op == "call_function"]


# ---- where torch's private parts have moved -------------------------------------------------------------------------


def test_the_recorder_works_with_this_torch():
    """Else everything is right, but a first run starts a second later."""
    assert recorder_works()


@pytest.fixture
def other_torch(monkeypatch):
    """A torch in which the recorder does not find what it stands on."""
    monkeypatch.setitem(sys.modules, "pyro_manifold.compiled.recorder", None)  # importing it raises ImportError
    recorder_works.cache_clear()
    assert not recorder_works()
    yield
    recorder_works.cache_clear()


@pytest.mark.usefixtures("other_torch")
@pytest.mark.parametrize("function", [in_place, of_derivatives, of_many_outputs, of_rows, curve])
def test_torchs_own_tracer_stands_in_for_the_recorder(function):
    x, other = torch.tensor([[0.3, -0.2, 0.5], [-0.1, 0.7, 0.2]], dtype=torch.float64).unbind()
    graph = trace(function, x)
    torch.testing.assert_close(graph(other), function(other))
    assert all({"val", "device"} <= node.meta.keys() for node in graph.graph.find_nodes(op="placeholder"))
    assert all({"val", "device"} <= node.meta.keys() for node in graph.graph.nodes if node.op == "get_attr")


@pytest.mark.usefixtures("other_torch")
def test_torchs_own_tracer_refuses_branches_and_detaches_parameters():
    with pytest.raises(ValueError, match="on, a latent value"):
        trace(lambda x: x if x.sum() > 0 else -x, torch.ones(3))
    layer = torch.nn.Linear(3, 2)
    graph = trace(lambda x: layer(x), torch.ones(3))
    assert not graph(torch.zeros(3)).requires_grad
    assert all(not p.requires_grad for p in graph.parameters())


@native_code
@pytest.mark.usefixtures("other_torch")
def test_models_become_native_code_by_torchs_own_tracer():
    layer = torch.nn.Linear(3, 2).requires_grad_()

    def model():
        Q = pyro.sample("Q", StiefelUniform(4, 2))
        scale = pyro.sample("scale", dist.HalfNormal(torch.tensor(1.0)))
        pyro.sample("y", dist.Normal(Q @ layer.weight * scale, 1.0).to_event(2), obs=torch.ones(4, 3))

    run = OHMC(model).prepare(2, 50, None)
    run.advance()
    run.policy.make(run.state)
    assert run.transitions[-1].graph.backend == "native"


def test_nodes_have_the_shapes_of_their_values():
    graph = trace(of_many_outputs, torch.ones(3, dtype=torch.float64))
    (total,) = (node for node in graph.graph.nodes if node.target == torch.ops.aten.add.Tensor)
    value = total.meta["val"]
    assert (value.shape, value.stride(), value.dtype) == ((3, 3), (3, 1), torch.float64)
    assert total.meta["device"] == torch.device("cpu")


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x if x.sum() > 0 else -x, id="branch"),
        pytest.param(lambda x: x * x.max().item(), id="number"),
        pytest.param(lambda x: x if torch.equal(x, DATA[0]) else -x, id="comparison"),
        pytest.param(lambda x: x * torch.randn(()).item(), id="random number"),
        pytest.param(lambda x: _written(x), id="through another view"),
        pytest.param(lambda x: x * _drawn(), id="random number through another view"),
    ],
)
def test_numbers_that_depend_on_inputs_are_refused(function):
    with pytest.raises(ValueError, match="on, a latent value"):
        trace(function, torch.ones(3))


def _written(x):
    buffer = torch.zeros(3)
    whole = buffer.view(3)
    buffer[:2] = x[:2]
    return x * whole.sum().item()


def _drawn():
    buffer = torch.zeros(3)
    first = buffer[0]
    buffer.normal_()
    return first.item()


def test_a_write_hides_only_what_shares_its_storage():
    """Numbers that are the same for all inputs stay known after something else was written to."""

    def function(x):
        buffer, other = torch.zeros(3), torch.arange(3.0)
        buffer[0] = x[0]
        other[1:] = 5.0
        buffer.scatter_(0, torch.tensor([2]), x[:1])
        return buffer * other.sum().item() * DATA.max().item()

    x = torch.tensor([2.0, 3.0, 4.0])
    assert torch.equal(trace(function, torch.ones(3))(x), function(x))
    outer = torch.zeros(3)
    inner = outer[:2]

    def through_a_view_that_was_there(x):
        outer[0] = x[0]
        return x * inner.sum().item()

    with pytest.raises(ValueError, match="on, a latent value"):
        trace(through_a_view_that_was_there, torch.ones(3))


def test_numbers_that_are_the_same_for_all_inputs_are_constants():
    graph = trace(lambda x: x * DATA.max().item() if (DATA >= 0).all() else x, torch.ones(3))
    assert torch.equal(graph(torch.full((3,), 2.0)), torch.full((3,), 10.0))


class Strange(torch.Tensor):
    pass


def test_tensors_with_rules_of_their_own_are_refused():
    """Their results are wrapped without being recorded, and would be constants."""
    strange = torch.ones(3).as_subclass(Strange)
    with pytest.raises(ValueError, match="tensors of the class Strange"):
        trace(lambda x: (strange * x).as_subclass(torch.Tensor), torch.ones(3))


def test_parameters_do_not_ask_for_gradients():
    """Else every value that a graph gives would keep all that it came from."""
    layer = torch.nn.Linear(3, 2)

    def gradient(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(layer(leaf).sin().sum(), leaf)[0]

    x = torch.randn(3)
    graph = trace(gradient, x.clone())
    assert not graph(x).requires_grad
    with torch.no_grad():
        layer.weight.mul_(2)  # they are the parameters all the same
    torch.testing.assert_close(graph(x), gradient(x))


def test_random_numbers_of_a_generator_are_drawn_at_each_call():
    generator = torch.Generator().manual_seed(0)
    graph = trace(lambda x: x + torch.randn(3, generator=generator), torch.zeros(3))
    generator.manual_seed(1)
    found = graph(torch.zeros(3))
    assert torch.equal(found, torch.randn(3, generator=torch.Generator().manual_seed(1)))


def test_cumulative_products_of_integers_and_into_tensors():
    def function(x):
        counts = torch.tensor([100, 100, 100], dtype=torch.int8).cumprod(0)
        within = torch.tensor([True, True, False]).cumprod(-1)
        return counts * x, 1 - within, torch.cumprod(x, 0, out=torch.empty(3))

    x = torch.tensor([1.0, 2.0, 3.0])
    for found, expected in zip(trace(function, torch.ones(3))(x), function(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_intermediate_values_are_not_kept():
    seen = []

    def function(x):
        large = x.exp()
        seen.append(weakref.ref(large))
        return large.sum()

    graph = trace(function, torch.ones(3))
    assert seen[0]() is None
    assert graph is not None


def test_a_tangent_of_the_derivative_of_ldexp():
    """Torch's own ends the process when it is traced."""
    exponent = torch.tensor([1, 0, -2])

    def function(x, tangent):
        return torch.func.jvp(torch.func.grad(lambda x: torch.ldexp(x, exponent).sin().sum()), (x,), (tangent,))

    x, tangent = torch.randn(2, 3)
    scale = 2.0**exponent
    expected = scale * (scale * x).cos(), -scale.square() * (scale * x).sin() * tangent
    torch.testing.assert_close(trace(function, x, tangent)(x, tangent), expected)
