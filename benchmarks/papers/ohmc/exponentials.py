"""The claim of the OHMC paper that matrix exponentials fail at larger steps, in numbers.

    python -m benchmarks.papers.ohmc.exponentials [--chains 1000] [--small]

Trajectories begin at exact draws of the mixture (`benchmarks.papers.ohmc.mixture`, σ = 0.3) and have 20 leapfrog steps;
only the movement of Q differs:

- "exponentials" is the geodesic by two matrix exponentials as Byrne & Girolami (2013) and the paper's equation 7 print
  it, with nothing done about rounding;
- "GHMC" is this package's: the same formula, and a Newton–Schulz step and a projection after it;
- "OHMC" is the Cayley transform, with the momentum and energy of this package.

A row has the median and the largest max|QᵀQ − I| at the end, the mean acceptance probability (0 where the energy is not
finite), and the share of trajectories that end with |QᵀQ − I| above 1e-6 or not finite: these are off the manifold,
whatever the test of Metropolis says of them.
"""

import numpy as np
import torch

from benchmarks.arguments import count, without_effect
from benchmarks.papers.ohmc.mixture import Matrices
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import formatted, show
from pyro_manifold.manifolds import Stiefel, cayley_flow, geodesic_flow

SIGMA, STEPS = 0.3, 20
STEP_SIZES = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
OFF = 1e-6
COLUMNS = ("matrices", "movement of Q", "ε", "orthonormality, median", "largest", "acceptance", "off the manifold")


def exponentials(point, velocity, time):
    """The geodesic as it is printed."""
    p = point.shape[-1]
    inner, square = point.mT @ velocity, velocity.mT @ velocity
    identity = torch.eye(p, dtype=point.dtype).expand_as(square)
    generator = torch.cat([torch.cat([inner, -square], -1), torch.cat([identity, inner], -1)], -2)
    moved = torch.cat([point, velocity], -1) @ torch.linalg.matrix_exp(time * generator)
    unwind = torch.linalg.matrix_exp(-time * inner)
    return moved[..., :p] @ unwind, moved[..., p:] @ unwind


FLOWS = {"exponentials": exponentials, "GHMC": geodesic_flow, "OHMC": cayley_flow}


def momentum(flow, Q):
    """A draw whose energy is that of `kinetic`."""
    Z = torch.randn_like(Q)
    if flow is not cayley_flow:
        return Stiefel().tangent_projection(Q, Z)
    inner = Q.mT @ Z
    return Z - Q @ inner + Q @ (inner - inner.mT) / 2 / 2**0.5


def kinetic(flow, Q, r):
    """½‖r‖², and for the Cayley transform ½‖Qᵀr‖² besides."""
    energy = r.square().sum((-2, -1)) / 2
    return energy + (Q.mT @ r).square().sum((-2, -1)) / 2 if flow is cayley_flow else energy


def gradients(matrices, Q, v):
    """Return the gradient of the log density, along the manifold for Q."""
    leaves = Q.detach().requires_grad_(), v.detach().requires_grad_()
    by_Q, by_v = torch.autograd.grad(matrices.log_density(*leaves).sum(), leaves)
    return Stiefel().tangent_projection(Q, by_Q), by_v


def trajectories(matrices, flow, Q, v, step_size, steps):
    """Orthonormality and acceptance probability of each trajectory, ``(chains,)``."""
    r, w = momentum(flow, Q), torch.randn_like(v)

    def energy():
        return kinetic(flow, Q, r) + w.square().sum(-1) / 2 - matrices.log_density(Q, v)

    before = energy()
    for _ in range(steps):
        by_Q, by_v = gradients(matrices, Q, v)
        r, w = r + step_size / 2 * by_Q, w + step_size / 2 * by_v
        Q, r = flow(Q, r, step_size)
        v = v + step_size * w
        by_Q, by_v = gradients(matrices, Q, v)
        r, w = r + step_size / 2 * by_Q, w + step_size / 2 * by_v
    acceptance = (before - energy()).clamp(max=0).exp().nan_to_num(nan=0.0)
    return Stiefel().membership_error(Q), acceptance


def row(n, name, step_size, chains, steps):
    torch.manual_seed(0)
    matrices = Matrices(n, SIGMA)
    Q, v = map(torch.as_tensor, matrices.factors(matrices.exact(np.random.default_rng(0), chains)))
    errors, acceptance = trajectories(matrices, FLOWS[name], Q, v, step_size, steps)
    off = 100 * float((errors > OFF).double().mean())
    figures = formatted(".0e .0e .3f", *map(float, (errors.median(), errors.max(), acceptance.mean())))
    return [f"V({n},2)", name, step_size, *figures, f"{off:.1f} %"]


def main(argv=None):
    small = switch("V(3,2), two step sizes and few chains")
    parser = parser_of(__doc__, chains=option(1000, type=count), steps=option(STEPS, type=count), small=small)
    arguments = parser.parse_args(argv)
    set_up()
    widths, step_sizes, chains = (2, 3), STEP_SIZES, arguments.chains
    if arguments.small:
        without_effect(parser, arguments, ("chains",), "with --small")
        widths, step_sizes, chains = (3,), (0.05, 0.4), 20
    settings = [(n, name, step) for n in widths for step in step_sizes for name in FLOWS]
    show(COLUMNS, (row(*setting, chains, arguments.steps) for setting in settings))


if __name__ == "__main__":
    main()
