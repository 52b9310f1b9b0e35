"""The samplers of the robot arm: MSD, and Hamiltonian Monte Carlo with fresh and with persistent momenta."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro

from benchmarks.geometry.robot_arm_model import descended, flatten, model, simulate, small_weights
from pyro_manifold.infer import MCMC, MSD, OHMC

RESULTS = Path("results/geometry")
MSD_STEP, HMC_STEP = 0.1, 0.0006
PERSISTENCE = 0.95
PAPER = {"HMC30": "1.314 ± 0.074", "HMC100": "1.167 ± 0.044", "MSD": "1.161 ± 0.023"}
"""Test errors in the paper; which number belongs to which sampler is our reading."""


def hmc(step_size, num_steps, jit_compile=True, persistence=0.0):
    return OHMC(
        model,
        step_size=step_size,
        num_steps=num_steps,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        trajectory_jitter=0,
        jit_compile=jit_compile,
        persistence=persistence,
    )


SAMPLERS = {
    "MSD": lambda step: MSD(model, step_size=step, persistence=PERSISTENCE),
    "MSD, Jeffreys": lambda step: MSD(model, step_size=step, persistence=PERSISTENCE, target="jeffreys"),
    "HMC30": lambda step: hmc(step, 30),
    "HMC100": lambda step: hmc(step, 100),
    "HMC30, persistent": lambda step: hmc(step, 30, persistence=PERSISTENCE),
    "HMC100, persistent": lambda step: hmc(step, 100, persistence=PERSISTENCE),
}
"""Kernels by name, as functions of ε."""
STEP_SIZES = {name: MSD_STEP if name.startswith("MSD") else HMC_STEP for name in SAMPLERS}
STARTS = {"descended": descended, "small": lambda weights, _: weights}


class Runs(NamedTuple):
    """What is kept of a sampler's runs.

    Attributes:
        draws: the draws that were not dropped, flat, ``(runs, draws, 42)``.
        acceptance: share of trajectories accepted (followed, for MSD), ``(runs,)``.
        divergences: ``(runs,)``.
        seconds: process time of all draws of all runs, compiling left out.
    """

    draws: np.ndarray
    acceptance: np.ndarray
    divergences: np.ndarray
    seconds: np.ndarray


def advance(kernel, arm, start, dropped, kept):
    """The chains of a vectorised `MCMC` from given starts, and the process time of their draws without set-up."""
    marks = []
    (runs,) = {len(value) for value in start.values()}
    mcmc = MCMC(
        kernel,
        kept,
        dropped,
        initial_params=start if runs > 1 else {name: value[0] for name, value in start.items()},
        num_chains=runs,
        hook_fn=lambda *_: marks.append(time.process_time()),
        disable_progbar=True,
    )
    mcmc.run(arm.x_train, arm.y_train)
    return mcmc, marks[-1] - marks[0]


def sample(name, data_seed, runs=10, draws=3000, dropped=1000, step_size=None, start="descended"):
    """Independent runs, whose starts are common to all samplers; the first draws are dropped."""
    arm = simulate(data_seed)
    weights = STARTS[start](small_weights(runs, data_seed), arm)
    pyro.set_rng_seed(data_seed)
    kernel = SAMPLERS[name](step_size or STEP_SIZES[name])
    mcmc, seconds = advance(kernel, arm, weights, dropped, draws - dropped)
    report = mcmc.diagnostics()
    return Runs(
        flatten(mcmc.get_samples(group_by_chain=True), 2).numpy().astype(np.float32),
        np.array(list(report["acceptance rate"].values())),
        np.array([len(found) for found in report["divergences"].values()]),
        np.array(seconds),
    )


def sample_once(name, data_seed, **options):
    """`sample`, kept in results/ so that tables and figures can be made again without sampling."""
    label = "-".join(str(value) for value in (name.replace(", ", "-"), data_seed, *options.values()))
    path = RESULTS / f"robot_arm-{label}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **sample(name, data_seed, **options)._asdict())
    with np.load(path) as kept:
        return Runs(**kept)
