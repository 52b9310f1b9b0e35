"""The samplers of the robot arm: MSD, and Hamiltonian Monte Carlo with fresh and with persistent momenta."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro
import torch

from benchmarks.papers.msd.robot_arm_model import SMALL, descended, flatten, model, small_weights
from benchmarks.stored import write_whole
from pyro_manifold.infer import MCMC, MSD, OHMC

RESULTS = Path("results/robot_arm")
PERSISTENCE = 0.95
PAPER = {"HMC30": "1.314 ± 0.074", "HMC100": "1.167 ± 0.044", "MSD": "1.161 ± 0.023"}
"""Test errors in the paper, mean and standard deviation over its ten runs."""
OUTPUT, PARAMETERS = "y", ("hidden_bias", "hidden_to_output", "input_to_hidden", "output_bias")


def hmc(step_size, num_steps, persistence=0.0):
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False, "trajectory_jitter": 0}
    return OHMC(model, step_size=step_size, num_steps=num_steps, persistence=persistence, **fixed)


def own_target(step_size, **options):
    """MSD with the target of the paper, the posterior times √|G|."""
    return MSD(model, step_size=step_size, persistence=PERSISTENCE, target="jeffreys", **options)


SAMPLERS = {
    "MSD": lambda step: MSD(model, step_size=step, persistence=PERSISTENCE),
    "MSD, Jeffreys": own_target,
    "HMC30": lambda step: hmc(step, 30),
    "HMC100": lambda step: hmc(step, 100),
    "HMC30, persistent": lambda step: hmc(step, 30, persistence=PERSISTENCE),
    "HMC100, persistent": lambda step: hmc(step, 100, persistence=PERSISTENCE),
}
"""Kernels by name, as functions of ε."""
WEIGHTED = {
    "MSD, Jeffreys, 10 I": lambda step: own_target(step, metric_scale=dict.fromkeys(PARAMETERS, 10.0)),
    "MSD, Jeffreys, half G": lambda step: own_target(step, metric_scale={OUTPUT: 0.5}),
}
"""Other weights of I and of G in the metric, which the paper allows for stability."""
STEP_SIZES = {"MSD": 0.09, "MSD, Jeffreys": 0.1} | dict.fromkeys(list(SAMPLERS)[2:], 0.00025)
"""ε as `benchmarks.papers.msd.robot_arm_steps` finds them."""
STARTS = {
    "descended": descended,
    "small": lambda weights, _: weights,
    "zero": lambda weights, _: {name: torch.zeros_like(value) for name, value in weights.items()},
    "prior": lambda weights, _: {name: value / SMALL for name, value in weights.items()},
}
"""Initial values as functions of small weights and the data; from zero, runs differ by their momenta alone."""


class Runs(NamedTuple):
    """Results of a sampler's runs.

    Attributes:
        draws: the draws that were not dropped, flat, ``(runs, draws, 42)``.
        rejections: share of trajectories rejected (not followed, for MSD), ``(runs,)``.
        divergences: ``(runs,)``.
        energy_error: mean absolute energy error of the trajectories that were followed, ``(runs,)``.
    """

    draws: np.ndarray
    rejections: np.ndarray
    divergences: np.ndarray
    energy_error: np.ndarray


def advance(kernel, arm, start, dropped, kept):
    """The chains of a vectorised `MCMC` from given starts."""
    (runs,) = {len(value) for value in start.values()}
    start = start if runs > 1 else {name: value[0] for name, value in start.items()}
    mcmc = MCMC(kernel, kept, dropped, initial_params=start, num_chains=runs, disable_progbar=True)
    mcmc.run(arm.x_train, arm.y_train)
    return mcmc


def sample(name, arm, runs, draws, dropped, step_size, start, seed):
    """Independent runs, whose starts are common to all samplers; the first draws are dropped."""
    weights = STARTS[start](small_weights(runs, seed), arm)
    pyro.set_rng_seed(seed)
    kernel = (SAMPLERS | WEIGHTED)[name](step_size)
    mcmc = advance(kernel, arm, weights, dropped, draws - dropped)
    told = mcmc.get_extra_fields(group_by_chain=True)
    followed = told["accepted"].double()
    errors = told["energy_error"].abs().nan_to_num(posinf=0.0) * followed
    return Runs(
        flatten(mcmc.get_samples(group_by_chain=True), 2).numpy().astype(np.float32),
        (1 - followed.mean(1)).numpy(),
        told["diverging"].sum(1).numpy(),
        (errors.sum(1) / followed.sum(1)).numpy(),
    )


def sample_once(name, arm, *, runs=10, draws=3000, dropped=1000, step_size=None, start="descended", seed=0):
    """`sample` of the original data, kept in results/: tables and figures can be made again without sampling."""
    settings = (runs, draws, dropped, step_size or STEP_SIZES[name], start, seed)
    label = "-".join(str(value) for value in (name.replace(", ", "-"), *settings))
    path = RESULTS / f"robot_arm-{label}.npz"
    if not path.exists():
        runs = sample(name, arm, *settings)
        write_whole(path, lambda file: np.savez_compressed(file, **runs._asdict()))
    try:
        with np.load(path) as kept:
            return Runs(**kept)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{path} is damaged ({error}): delete it.") from error
