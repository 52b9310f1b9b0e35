"""Rate at which particles are wrongly said to be in a mode that no chain has met.

    python -m benchmarks.accuracy.modes.unvisited

Draws and particles are of one distribution, exact, with independent entries of a marginal. Chains are worth so many
independent draws each. Of a mode that they have not met, a share of the particles is 10 standard deviations away in one
entry. With `--karate 4`, for so many seeds: chains and particles of a probit eigenmodel of Zachary's karate club.
"""

import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.accuracy.modes.groups_of_chains import chains_of_one_mode
from benchmarks.study import option, read
from benchmarks.tables import show
from pyro_manifold.diagnostics import modes
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC

CHAINS, RUNS = 4, 4
Marginal = Callable[[Tensor], Tensor]


def student(degrees: float) -> Marginal:
    """Return the function from normal to t-distributed numbers of the same quantiles."""
    from scipy.special import ndtr, stdtrit

    return lambda x: x.sign() * torch.as_tensor(-stdtrit(degrees, ndtr(-x.abs().numpy()))).to(x)


MARGINALS: dict[str, Marginal] = {
    "normal": torch.clone, "t5": student(5), "Cauchy": student(1), "log-normal": torch.exp,
    "uniform": torch.special.ndtr,
}  # fmt: skip


def exact(marginal: Marginal, entries: int, draws: int, effective: int, particles: int) -> tuple[Tensor, Tensor]:
    """Chains and particles of one distribution, ``(chains, draws, entries)`` and ``(runs, particles, entries)``."""
    if effective == draws:
        chains = torch.randn(CHAINS, draws, entries)
    else:
        chains = chains_of_one_mode(CHAINS, effective, draws, entries)
    return marginal(chains), marginal(torch.randn(RUNS, particles, entries))


def elsewhere(chains: Tensor, particles: Tensor) -> float:
    return modes({"x": chains}, particles={"x": particles}).elsewhere


def with_another_mode(particles: Tensor, share: float, spread: Tensor) -> Tensor:
    moved = particles.clone()
    moved[:, : round(share * particles.shape[1]), 0] += 10 * spread
    return moved


def karate_club() -> Tensor:
    """Zachary's network, a symmetric matrix of zeros and ones."""
    import networkx

    return torch.as_tensor(networkx.to_numpy_array(networkx.karate_club_graph()) > 0).double()


def eigenmodel(adjacency: Tensor, rank: int = 2) -> None:
    """Links by a probit of an intercept and U diag(λ) Uᵀ (Hoff 2009)."""
    people = len(adjacency)
    U = pyro.sample("U", StiefelUniform(people, rank))
    values = pyro.sample("values", dist.Normal(0.0, people**0.5).expand([rank]).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 10.0))
    rows, columns = torch.triu_indices(people, people, 1)
    probits = intercept + ((U * values) @ U.mT)[rows, columns]
    linked = dist.Bernoulli(probs=torch.special.ndtr(probits).clamp(1e-12, 1 - 1e-12)).to_event(1)
    pyro.sample("linked", linked, obs=adjacency[rows, columns])


def modes_of_karate_club(seed: int) -> str:
    pyro.set_rng_seed(seed)
    mcmc = MCMC(OHMC(eigenmodel), 500, 500, num_chains=CHAINS, disable_progbar=True)
    smc = SMC(OHMC(eigenmodel), num_runs=RUNS, disable_progbar=True)
    for each in (mcmc, smc):
        each.run(karate_club())
    same = float((smc.get_samples()["values"].sign().sum(-1).abs() > 1).double().sum())
    return f"{modes(mcmc, particles=smc)}\nparticles with eigenvalues of one sign: {same:.0f} of 4096"


def main() -> None:
    options = read(
        __doc__, sets=100, entries=[1, 20, 400, 4000], draws=option(250, "of each of 4 chains"),
        effective=option(250, "independent draws' worth of each chain"), particles=option(256, "of each of 4 runs"),
        karate=option(0, metavar="SEEDS"),
    )  # fmt: skip
    torch.manual_seed(0)
    for seed in range(options.karate):
        warnings.simplefilter("ignore")
        print(f"seed {seed}", modes_of_karate_club(seed), sep="\n", flush=True)
    if options.karate:
        return

    def rows():
        for name, marginal in MARGINALS.items():
            for entries in options.entries:
                sets = max(1, options.sets if entries < 1000 else options.sets // 10)
                false, found = 0, dict.fromkeys((0.02, 0.3), 0)
                for _ in range(sets):
                    x, y = exact(marginal, entries, options.draws, options.effective, options.particles)
                    false += elsewhere(x, y) > 0
                    for share in found:
                        found[share] += elsewhere(x, with_another_mode(y, share, x[..., 0].std())) > share / 2
                yield [name, entries, f"{false} of {sets}", *[f"{count} of {sets}" for count in found.values()]]

    show(("marginal", "entries", "false alarms", "2 % elsewhere, found", "30 % elsewhere, found"), rows())


if __name__ == "__main__":
    main()
