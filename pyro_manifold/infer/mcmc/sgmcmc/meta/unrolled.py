"""Chains of a posterior whose draws can be differentiated by the sampler's weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.mechanics import EuclideanMechanics
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.sgmcmc.batches import seed_of
from pyro_manifold.infer.mcmc.sgmcmc.kernel import gradients_of
from pyro_manifold.infer.mcmc.sgmcmc.meta.opening import ELEMENTS_AT_ONCE, Opening, in_parts
from pyro_manifold.infer.mcmc.sgmcmc.meta.sampler import Coefficients, Learned, MetaSampler, Scaling
from pyro_manifold.infer.mcmc.sgmcmc.meta.schooling import MetaTask, Schooling
from pyro_manifold.infer.mcmc.sgmcmc.meta.step import learned_step
from pyro_manifold.infer.mcmc.sgmcmc.nnsghmc import NNSGHMC
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings, StochasticState
from pyro_manifold.infer.mcmc.states import Blocks
from pyro_manifold.target.initial_values import finite_values, initial_values


class Unrolled:
    """Chains on one posterior.

    Args:
        task: the posterior.
        schooling: how the sampler is trained.
        index: number of the task, for seeds.

    Raises:
        ValueError: if its model has no site that the learned dynamics move.

    Attributes:
        dimension: number of coordinates.
        data_size: number of data.
        steps: steps of this round.
        chosen: chains at which the in-chain loss looks.
    """

    def __init__(self, task: MetaTask, schooling: Schooling, index: int) -> None:
        self._schooling = schooling
        kernel = NNSGHMC(
            task.model,
            sampler=MetaSampler.random(1, random=torch.Generator().manual_seed(0), step_size=schooling.step_size),
            step_size=schooling.step_size,
            data_size=task.data_size,
            own_minibatches=True,
            init_strategy=task.init_strategy,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(schooling.seed, 2, index))
            run = kernel.prepare(schooling.chains, 0, None, *task.arguments, **task.kwargs)
        self._problem: Problem = run.problem
        self._gradient = gradients_of(run.problem)
        self._mechanics, self._metrics = kernel.motion_of(run.problem)
        self._flat = [block for block, move in self._mechanics.items() if isinstance(move, EuclideanMechanics)]
        if not self._flat:
            raise ValueError(
                f"Task {index} has no site that the learned dynamics move, which are continuous and in no manifold: "
                "leave it out, or give it such a site."
            )
        self._scaling = kernel.scaling_of(run.problem)
        self.dimension, self.data_size = self._scaling.dimension, self._scaling.data_size
        self._kernel, self._past = kernel, torch.empty(0)
        self.begin(seed_of(schooling.seed, 3, index))
        self.chosen = torch.arange(min(schooling.chains_within, schooling.chains))

    def begin(self, seed: int) -> None:
        """New chains; all that is random until the next call follows from the seed."""
        problem = self._problem
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            values = initial_values(problem.target, problem.chains, None)
            values = finite_values(problem.target, values, True, problem.batched)
        problem.random.manual_seed(seed)
        self._choice = torch.Generator().manual_seed(seed)
        self._batch = seed % 2**30  # another place in the order of batches for each round
        position = problem.layout.pack(values)
        momentum = {
            block: move.draw_momentum(position[block], self._metrics[block], problem.random)
            for block, move in self._mechanics.items()
        }
        energy, slopes = self._gradient(position, self._batch)
        state = StochasticState(position, momentum, energy, slopes, 0, {})
        self._state = self._kernel.begin(state, problem)
        self.steps = 0
        first = self._of_flat(position)
        self._past = first.new_empty(problem.chains, 0, first.shape[1])

    def choose_chains(self) -> None:
        """Other chains for the in-chain loss."""
        count = min(self._schooling.chains_within, self._problem.chains)
        self.chosen = torch.randperm(self._problem.chains, generator=self._choice)[:count]

    def energies(self, sampler: MetaSampler, steps: int) -> Tensor:
        """Energies along so many steps, all chains together, after a tenth of them."""
        found, live = [], self._alike(sampler)
        with torch.no_grad():
            for _ in range(steps):
                self._advance(live)
                found.append(self._state.energy)
        return torch.cat(found[steps // 10 :])

    def window(self, sampler: MetaSampler) -> tuple[Tensor, Tensor]:
        """Steps that are differentiated by the sampler's weights.

        Returns:
            Every so many draws of all chains, and ∇U at them, ``(draws, chains, d)``.
        """
        draws, gradients = [], []
        live = self._alike(sampler)
        with torch.enable_grad():
            for step in range(1, self._schooling.truncation + 1):
                self._advance(live)
                if step % self._schooling.thinning == 0:
                    draws.append(self._of_flat(self._state.position))
                    gradients.append(self._of_flat(self._state.gradient))
        position, momentum = (
            {block: x.detach() for block, x in part.items()} for part in (self._state.position, self._state.momentum)
        )
        self._state = self._state._replace(position=position, momentum=momentum)
        return torch.stack(draws), torch.stack(gradients)

    def remember(self, draws: Tensor) -> Tensor:
        """Earlier draws of this round, ``(chains, draws, d)``; from now on these, ``(draws, chains, d)``, are too."""
        past = self._past
        self._past = torch.cat([past, draws.transpose(0, 1)], 1)
        return past

    def _alike(self, sampler: MetaSampler) -> Learned:
        """In the dtype and on the device of the posterior."""
        alike = sampler.to(next(iter(self._state.position.values())))
        return alike if self._schooling.share == 1 else PartlyLive(alike, self._schooling.share, self._choice)

    def _advance(self, sampler: Learned) -> None:
        self.steps += 1
        self._state = learned_step(
            self._state,
            partial(self._held_constant, number=self._batch + self.steps),
            StepSettings(self._schooling.step_size, 1.0, 0.1),
            mechanics=self._mechanics,
            metrics=self._metrics,
            random=self._problem.random,
            opening=Opening(sampler, self._scaling),
        )._replace(steps=self.steps)

    def _held_constant(self, position: Blocks, number: int) -> tuple[Tensor, Blocks]:
        return self._gradient({block: x.detach() for block, x in position.items()}, number)

    def _of_flat(self, blocks: Blocks) -> Tensor:
        return torch.cat([blocks[block] for block in self._flat], 1)


class PartlyLive:
    r"""A sampler whose coefficients are differentiated in some coordinates only, which costs less.

    At each step others are chosen; their derivatives count by the inverse of the share, so that the mean of the
    gradient is that of all coordinates. Values are those of the sampler.

    Args:
        sampler: the sampler, with weights that are trained.
        share: of coordinates, in (0, 1].
        random: chooses them.
    """

    def __init__(self, sampler: MetaSampler, share: float, random: torch.Generator) -> None:
        self._sampler, self._share, self._random = sampler, share, random
        self.hidden, self.is_live = sampler.hidden, sampler.is_live

    def coefficients(self, energy: Tensor, momentum: Tensor, gradient: Tensor, scaling: Scaling) -> Coefficients:
        """As `MetaSampler.coefficients`."""
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
