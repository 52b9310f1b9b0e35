"""Posteriors of the ionosphere and of the P-splines by long runs of NumPyro NUTS, kept under results/.

    python -m benchmarks.papers.variational.truth

prints, for each way to discretise, errors and test log-likelihood over the folds, and the worst R-hat and ESS.
"""

from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.papers.variational.problems import evaluate, evaluate_spline, ionosphere_folds, spline_data
from benchmarks.papers.variational.splines import (
    COEFFICIENTS,
    INFLATION,
    INVERSE_GAMMA,
    OUTLIERS,
    PRIOR_VARIANCE,
    WEIBULL,
)
from benchmarks.peers import numpyro
from benchmarks.tables import show

CACHE = Path("results") / "variational"
CHAINS, WARMUP, DRAWS = 4, 1000, 2500


def numpyro_logistic(x, y):
    """``problems.logistic`` for NumPyro."""
    import numpyro
    import numpyro.distributions as dist

    prior = dist.Normal(0.0, PRIOR_VARIANCE**0.5).expand([x.shape[-1]]).to_event(1)
    coefficients = numpyro.sample("coefficients", prior)
    numpyro.sample("y", dist.Bernoulli(logits=x @ coefficients), obs=y)


def numpyro_spline(x, y):
    """``splines.model`` for NumPyro."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    persistence = numpyro.sample("persistence", dist.Uniform(-1.0, 1.0))
    prior_variance = numpyro.sample("prior_variance", dist.Weibull(*reversed(WEIBULL)))
    noise_variance = numpyro.sample("noise_variance", dist.InverseGamma(*INVERSE_GAMMA))
    places = jnp.arange(COEFFICIENTS)
    powers = persistence ** jnp.clip(places[:, None] - places, 0).astype(float)
    columns = jnp.ones(COEFFICIENTS).at[0].set((1 - persistence**2) ** -0.5)
    prior = dist.MultivariateNormal(0.0, scale_tril=jnp.tril(powers * columns * prior_variance**0.5))
    mean = x @ numpyro.sample("coefficients", prior)
    usual, outlying = (dist.Normal(mean, size * noise_variance**0.5).log_prob(y) for size in (1.0, INFLATION))
    numpyro.factor("y", jnp.logaddexp(jnp.log1p(-OUTLIERS) + usual, jnp.log(OUTLIERS) + outlying).sum())


def sample(model, x, y):
    """Draws ``{site: (chains, draws, ...)}``, and seconds and divergences of the run."""
    problem = SimpleNamespace(numpyro_model=lambda: model(x.numpy(), y.numpy()))
    options = {"chain_method": "sequential", "target_accept_prob": 0.9}
    run = numpyro(problem, chains=CHAINS, warmup=WARMUP, draws=DRAWS, **options)
    return run.draws | {name: np.array(run.figures[name]) for name in ("seconds", "divergences")}


def truth(name, model, x, y):
    """Draws ``{site: (draws, ...)}`` of all chains, and the worst R-hat and ESS; from the cache if there."""
    path = CACHE / f"{name}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **sample(model, x, y))
    with np.load(path) as stored:
        stored = dict(stored)
    figures = {"seconds": float(stored.pop("seconds")), "divergences": int(stored.pop("divergences"))}
    figures |= diagnostics(stored)
    return {site: torch.as_tensor(value).flatten(0, 1) for site, value in stored.items()}, figures


def diagnostics(draws):
    """Worst R-hat and smallest effective sample size over all entries of all sites."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    flat = [value.reshape(*value.shape[:2], -1) for value in draws.values()]
    return {
        "rhat": max(float(np.max(split_gelman_rubin(value))) for value in flat),
        "ess": min(float(np.min(effective_sample_size(value))) for value in flat),
    }


def moments_apart(draws, truth):
    """Distances of an approximation's moments from the posterior's, both by draws ``(draws, n)``.

    Root mean square over coordinates of the means' difference in posterior standard deviations, and the median over
    coordinates of the ratio of standard deviations, approximation to posterior.
    """
    apart = (draws.mean(0) - truth.mean(0)) / truth.std(0)
    return float(apart.square().mean().sqrt()), float((draws.std(0) / truth.std(0)).median())


def ionosphere_truth(discretise="all", baseline="most frequent"):
    """``(split, draws of the coefficients, figures)`` of each fold."""
    results = []
    for k, split in enumerate(ionosphere_folds(discretise, baseline)):
        name = f"ionosphere {discretise} {baseline} {k}".replace(" ", "_")
        draws, figures = truth(name, numpyro_logistic, split.x_train, split.y_train)
        results.append((split, draws["coefficients"], figures))
    return results


def spline_truth():
    """``(split, true means at the test points, draws, figures)`` of the simulated P-splines."""
    split, mean = spline_data()
    draws, figures = truth("spline_autoregressive", numpyro_spline, split.x_train, split.y_train)
    return split, mean, draws, figures


def ionosphere_row(discretise, baseline):
    """A table's row: means over folds, and the worst diagnostics."""
    results = ionosphere_truth(discretise, baseline)
    train = np.mean([evaluate(draws, split.x_train, split.y_train) for split, draws, _ in results], 0)
    test = np.array([evaluate(draws, split.x_test, split.y_test) for split, draws, _ in results])
    figures = [figures for _, _, figures in results]
    columns = sorted({split.x_train.shape[-1] - 1 for split, _, _ in results})
    return [
        discretise, baseline, "–".join(map(str, dict.fromkeys((columns[0], columns[-1])))), f"{100 * train[0]:.2f}",
        f"{100 * test[:, 0].mean():.2f} ± {100 * test[:, 0].std(ddof=1) / len(test) ** 0.5:.2f}", f"{train[1]:.3f}",
        f"{test[:, 1].mean():.3f} ± {test[:, 1].std(ddof=1) / len(test) ** 0.5:.3f}",
        f"{max(f['rhat'] for f in figures):.4f}", f"{min(f['ess'] for f in figures):.0f}",
        f"{sum(f['divergences'] for f in figures)}", f"{sum(f['seconds'] for f in figures):.0f}",
    ]  # fmt: skip


COLUMNS = (
    "cuts", "baseline", "indicators", "training error %", "test error %", "training log-lik.", "test log-lik.", "R-hat",
    "min ESS", "divergences", "seconds",
)  # fmt: skip


def main():
    torch.set_num_threads(1)
    show(COLUMNS, (ionosphere_row(*way) for way in product(("all", "within"), ("most frequent", "lowest"))))
    split, mean, draws, figures = spline_truth()
    train = evaluate_spline(draws, split.x_train, split.y_train)
    test = evaluate_spline(draws, split.x_test, split.y_test, truth=mean)
    print(f"\nP-splines: training RMSE {train[0]:.3f}, RMSE to the true curve {test[0]:.3f},")
    print(f"log density training {train[1]:.3f}, test {test[1]:.3f}; {figures}")
    for site in ("persistence", "prior_variance", "noise_variance"):
        print(f"{site}: {draws[site].mean():.3f} ± {draws[site].std():.3f}")


if __name__ == "__main__":
    main()
