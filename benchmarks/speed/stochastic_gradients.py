"""Time of a step of a stochastic-gradient kernel, compared with a plain step of SGD with the same network and batch.

    python -m benchmarks.speed.stochastic_gradients [--learned]

A network 784-300-300-10 on batches of 256 random images, float32, one thread: SGD with momentum on the plain network;
SGHMC, SGLD and NNSGHMC (ten hidden units) on it with normal priors; OSGHMC with the hidden layers orthogonal, and what
the matrix products and solutions of one drift of these layers cost alone. Then a network 784-20-10, one chain and 8
vectorised. ``--learned`` prints NNSGHMC beside SGHMC by Euler's scheme instead, on batches of 500 that a plate draws,
by a sampler that sees the energy, as in the tests of its paper. Each time is the fastest of several blocks of steps,
in seconds of the processor.
"""

import itertools
import time

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from benchmarks.image_classifier import posterior
from benchmarks.study import parser_of, set_up, switch
from benchmarks.tables import formatted, show
from benchmarks.timing import best_time, process_time
from pyro_manifold.infer import NNSGHMC, OSGHMC, SGHMC, SGLD, MetaSampler
from pyro_manifold.manifolds import cayley_flow
from pyro_manifold.nn import to_bayesian_

CASES, BATCH, STEPS, ROUNDS = 60_000, 256, 8, 12


def network(*sizes):
    layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    parts = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def images(size=BATCH):
    return torch.randn(size, 784), torch.randint(10, (size,))


def batches():
    return [images() for _ in range(4)]


def sgd_time(sizes):
    net = network(*sizes)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    data = batches()

    def steps():
        for k in range(STEPS):
            x, y = data[k % len(data)]
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()

    return best_time(steps, 4.0, time.process_time) / STEPS


def kernel_time(kernel, sizes, orthogonal=(), chains=1, **options):
    net = to_bayesian_(network(*sizes), orthogonal)

    def model(x, y):
        logits = net(x)
        with pyro.plate("data", CASES, subsample_size=len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    run = kernel(model, step_size=1e-6, num_steps=STEPS, **options).prepare(chains, 0, None, data_loader=batches())
    return best_time(run.advance, 4.0, time.process_time) / STEPS


def untrained(data_size=1):
    """A sampler that heats its momenta, for which the guard would end the run; a step takes no longer for that."""
    return {"sampler": MetaSampler.random(10, data_size=data_size), "guard": False}


def drift_time(shapes):
    points = [torch.linalg.qr(torch.randn(1, *shape))[0] for shape in shapes]
    momenta = [0.01 * torch.randn_like(point) for point in points]

    def drift():
        for point, momentum in zip(points, momenta, strict=True):
            cayley_flow(point, momentum - point @ (point.mT @ momentum), 1e-3)

    return best_time(drift, 4.0, time.process_time)


def learned():
    data, rows = images(CASES), []
    for sizes, chains in (((784, 300, 300, 10), 1), ((784, 40, 40, 10), 1), ((784, 40, 40, 10), 20)):
        model = posterior(to_bayesian_(network(*sizes), ()), *data, batch=500)
        kernels = ((NNSGHMC, untrained(CASES)), (SGHMC, {"integrator": "euler"}))
        made = [kernel(model, step_size=1e-6, num_steps=STEPS, **options) for kernel, options in kernels]
        advance = [kernel.prepare(chains, 0, None).advance for kernel in made]
        rounds = [[1e3 * process_time(each) / STEPS for each in advance] for _ in range(ROUNDS)]
        ours, plain = map(min, zip(*rounds, strict=True))
        rows.append(["-".join(map(str, sizes)), chains, *formatted(".1f .1f .2f", ours, plain, ours / plain)])
    show(["network", "chains", "NNSGHMC, ms", "SGHMC, ms", "ratio"], rows)


def main(argv=None):
    kinds = {"learned": switch("NNSGHMC beside SGHMC"), "short": switch("a kernel and a drift, to see that it runs")}
    arguments = parser_of(__doc__, **kinds).parse_args(argv)
    set_up(torch.float32)
    pyro.set_rng_seed(0)
    if arguments.learned:
        learned()
        return
    if arguments.short:
        milliseconds = [1e3 * seconds for seconds in (kernel_time(SGLD, (784, 20, 10)), drift_time([(784, 20)]))]
        show(["SGLD", "drift"], [[f"{value:.2f}" for value in milliseconds]])
        return
    large, small = (784, 300, 300, 10), (784, 20, 10)
    plain = sgd_time(large)
    drift = drift_time([(784, 300), (300, 300)])
    times = {
        "SGD with momentum, no priors": plain,
        "SGLD, normal priors": kernel_time(SGLD, large),
        "SGHMC, normal priors": kernel_time(SGHMC, large),
        "SGHMC, normal priors, euler": kernel_time(SGHMC, large, integrator="euler"),
        "NNSGHMC, normal priors": kernel_time(NNSGHMC, large, **untrained()),
        "SGHMC, normal priors, compiled": kernel_time(SGHMC, large, jit_compile=True),
        "one drift of the two orthogonal layers": drift,
        "OSGHMC, orthogonal hidden layers": kernel_time(OSGHMC, large, "hidden"),
        "OSGHMC, orthogonal hidden layers, euler": kernel_time(OSGHMC, large, "hidden", integrator="euler"),
    }
    print("## 784-300-300-10, batches of 256, one chain\n")
    bound = 1.3 * plain + 1.5 * drift
    rows = [
        [name, *formatted(".2f .2f .2f", 1e3 * seconds, seconds / plain, seconds / bound)]
        for name, seconds in times.items()
    ]
    show(["step", "ms", "by SGD", "by 1.3 SGD + 1.5 drifts"], rows)
    one, eight = (kernel_time(SGHMC, small, chains=chains) for chains in (1, 8))
    print(
        f"\n## 784-20-10, SGHMC\n\n1 chain {1e3 * one:.2f} ms, 8 chains {1e3 * eight:.2f} ms: {eight / one:.2f} times"
    )


if __name__ == "__main__":
    main()
