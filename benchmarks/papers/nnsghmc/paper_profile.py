"""Speed of the learned sampler along a run of the paper's budget, beside SGHMC: `mnist --paper --profile`.

Momenta that lose the fraction εD in a step follow the gradient of the mean energy of an image at the rate γQ²/(εD) a
step, with ε = √(γ/N); those of SGHMC at the rate γ/friction. The energy falls by the rate times the squared gradient,
summed over coordinates, so "friction of the gradient" and "rate of descent" are means over all coordinates of all
chains, weighted by squared gradients. Rates γ are those of the store, and twice these.

`mnist --paper --gradients`: how large gradients are in the problem of training and in those of use, in the fixed unit.
"""

import math

import pyro
import torch

from benchmarks.papers.nnsghmc.digits import PROBLEMS, network, posterior
from benchmarks.papers.nnsghmc.paper_runs import BETWEEN, RATES, rate_of, settings, tiny_weights
from benchmarks.papers.nnsghmc.paper_training import GRADIENTS, RATE, WIDTH, broad_weights
from pyro_manifold.infer import SGHMC

TIMES = (100, 200, 300, 500, 1000, 2000)
HEADINGS = (
    *("rate", "steps", "energy of an image", "median of Q", "median friction of a step", "friction of the gradient"),
    *("rate of descent", "of SGHMC, friction 0.1", "temperature"),
)


def profile(problem, sampler, train, store, chains, steps):
    """Rows for some times of two runs of NNSGHMC, at the rate of the store and at twice this rate."""
    rate, of_sghmc = rate_of(problem, "NNSGHMC", store), rate_of(problem, "SGHMC, friction 0.1", store) / 0.1
    for each in (rate, 2 * rate):
        for done, *numbers, hot in _run(problem, each, sampler, train, chains, steps):
            yield [f"{each:.3g}", done, *(f"{float(number):.2f}" for number in (*numbers, of_sghmc, hot))]


def _run(problem, rate, sampler, train, chains, steps):
    sizes, activation, _ = PROBLEMS[problem]
    cases = len(train[0])
    pyro.set_rng_seed(1)
    make, options = settings("NNSGHMC", rate, sampler, cases)
    model = posterior(network(sizes, activation), *train)
    kernel = make(model, **options, num_steps=BETWEEN, init_strategy=tiny_weights)
    run = kernel.prepare(chains, 0, None)
    scaling = kernel.scaling_of(run.problem)
    energy_of = kernel.step_on(run.problem).keywords["energy_input"]
    for done in range(BETWEEN, min(steps, TIMES[-1]) + 1, BETWEEN):
        run.advance()
        if done not in TIMES:
            continue
        state, (block,) = run.state, run.state.position
        unit = sampler.gradient_unit(state.memory[block].sqrt(), scaling)
        momentum, gradient = state.momentum[block], state.gradient[block] / unit
        found = sampler.to(momentum).coefficients(energy_of(state)[0], momentum, gradient, scaling)
        ε = options["step_size"](done)
        friction = ε * found.friction
        descent = cases * ε**2 * found.curl.square() / friction
        weights = gradient.square() / gradient.square().sum()
        numbers = found.curl.median(), friction.median(), (weights * friction).sum(), (weights * descent).sum()
        yield done, state.energy.mean() / cases, *numbers, momentum.square().mean()


OF_GRADIENTS = {
    "training": ((784, WIDTH, 10), torch.nn.ReLU, RATE, broad_weights),
    "ReLU": (*PROBLEMS["ReLU"][:2], RATES["ReLU"]["SGHMC"], tiny_weights),
    "sigmoid": (*PROBLEMS["sigmoid"][:2], RATES["sigmoid"]["SGHMC"] / 16, tiny_weights),  # about the tuned one
}


def gradients(train, times, chains=4):
    """Rows of root mean squares of 70 times the gradient of a mean image, along a run of SGHMC with friction 0.01."""
    cases = len(train[0])
    for name, (sizes, activation, rate, start) in OF_GRADIENTS.items():
        pyro.set_rng_seed(0)
        step = {"step_size": math.sqrt(rate / cases), "friction": 0.01, "integrator": "euler"}
        kernel = SGHMC(posterior(network(sizes, activation), *train), **step, num_steps=times[0], init_strategy=start)
        run, found = kernel.prepare(chains, 0, None), []
        for _ in times:
            run.advance()
            (gradient,) = run.state.gradient.values()
            found.append(f"{float((GRADIENTS / cases * gradient).square().mean().sqrt()):.3f}")
        yield [name, *found]
