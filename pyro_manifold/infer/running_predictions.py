"""Running mean and variance of a model's predictions during sampling, without storing draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from torch import Tensor, fx

from pyro_manifold.compiled import VECTORISATION, FlatFunction, Verified, agrees, row_by_row, run, trace, vmapped
from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Values, named, without_draws
from pyro_manifold.infer.mcmc.running import Iteration
from pyro_manifold.store import Serialisable, check_entries

_DRAWS_BETWEEN_COMPARISONS = 64
_COMPARED_CHAINS = 4
_OWNER = "RunningPredictions"


class RunningPredictions:
    r"""Running mean and variance of a model's return value over chains and draws, updated at each draw.

    For ``MCMC(..., consumers=[predictions], save_params=[])``: for a network with a million weights, only statistics of
    its predictions are stored. The model is run with the values of each kept draw, and its *return value*, mapped by
    ``statistic``, is averaged. Data need not be passed if the return value does not depend on values drawn in their
    place; if it does, predictions are random, and a warning is issued. The model is traced at the first draw and
    vectorised over chains; if that is not possible, it is run chain by chain, with a warning.

    Mean and sum of squared deviations of each chain are updated by Welford's recursion, which avoids cancellation:

    $$ m_t = m_{t-1} + (x_t - m_{t-1}) / t, \quad s_t = s_{t-1} + (x_t - m_{t-1})(x_t - m_t) . $$

    The memory needed is two tensors ``(chains, ...)``, and that of one run of the model for all chains. If that is too
    much, use one object for each part of the inputs. In a resumed run, only new draws are included.

    Args:
        model: a Pyro model, or `PyroModule`; may be a part of the model that is sampled, such as its network, with
            sites of the same names.
        args: its arguments, such as new inputs.
        statistic: function from the model's return value to a tensor; the identity if None.
        kwargs: its keyword arguments.

    Attributes:
        draws: number of draws of each chain so far.

    Raises:
        ValueError: while sampling, if the model returns no tensor, or if a prediction is not finite; the message names
            the draw, which is then not included.

    Source: Welford 1962, Technometrics 4; Gelman & Rubin 1992 for `r_hat`.

    Examples:
        >>> import pyro, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> def model(x, y=None):
        ...     logits = x @ pyro.sample("w", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        ...     with pyro.plate("cases", len(x)):
        ...         pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        ...     return logits
        >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
        >>> predictions = RunningPredictions(model, x[:5], statistic=lambda logits: logits.softmax(-1))
        >>> options = {"num_chains": 4, "consumers": [predictions], "save_params": [], "disable_progbar": True}
        >>> MCMC(OHMC(model), 20, 20, **options).run(x, y)
        >>> predictions.draws, predictions.mean.shape, predictions.chain_means.shape
        (20, torch.Size([5, 2]), torch.Size([4, 5, 2]))
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *args: Any,
        statistic: Callable[[Any], Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        for name, function in {"model": model, "statistic": statistic}.items():
            if not callable(function) and (name == "model" or function is not None):
                raise ValueError(f"{_OWNER}: {name}={function!r}, expected a function.")
        self._program, self._statistic = Program(model, args, kwargs), statistic
        self._shapes: dict[str, torch.Size] = {}
        self._predict: Verified | None = None
        self.draws = 0
        self._means = self._squares = torch.empty(0)

    def __call__(self, iteration: Iteration) -> None:
        """Update the statistics after an iteration; thinned iterations are ignored."""
        if not iteration.kept:
            return
        # Contiguous, because a graph is specific to one memory layout.
        values = {name: value.contiguous() for name, value in iteration.values.items()}
        shapes = {name: value.shape for name, value in values.items()}
        with torch.no_grad(), pyro.validation_enabled(False):
            if self._predict is None or shapes != self._shapes:
                self._predict, self._shapes = self._build(values), shapes
            elif self.draws % _DRAWS_BETWEEN_COMPARISONS == 1:
                self._compare(self._predict, values, iteration.draw)
            (found,) = self._predict(*values.values())
        self._check(found, iteration.draw)
        self._add(found if found.is_floating_point() else found.to(torch.get_default_dtype()))

    # ---- results so far -----------------------------------------------------------------------------------------

    @property
    def chain_means(self) -> Tensor:
        """Mean over the draws of each chain, ``(chains, ...)``."""
        self._check_there_are_draws()
        return self._means.clone()

    @property
    def chain_variances(self) -> Tensor:
        """Variance over the draws of each chain, ``(chains, ...)``, unbiased for independent draws; NaN for one."""
        self._check_there_are_draws()
        return self._squares / (self.draws - 1)

    @property
    def mean(self) -> Tensor:
        """Mean over chains and draws."""
        self._check_there_are_draws()
        return self._means.mean(0)

    @property
    def variance(self) -> Tensor:
        """Variance over chains and draws together, unbiased for independent draws; NaN for a single one."""
        self._check_there_are_draws()
        between = (self._means - self._means.mean(0)).square().sum(0)
        return (self._squares.sum(0) + self.draws * between) / (len(self._means) * self.draws - 1)

    @property
    def r_hat(self) -> Tensor:
        r"""R-hat of each prediction after t draws, $\sqrt{(t - 1)/t + B/W}$.

        B is the variance of the chains' means, W the mean of their variances. Chains are not split, since their final
        length is not known, so that a drift common to all chains is not detected. R-hat is 1 where all draws are equal,
        and NaN for one chain or one draw.
        """
        within, between = self.chain_variances.mean(0), self._means.var(0, correction=0) * len(self._means)
        between = between / (len(self._means) - 1)
        r_hat = ((self.draws - 1) / self.draws + between / within).sqrt()
        constant = (within == 0) & (between == 0)
        return torch.where(constant, torch.ones_like(r_hat), r_hat)

    def _check_there_are_draws(self) -> None:
        if not self.draws:
            raise ValueError(f"{_OWNER}: there are no draws yet: pass it to MCMC(..., consumers=[...]) and call run.")

    # ---- updates ------------------------------------------------------------------------------------------------

    def _add(self, found: Tensor) -> None:
        if not self.draws:
            self._means, self._squares = torch.zeros_like(found), torch.zeros_like(found)
        if self._means.shape != found.shape:
            raise ValueError(
                f"{_OWNER}: the predictions of all chains have shape {tuple(found.shape)}, expected "
                f"{tuple(self._means.shape)} as for the draws so far: continue with the same model, arguments and "
                "number of chains."
            )
        means, squares = self._means.to(found), self._squares.to(found)
        difference = found - means
        means = means + difference / (self.draws + 1)
        # One assignment, so that an interrupt does not leave a partial update.
        self.draws, self._means, self._squares = self.draws + 1, means, squares + difference * (found - means)

    def _check(self, found: Tensor, draw: int) -> None:
        finite = found.isfinite().reshape(len(found), -1).all(1)
        if not finite.all():
            chains = named((~finite).nonzero().flatten().tolist())
            raise ValueError(
                f"{_OWNER}: predictions of {chains} at draw {draw} are not finite: choose a statistic that returns "
                "finite values (such as probabilities instead of their logarithms), or inspect that draw with "
                "save_params=None."
            )

    def _of_one_chain(self, values: Values) -> tuple[Tensor]:
        returned = self._program.trace(values).nodes["_RETURN"]["value"]
        found = returned if self._statistic is None else self._statistic(returned)
        if not isinstance(found, Tensor):
            what = "the model returns" if self._statistic is None else "statistic returns"
            raise ValueError(f"{_OWNER}: {what} a {type(found).__name__}, expected a tensor of predictions.")
        return (found,)

    def _build(self, values: Values) -> Verified:
        """Build one graph for the predictions of all chains, or a function that runs chain by chain if that fails."""
        # Distinct storage for each input: tracing merges inputs that are the same tensor object.
        names, columns = list(values), [value.detach().clone() for value in values.values()]
        if not columns:
            raise ValueError(
                f"{_OWNER}: the draws have no sites, expected at least one: sample a model with latent sites."
            )

        def flat(*values: Tensor) -> tuple[Tensor, ...]:
            return self._of_one_chain(dict(zip(names, values, strict=True)))

        def vectorised(_: FlatFunction) -> FlatFunction:
            graph = _without_unused(flat, [column[0].clone() for column in columns])
            # Traced once more, so that vectorising costs nothing at each draw.
            batched: FlatFunction = trace(vmapped(graph), *columns)
            return batched

        function, chains = Verified(row_by_row(flat), "chain by chain"), len(columns[0])
        if self._repeatable({name: column[0] for name, column in zip(names, columns, strict=True)}):
            failure = f"{_OWNER}: the model cannot be traced ({{reason}}); continuing chain by chain, which is slow."
            rows = list(range(min(chains, _COMPARED_CHAINS)))
            function.attempt("traced", vectorised, [columns], rows=rows, failure=failure if chains > 1 else None)
        return function

    def _repeatable(self, values: Values) -> bool:
        """Return whether predictions are determined by a draw; sites without values in the draws are sampled again."""
        (once,), (again,) = self._of_one_chain(values), self._of_one_chain(values)
        if once.shape == again.shape and agrees(again, once):
            return True
        drawn = sorted(without_draws(self._program, values))
        warnings.warn(
            f"{_OWNER}: predictions are not the same at each call with one draw; they depend on "
            f"{drawn or 'random numbers of the model, such as dropout'}, for which the draws have no values. Check "
            "that all other sites have the names of the sampler's model.",
            stacklevel=4,
        )
        return False

    def _compare(self, function: Verified, values: Values, draw: int) -> None:
        """Compare the graph with the model at intervals, since tracing freezes branches that depend on values."""
        columns = list(values.values())
        difference = function.difference_at(columns, [self.draws // _DRAWS_BETWEEN_COMPARISONS % len(columns[0])])
        if difference is not None:
            function.use_reference()
            warnings.warn(
                f"{_OWNER}: at draw {draw} the traced model differs from the model ({difference}), so that "
                "predictions so far may be wrong. Continuing chain by chain, without tracing.",
                stacklevel=3,
            )

    # ---- saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the number of draws, and mean and sum of squared deviations of each chain; for `torch.save`."""
        return {"draws": self.draws, "means": self._means.clone(), "squares": self._squares.clone()}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore a saved state; statistics collected so far are discarded.

        Raises:
            ValueError: if ``saved`` is not such a state.
        """
        entries = ("draws", "means", "squares")
        check_entries(saved, entries, _OWNER)
        draws, means, squares = (saved[name] for name in entries)
        alike = isinstance(means, Tensor) and isinstance(squares, Tensor) and means.shape == squares.shape
        if not isinstance(draws, int) or draws < 0 or not alike:
            raise ValueError(f"{_OWNER}: the saved state is damaged, expected the result of state_dict().")
        self.draws, self._means, self._squares = draws, means.clone(), squares.clone()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the graph, which cannot be pickled and is rebuilt at the next draw."""
        return {**self.__dict__, "_predict": None}


def _without_unused(function: FlatFunction, example: list[Tensor]) -> fx.GraphModule:
    """Trace a function and remove operations on which its output does not depend, such as draws of missing data.

    `torch.vmap` rejects random numbers, and torch's own dead-code elimination keeps them. In-place operations hide
    dependencies, so they are replaced first.
    """
    graph = run(VECTORISATION, trace(function, *example), *example)
    graph.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    graph.recompile()
    return graph
