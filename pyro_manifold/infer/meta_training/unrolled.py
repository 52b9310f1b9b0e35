"""Unrolled chains, whose draws are differentiable with respect to the sampler's weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyro_manifold.density.initial_values import finite_values, initial_values
from pyro_manifold.density.seeds import seed_of
from pyro_manifold.infer.mcmc.hmc.mechanics import EuclideanMechanics
from pyro_manifold.infer.mcmc.sgmcmc.meta.coordinate_update import ELEMENTS_AT_ONCE, CoordinateUpdate, in_parts
from pyro_manifold.infer.mcmc.sgmcmc.meta.energy import EnergyInput
from pyro_manifold.infer.mcmc.sgmcmc.meta.sampler import Coefficients, Learned, MetaSampler, Scaling
from pyro_manifold.infer.mcmc.sgmcmc.meta.step import learned_step
from pyro_manifold.infer.mcmc.sgmcmc.nnsghmc import NNSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings, StochasticState
from pyro_manifold.infer.mcmc.transitions.problem import Problem
from pyro_manifold.infer.mcmc.transitions.states import Blocks
from pyro_manifold.infer.meta_training.settings import MetaTask, TrainingSettings


class Unrolled:
    """Unrolled chains on one posterior.

    Args:
        task: training task.
        training_settings: settings of the training.
        index: number of the task, for seeds.

    Raises:
        ValueError: if the model has no site to which the learned dynamics apply.

    Attributes:
        dimension: number of coordinates.
        data_size: number of data.
        steps: number of steps in this round.
        chosen: chains that enter the in-chain loss.
    """

    def __init__(self, task: MetaTask, training_settings: TrainingSettings, index: int) -> None:
        self._training_settings = training_settings
        kernel = NNSGHMC(
            task.model,
            sampler=MetaSampler.random(
                1, random=torch.Generator().manual_seed(0), step_size=training_settings.step_size
            ),
            step_size=training_settings.step_size,
            data_size=task.data_size,
            own_minibatches=training_settings.own_minibatches,
            init_strategy=task.init_strategy,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(training_settings.seed, 2, index))
            run = kernel.prepare(
                training_settings.chains, 0, None, *task.args, data_loader=task.data_loader, **task.kwargs
            )
        self._problem: Problem = run.problem
        self._mechanics, self._metrics = kernel.motion_of(run.problem)
        self._flat = [block for block, move in self._mechanics.items() if isinstance(move, EuclideanMechanics)]
        if not self._flat:
            raise ValueError(
                f"Task {index} has no continuous site outside of manifolds, to which the learned dynamics apply: "
                "leave it out, or add such a site."
            )
        self._scaling = kernel.scaling_of(run.problem)
        self.dimension, self.data_size = self._scaling.dimension, self._scaling.data_size
        self._kernel, self._past = kernel, torch.empty(0)
        self.begin(seed_of(training_settings.seed, 3, index))
        self.chosen = torch.arange(min(training_settings.chains_within, training_settings.chains))

    def begin(self, seed: int) -> None:
        """Initialise new chains; the seed determines all random numbers until the next call."""
        problem = self._problem
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            values = initial_values(problem.target, problem.chains, None)
            values = finite_values(problem.target, values, True, problem.batched)
        problem.random.manual_seed(seed)
        self._choice = torch.Generator().manual_seed(seed)
        self._batch = seed % 2**30  # each round starts at another position in the order of batches
        position = problem.layout.pack(values)
        noise = self._mechanics.noise(position, problem.random)
        momentum = self._mechanics.momentum_from(noise, position, self._metrics)
        energy, slopes = self._problem.at_step(self._batch)(position)
        state = StochasticState(position, momentum, energy, slopes, 0, {}, {}, 0)
        self._state = self._kernel.begin(state, problem)
        self.steps = 0
        first = self._of_flat(position)
        self._past = first.new_empty(problem.chains, 0, first.shape[1])

    def choose_chains(self) -> None:
        """Choose new chains for the in-chain loss."""
        count = min(self._training_settings.chains_within, self._problem.chains)
        self.chosen = torch.randperm(self._problem.chains, generator=self._choice)[:count]

    def energies(self, sampler: MetaSampler, steps: int) -> Tensor:
        """Run steps and return the energies of all chains, without the first tenth of the steps."""
        found, live = [], self._alike(sampler)
        with torch.no_grad():
            for _ in range(steps):
                self._advance(live)
                found.append(self._state.energy)
        return torch.cat(found[steps // 10 :])

    def window(self, sampler: MetaSampler) -> tuple[Tensor, Tensor]:
        """Run one window of steps that are differentiable with respect to the sampler's weights.

        Returns:
            Thinned draws of all chains, and ∇U at these, ``(draws, chains, d)`` each.
        """
        draws, gradients = [], []
        live = self._alike(sampler)
        with torch.enable_grad():
            for step in range(1, self._training_settings.truncation + 1):
                self._advance(live)
                if step % self._training_settings.thinning == 0:
                    draws.append(self._of_flat(self._state.position))
                    gradients.append(self._of_flat(self._state.gradient))
        position, momentum = (
            {block: x.detach() for block, x in part.items()} for part in (self._state.position, self._state.momentum)
        )
        self._state = self._state._replace(position=position, momentum=momentum)
        return torch.stack(draws), torch.stack(gradients)

    def remember(self, draws: Tensor) -> Tensor:
        """Return the earlier draws of this round, ``(chains, draws, d)``, and append these, ``(draws, chains, d)``."""
        past = self._past
        self._past = torch.cat([past, draws.transpose(0, 1)], 1)
        return past

    def _alike(self, sampler: MetaSampler) -> Learned:
        """Convert the sampler to the dtype and device of the posterior, differentiated in part of the coordinates."""
        alike = sampler.to(next(iter(self._state.position.values())))
        return (
            alike
            if self._training_settings.share == 1
            else PartlyLive(alike, self._training_settings.share, self._choice)
        )

    def _advance(self, sampler: Learned) -> None:
        self.steps += 1
        self._state = learned_step(
            self._state,
            StepSettings(self._training_settings.step_size, 1.0, 0.1),
            self._mechanics.noise(self._state.position, self._problem.random),
            partial(self._held_constant, number=self._batch + self.steps),
            mechanics=self._mechanics,
            metrics=self._metrics,
            coordinate_update=CoordinateUpdate(sampler, self._scaling),
            energy_input=EnergyInput(*sampler.ratios(self._scaling)),
        )._replace(steps=self.steps)

    def _held_constant(self, position: Blocks, number: int) -> tuple[Tensor, Blocks]:
        return self._problem.at_step(number)({block: x.detach() for block, x in position.items()})

    def _of_flat(self, blocks: Blocks) -> Tensor:
        return torch.cat([blocks[block] for block in self._flat], 1)


class PartlyLive:
    r"""Sampler whose coefficients are differentiated in a random subset of coordinates only, at lower cost.

    A new subset is chosen at each step. Derivatives are weighted by the inverse of its share, so that the gradient is
    unbiased. Values are those of the sampler.

    Args:
        sampler: the sampler that is trained.
        share: fraction of the coordinates, in (0, 1].
        random: random number generator for the choice.
    """

    def __init__(self, sampler: MetaSampler, share: float, random: torch.Generator) -> None:
        self._sampler, self._share, self._random = sampler, share, random
        self.hidden, self.is_live = sampler.hidden, sampler.is_live

    def ratios(self, scaling: Scaling) -> tuple[float, float]:
        """Return the ratios of `MetaSampler.ratios`."""
        return self._sampler.ratios(scaling)

    def coefficients(self, energy: Tensor, momentum: Tensor, gradient: Tensor, scaling: Scaling) -> Coefficients:
        """Compute the coefficients as in `MetaSampler.coefficients`."""
        count = momentum.shape[1]

        def of(r: Tensor, g: Tensor) -> Coefficients:
            return self._sampler.coefficients(energy, r, g, scaling)

        with torch.no_grad():
            values = in_parts(of, ELEMENTS_AT_ONCE // self.hidden, momentum, gradient)
        if not torch.is_grad_enabled():
            return Coefficients(*values)
        chosen = torch.randperm(count, generator=self._random)[: max(1, round(self._share * count))].to(momentum.device)
        live = of(momentum[:, chosen], gradient[:, chosen])
        weight = count / len(chosen)
        return Coefficients(
            *[x.index_add(1, chosen, weight * (y - y.detach())) for x, y in zip(values, live, strict=True)]
        )
