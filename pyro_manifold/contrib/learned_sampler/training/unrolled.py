"""Unrolled chains, whose draws are differentiable with respect to the sampler's weights."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.contrib.learned_sampler import (
    ELEMENTS_AT_ONCE,
    NNSGHMC,
    WINDOW,
    Coefficients,
    CoordinateUpdate,
    EnergyInput,
    Learned,
    MetaSampler,
    Scaling,
    Window,
    have_left,
    in_parts,
    learned_step,
)
from pyro_manifold.contrib.learned_sampler.training.settings import MetaTask, TrainingSettings
from pyro_manifold.density import finite_values, initial_values, seed_of
from pyro_manifold.infer.mcmc.mechanics import EuclideanMechanics
from pyro_manifold.infer.mcmc.sgmcmc import StepSettings, StochasticState
from pyro_manifold.infer.mcmc.transitions import Blocks, Problem


class Draws(NamedTuple):
    """Draws of one window of steps.

    Attributes:
        position: thinned draws of all chains, ``(draws, chains, d)``.
        gradient: ∇U at these.
        heat: logarithm of the temperature of the momenta, averaged over the steps of the window, ``(chains,)``.
        left: chains that left the posterior in this window, ``(chains,)``.
    """

    position: Tensor
    gradient: Tensor
    heat: Tensor
    left: Tensor


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
        step_size: ε of this round.
        temperature: mean temperature of the last `WINDOW` steps or more, ``(chains,)``.
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
            per_chain_minibatches=training_settings.per_chain_minibatches,
            guard=False,
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
        self.step_size = training_settings.step_size
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
        self._state = self._first = self._kernel.begin(state, problem)
        self.temperature = self._heat = torch.zeros_like(energy)
        self._lowest = torch.full_like(energy, torch.inf)
        self._measured: list[tuple[Tensor, Tensor]] = []
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

    def window(self, sampler: MetaSampler) -> Draws:
        """Run one window of steps that are differentiable with respect to the sampler's weights.

        It ends before a step to values that are not finite, and chains that left the posterior begin again after it.
        """
        draws, gradients, heats, energies = [], [], [], []
        live = self._alike(sampler)
        with torch.enable_grad():
            for step in range(1, self._training_settings.truncation + 1):
                before = self._state
                self._advance(live)
                lost = ~self._is_finite()
                if bool(lost.any()):
                    self._state = before
                    break
                heats.append(self._temperature().log())
                energies.append(self._state.energy)
                if step % self._training_settings.thinning == 0:
                    draws.append(self._of_flat(self._state.position))
                    gradients.append(self._of_flat(self._state.gradient))
            if not heats:  # the first step is lost already
                heats, energies = [self._temperature().log()], [self._state.energy]
        heat = torch.stack(heats)
        left = lost | self._judged(heat.detach().exp(), torch.stack(energies))
        self._state = self._state._replace(
            position=_detached(self._state.position), momentum=_detached(self._state.momentum)
        )
        if bool(left.any()):
            self._begin_again(left)
        none = heat.new_empty(0, *self._past[:, 0].shape) if not draws else None
        return Draws(
            torch.stack(draws) if none is None else none,
            torch.stack(gradients) if none is None else none,
            heat.mean(0),
            left,
        )

    def _judged(self, temperatures: Tensor, energies: Tensor) -> Tensor:
        """Return which chains have left, ``(chains,)``, as the guard does: by means over `WINDOW` steps or more.

        Args:
            temperatures: temperature of each chain in each step of a window, ``(steps, chains)``.
            energies: energies of the same shape.
        """
        self._measured = [*self._measured, (temperatures, energies)]
        if sum(len(found) for found, _ in self._measured) < WINDOW:
            return torch.zeros_like(energies[0], dtype=torch.bool)
        window = Window(*(torch.cat(parts).mean(0) for parts in zip(*self._measured, strict=True)))
        left = have_left(window, self._heat, self._lowest, self.dimension)
        self.temperature = self._heat = window.temperature
        self._lowest, self._measured = torch.minimum(self._lowest, window.energy), []
        return left

    def _is_finite(self) -> Tensor:
        """Return which chains have finite energies and positions, ``(chains,)``."""
        return self._state.energy.isfinite() & self._of_flat(self._state.position).detach().isfinite().all(1)

    def _temperature(self) -> Tensor:
        """Return the mean square of the momenta, ``(chains,)``."""
        scaled = [self._state.momentum[block].square() * self._metrics[block].inverse_mass for block in self._flat]
        return torch.cat(scaled, 1).mean(1)

    def _begin_again(self, left: Tensor) -> None:
        """Move chains to the start of this round, with fresh momenta."""
        position = _chosen(left, self._first.position, self._state.position)
        noise = self._mechanics.noise(position, self._problem.random)
        fresh = self._mechanics.momentum_from(noise, position, self._metrics)
        energy, gradient = self._problem.at_step(self._batch + self.steps)(position)
        self._state = self._kernel.begin(
            self._state._replace(
                position=position,
                momentum=_chosen(left, fresh, self._state.momentum),
                energy=energy,
                gradient=gradient,
            ),
            self._problem,
        )
        self._heat, self._measured = self._heat * ~left, []

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
            if self._training_settings.fraction == 1
            else PartlyLive(alike, self._training_settings.fraction, self._choice)
        )

    def _advance(self, sampler: Learned) -> None:
        self.steps += 1
        self._state = learned_step(
            self._state,
            StepSettings(self.step_size, 1.0, 0.1),
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


def _detached(blocks: Blocks) -> Blocks:
    return {block: x.detach() for block, x in blocks.items()}


def _chosen(rows: Tensor, of: Blocks, others: Blocks) -> Blocks:
    """Return blocks with some chains of one state, and the others of another one."""
    return {block: torch.where(rows.view(-1, *[1] * (x.dim() - 1)), of[block], x) for block, x in others.items()}


class PartlyLive:
    r"""Sampler whose coefficients are differentiated in a random subset of coordinates only, at lower cost.

    A new subset is chosen at each step. Derivatives are weighted by the inverse of its share, so that the gradient is
    unbiased. Values are those of the sampler.

    Args:
        sampler: the sampler that is trained.
        fraction: fraction of the coordinates, in (0, 1].
        random: random number generator for the choice.
    """

    def __init__(self, sampler: MetaSampler, fraction: float, random: torch.Generator) -> None:
        self._sampler, self._fraction, self._random = sampler, fraction, random
        self.hidden, self.is_live = sampler.hidden, sampler.is_live

    def ratios(self, scaling: Scaling) -> tuple[float, float]:
        """Return the ratios of `MetaSampler.ratios`."""
        return self._sampler.ratios(scaling)

    def gradient_unit(self, root_mean_square: Tensor, scaling: Scaling) -> Tensor:
        """Return the unit of `MetaSampler.gradient_unit`."""
        return self._sampler.gradient_unit(root_mean_square, scaling)

    def coefficients(self, energy: Tensor, momentum: Tensor, gradient: Tensor, scaling: Scaling) -> Coefficients:
        """Compute the coefficients as in `MetaSampler.coefficients`."""
        count = momentum.shape[1]

        def of(r: Tensor, g: Tensor) -> Coefficients:
            return self._sampler.coefficients(energy, r, g, scaling)

        with torch.no_grad():
            values = in_parts(of, ELEMENTS_AT_ONCE // self.hidden, momentum, gradient)
        if not torch.is_grad_enabled():
            return Coefficients(*values)
        chosen = torch.randperm(count, generator=self._random)[: max(1, round(self._fraction * count))].to(
            momentum.device
        )
        live = of(momentum[:, chosen], gradient[:, chosen])
        weight = count / len(chosen)
        return Coefficients(
            *[x.index_add(1, chosen, weight * (y - y.detach())) for x, y in zip(values, live, strict=True)]
        )
