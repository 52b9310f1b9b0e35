"""Training of a sampler on a set of posteriors: unrolled chains, two losses, truncated back-propagation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.contrib.learned_sampler import MetaSampler, check_folder, read, write
from pyro_manifold.contrib.learned_sampler.training.losses import Loss, divergence
from pyro_manifold.contrib.learned_sampler.training.settings import MetaTask, TrainingSettings
from pyro_manifold.contrib.learned_sampler.training.unrolled import Draws, Unrolled
from pyro_manifold.density import seed_of
from pyro_manifold.infer.mcmc import check_positive, check_positive_integer
from pyro_manifold.progress import progress_bar

_KIND = "MetaTraining"
_LARGEST_GRADIENT = 1.0
_MOST_GROWTH = 10.0
"""Factor by which the (noisy) loss may exceed that of a task's first segment before chains count as diverged."""
_DECAYS = (0.5, 0.99)


class MetaTraining:
    """State of a training run, for custom training loops in place of `train_meta_sampler`.

    Args:
        tasks: posteriors, as Pyro models or `MetaTask`; rounds use them in turn.
        training_settings: settings of the training.
        sampler: initial sampler; None for networks with small random weights.
        hidden: number of hidden units of the random networks.
        constant_friction: c of the random networks, as in `MetaSampler`: the fraction of momentum lost in a step before
            training, and its lower bound.
        gradient_scale: unit of gradients of the random networks, for the number of data of the first task, as in
            `MetaSampler`; not with ``sampler``, which has its own.

    Attributes:
        sampler: current sampler.
        rounds: number of rounds done.
        losses: ``{"cross": ..., "in-chain": ...}`` of the last round: mean squares of ∇U + ∇log q over coordinates.
        left: how often chains left the posterior in the last round, as the guard of `NNSGHMC` would have noticed, or
            reached values that are not finite. They begin again, and the logarithm of the temperature of their momenta
            enters the gradient.
        diverged_tasks: numbers of tasks whose chains left in their last round, or whose cross-chain loss exceeded ten
            times that of their very first segment.

    Raises:
        ValueError: for arguments of other types, an empty list of tasks, and a task without a site to which the learned
            dynamics apply.

    Examples:
        >>> import torch, pyro, pyro.distributions as dist
        >>> from pyro_manifold.infer import TrainingSettings
        >>> def gaussian():
        ...     pyro.sample("x", dist.Normal(torch.zeros(3), torch.tensor([0.5, 1.0, 2.0])).to_event(1))
        >>> training = MetaTraining([gaussian], TrainingSettings(step_size=0.05, chains=10, steps=20))
        >>> sorted(training.advance())
        ['cross', 'in-chain']
    """

    def __init__(
        self,
        tasks: Sequence[Callable[..., Any] | MetaTask],
        training_settings: TrainingSettings,
        sampler: MetaSampler | None = None,
        hidden: int = 10,
        constant_friction: float = 0.01,
        gradient_scale: float | None = None,
    ) -> None:
        if not isinstance(tasks, Sequence) or isinstance(tasks, str):
            raise ValueError(f"tasks={tasks!r}, expected a list of Pyro models or MetaTask.")
        if not (sampler is None or isinstance(sampler, MetaSampler)):
            raise ValueError(f"sampler={sampler!r}, expected a MetaSampler or None.")
        chosen = [task if isinstance(task, MetaTask) else MetaTask(task) for task in tasks]
        if not chosen:
            raise ValueError("tasks is empty, expected at least one Pyro model or MetaTask.")
        check_positive_integer(hidden=hidden)
        check_positive(constant_friction=constant_friction)
        if gradient_scale is not None:
            check_positive(gradient_scale=gradient_scale)
            if sampler is not None:
                raise ValueError(
                    f"gradient_scale={gradient_scale!r} is the unit of new networks, and sampler has its own: leave it "
                    "out, or pass dataclasses.replace(sampler, gradient_scale=...)."
                )
        self._training_settings = training_settings
        self._tasks = [Unrolled(task, training_settings, index) for index, task in enumerate(chosen)]
        self.rounds = 0
        self.losses: dict[str, float] = {}
        self.diverged_tasks: set[int] = set()
        self.left = 0
        self._began: dict[int, float] = {}
        self.sampler = self._first(hidden, constant_friction, gradient_scale) if sampler is None else sampler
        self._weights = self._leaves(self.sampler.tensors)
        self._adam = torch.optim.Adam(self._weights.values(), lr=training_settings.learning_rate, betas=_DECAYS)

    def _first(self, hidden: int, constant_friction: float, gradient_scale: float | None) -> MetaSampler:
        """Return small random networks, with inputs standardised by the energies of a first run of the sampler."""
        training_settings, task = self._training_settings, self._tasks[0]
        random = torch.Generator().manual_seed(seed_of(training_settings.seed, 0))
        sampler = MetaSampler.random(
            hidden,
            random=random,
            constant_friction=constant_friction,
            curl_friction=0.0,
            dimension=task.dimension,
            data_size=task.data_size,
            step_size=training_settings.step_size,
            gradient_scale=gradient_scale,
        )
        energies = task.energies(sampler, training_settings.segments * training_settings.steps)
        if not bool(energies.isfinite().all()):
            raise ValueError(
                "Chains of the first task reached values that are not finite with "
                f"step_size={training_settings.step_size:.3g}: choose a smaller step_size."
            )
        low, centre, high = energies.double().quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.double)).tolist()
        return replace(sampler, energy_centre=centre, energy_scale=max(high - low, 1e-6 * abs(centre), 1e-6))

    @staticmethod
    def _leaves(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.detach().clone().requires_grad_() for name, value in tensors.items()}

    def advance(self) -> dict[str, float]:
        """Run one round, with new chains on the next task and an update of weights per segment; return `losses`."""
        number = self.rounds % len(self._tasks)
        task = self._tasks[number]
        factors = self._training_settings.step_factors
        factor = factors[self.rounds // len(self._tasks) % len(factors)]
        ε = self._training_settings.step_size
        task.step_size = factor * (ε if task.data_size == 1 else self.sampler.step_size_for(task.data_size))
        task.begin(seed_of(self._training_settings.seed, 1, self.rounds))
        self.left = 0
        found = [self._segment(task) for _ in range(self._training_settings.segments)]
        self._watch(number, found)
        self.rounds += 1
        self.sampler = self.sampler.with_tensors({name: value.detach() for name, value in self._weights.items()})
        cross, within = (float(torch.stack(values).nanmean()) for values in zip(*found, strict=True))
        self.losses = {"cross": cross, "in-chain": within}
        return self.losses

    def _watch(self, task: int, found: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Record in ``diverged_tasks`` whether the chains of a round diverged."""
        cross = [float(losses[0]) for losses in found]
        began = self._began.setdefault(task, cross[0]) if math.isfinite(cross[0]) else 0.0
        if self.left or not cross[-1] <= _MOST_GROWTH * began:
            self.diverged_tasks.add(task)
        else:
            self.diverged_tasks.discard(task)

    def _segment(self, task: Unrolled) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of both losses over the windows of a segment, then take one step of Adam."""
        training_settings = self._training_settings
        windows = training_settings.steps // training_settings.truncation
        cross, within, penalties = [], [], []
        self._adam.zero_grad()
        task.choose_chains()
        for _ in range(windows):
            live = self.sampler.with_tensors(self._weights)
            made = task.window(live)
            self.left += int(made.left.sum())
            if bool(made.left.any()):
                penalties.append(self._slopes((made.heat * made.left).sum() / windows))
            stayed = ~made.left
            if len(made.position) == 0 or int(stayed.sum()) < 2:
                continue  # no draws whose distribution could be compared with the posterior
            position, gradients = made.position[:, stayed], made.gradient[:, stayed]
            across = divergence(position, gradients, marginal=training_settings.scores == "marginal")
            loss, inside = across.surrogate, self._in_chain(task, made)
            if inside is not None:
                loss = loss + training_settings.within * inside.surrogate
                within.append(inside.residual)
            (loss / windows).backward()
            cross.append(across.residual)
        self._update(penalties)
        nothing = made.heat.new_tensor(torch.nan)
        return tuple(torch.stack(each).mean() if each else nothing for each in (cross, within))  # type: ignore[return-value]

    def _slopes(self, value: Tensor) -> list[Tensor]:
        """Return the derivatives of a value by all weights."""
        weights = list(self._weights.values())
        found = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(w) if slope is None else slope for w, slope in zip(weights, found, strict=True)]

    def _update(self, penalties: Sequence[Sequence[Tensor]]) -> None:
        """Take one step of Adam along the gradient of the losses, at most 1 long, and that of the heat of lost chains.

        The latter has the length 1: the divergence of draws that are not from the posterior has no scale to compare
        with.
        """
        weights = list(self._weights.values())
        torch.nn.utils.clip_grad_norm_(weights, _LARGEST_GRADIENT)
        if penalties:
            slopes = [torch.stack(parts).sum(0) for parts in zip(*penalties, strict=True)]
            length = torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
            if bool(length.isfinite()) and length > 0:
                for weight, slope in zip(weights, slopes, strict=True):
                    unit = _LARGEST_GRADIENT * slope / length
                    weight.grad = unit if weight.grad is None else weight.grad + unit
        if any(weight.grad is not None for weight in weights):
            self._adam.step()

    def _in_chain(self, task: Unrolled, made: Draws) -> Loss | None:
        """Compute the in-chain loss of some chains, each with its draws of this round so far.

        Draws of a round in which chains have left do not enter it, since they begin again.
        """
        if not self._training_settings.within or task.steps <= self._training_settings.burn_in or self.left:
            return None
        live = made.position[:, task.chosen].transpose(0, 1)
        past = task.remember(made.position.detach())[task.chosen]
        constant, marginal = past if past.shape[1] else None, self._training_settings.scores == "marginal"
        return divergence(live, made.gradient[:, task.chosen].transpose(0, 1), constant, marginal=marginal)

    @staticmethod
    def _settings(training_settings: Mapping[str, Any], constants: Mapping[str, Any], bias: Tensor) -> dict[str, Any]:
        """Return the settings that must agree between a checkpoint and the training that resumes it."""
        alike = ("constant_friction", "curl_friction", "dimension", "data_size", "gradient_scale")
        factors = list(training_settings.get("step_factors", (1.0,)))
        return {
            **training_settings,
            "step_factors": factors,
            **{name: constants[name] for name in alike},
            "hidden": len(bias),
        }

    # ---- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a checkpoint from which `load` resumes the training with identical results."""
        moments = {}
        for name, weight in self._weights.items():
            for key, value in self._adam.state[weight].items():
                moments[f"Adam {key} {name}"] = value
        constants = {entry.name: getattr(self.sampler, entry.name) for entry in fields(self.sampler)[2:]}
        about = {"rounds": self.rounds, "training": asdict(self._training_settings), "sampler": constants}
        write(path, _KIND, {**self._weights, **moments}, about)

    def load(self, path: str | Path) -> None:
        """Restore a checkpoint.

        Raises:
            ValueError: if the file is damaged, of another version, or of a training with other settings.
        """
        tensors, about = read(path, _KIND)
        try:
            found = self._settings(about["training"], about["sampler"], tensors["curl bias"])
            constants = {entry.name: getattr(self.sampler, entry.name) for entry in fields(self.sampler)[2:]}
            mine = self._settings(asdict(self._training_settings), constants, self.sampler.curl.bias)
            other = [name for name in mine if found[name] != mine[name]]
            if not other:
                weights = self._leaves({name: tensors[name] for name in self._weights})
                self.sampler = replace(self.sampler, **about["sampler"]).with_tensors(weights)
                moments = [
                    {key: tensors[f"Adam {key} {name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                    for name in weights
                    if about["rounds"]
                ]
                self.rounds = about["rounds"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is damaged or not a {_KIND} ({error}): restore it, or start again with another file."
            ) from error
        if other:
            raise ValueError(
                f"{path} was trained with {other[0]}={found[other[0]]!r}, and this training has {mine[other[0]]!r}: "
                "use the same settings, or start again with another file."
            )
        self._weights = weights
        self._adam = torch.optim.Adam(weights.values(), lr=self._training_settings.learning_rate, betas=_DECAYS)
        for weight, moment in zip(weights.values(), moments, strict=False):
            self._adam.state[weight] = moment


def train_meta_sampler(
    tasks: Sequence[Callable[..., Any] | MetaTask],
    *,
    step_size: float,
    rounds: int = 100,
    sampler: MetaSampler | None = None,
    hidden: int = 10,
    constant_friction: float = 0.01,
    gradient_scale: float | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    disable_progbar: bool = False,
    command: str = "",
    **training_settings: Any,
) -> MetaSampler:
    r"""Train a sampler for `NNSGHMC` on posteriors.

    In a round, many chains are initialised on one of the posteriors and run ``segments`` times ``steps`` steps of the
    current sampler. Two losses are minimised, both of the form $E_q[U + \log q]$: that of draws of all chains at
    one time,

    $$ \frac1T \sum_t E_{q_t}[U + \log q_t], $$

    which favours fast convergence to the typical set, and that of draws of one chain over time, which favours fast
    mixing. The gradient of log q is estimated from the draws (`stein_scores`). Back-propagation is truncated to
    ``truncation`` steps, and the inputs of the networks are held constant, so that no second derivative of the model is
    needed.

    Args:
        tasks: Pyro models without arguments, or `MetaTask`; rounds use them in turn.
        step_size: ε₀ of all chains, which becomes that of new networks. Chains of a posterior with data have the step
            size of ``sampler``, if that is given.
        rounds: total number of rounds, including those of a checkpoint.
        sampler: initial sampler; None for networks with small random weights.
        hidden: number of hidden units of the random networks.
        constant_friction: c of the random networks, as in `MetaSampler`: the fraction of momentum lost in a step before
            training, and its lower bound. Choose a value with which SGHMC works well.
        gradient_scale: unit of gradients of the random networks, for the number of data of the first task, as in
            `MetaSampler`; None for their root mean square. Not with ``sampler``, which has its own.
        checkpoint: a checkpoint file; if it exists, the training is resumed from it.
        checkpoint_every: number of rounds between checkpoints.
        disable_progbar: whether to hide the progress bar.
        command: description of the origin of the sampler, stored in its file.
        **training_settings: attributes of `TrainingSettings`.

    Returns:
        The trained sampler.

    Raises:
        ValueError: for arguments out of range, or a checkpoint with other settings or more rounds.

    A warning is issued if chains diverged, which happens if steps are too long.

    Source: Gong, Li & Hernández-Lobato, ICLR 2019, section 4.

    Examples:
        >>> import torch, pyro, pyro.distributions as dist
        >>> def gaussian():
        ...     pyro.sample("x", dist.Normal(torch.zeros(3), torch.tensor([0.5, 1.0, 2.0])).to_event(1))
        >>> options = {"rounds": 2, "chains": 10, "steps": 20, "disable_progbar": True}
        >>> sampler = train_meta_sampler([gaussian], step_size=0.05, **options)
        >>> sampler.dimension, sampler.step_size
        (3, 0.05)
    """
    check_positive_integer(rounds=rounds, checkpoint_every=checkpoint_every)
    if not isinstance(command, str):
        raise ValueError(f"command={command!r}, expected a string.")
    unknown = sorted(set(training_settings) - {entry.name for entry in fields(TrainingSettings)})
    if unknown:
        raise ValueError(f"train_meta_sampler has no argument {unknown[0]!r}: see the attributes of TrainingSettings.")
    if checkpoint is not None:
        check_folder(checkpoint)
    training = MetaTraining(
        tasks, TrainingSettings(step_size, **training_settings), sampler, hidden, constant_friction, gradient_scale
    )
    if checkpoint is not None and Path(checkpoint).exists():
        training.load(checkpoint)
    if training.rounds > rounds:
        raise ValueError(
            f"{checkpoint} has {training.rounds} rounds, and rounds={rounds}: ask for as many or more, or start again "
            "with another file."
        )
    with progress_bar(total=rounds, initial=training.rounds, disable=disable_progbar, desc="Training") as bar:
        while training.rounds < rounds:
            losses = training.advance()
            figures = {name: f"{value:.3g}" for name, value in losses.items()}
            bar.set_postfix({**figures, "left": training.left}, refresh=False)
            bar.update()
            if checkpoint is not None and (training.rounds % checkpoint_every == 0 or training.rounds == rounds):
                training.save(checkpoint)
    if training.diverged_tasks:
        warnings.warn(
            f"The chains of task {min(training.diverged_tasks)} diverged in its last round, so that the sampler is "
            f"unusable: choose a step_size below {step_size:.3g}.",
            stacklevel=2,
        )
    return replace(training.sampler, command=command)
