"""MCMC with all chains in one process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import pyro
import pyro.infer
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.util import optional
from torch import Tensor
from tqdm.auto import tqdm

from pyro_manifold.diagnostics.agreement import disagreements
from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.infer.mcmc.kernel import HamiltonianKernel
from pyro_manifold.potential import Sites

ChainMethod = Literal["vectorized", "parallel", "sequential"]

_SECONDS_BETWEEN_REPORTS = 0.2


class MCMC(pyro.infer.MCMC):
    """`pyro.infer.MCMC`, with all chains advanced together in one process.

    With ``chain_method="vectorized"`` and a kernel of this package, chains are the leading dimension of every tensor:
    a leapfrog step moves all of them, and one warm-up adapts step size and masses on all of them together. Each
    chain has its own start. Other kernels, such as Pyro's NUTS, run as in Pyro.

    Args:
        kernel: the kernel.
        num_samples: draws of each chain.
        warmup_steps: iterations before them that adapt; ``num_samples`` if None.
        initial_params: ``{site: tensor}`` to start from, with a leading chain dimension if ``num_chains > 1``;
            manifold sites on their manifold, all others unconstrained.
        num_chains: number of chains, 1 to thousands.
        hook_fn: called as ``hook_fn(kernel, params, stage, i)`` after each iteration; under ``"vectorized"`` each of
            ``params`` has a leading chain dimension.
        mp_context: for ``"parallel"``: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        disable_progbar: no progress bar.
        disable_validation: as in Pyro.
        transforms: as in Pyro.
        save_params: names of the sites to keep, all if None.
        chain_method: ``"vectorized"``, or Pyro's own processes (``"parallel"``) or one chain after the other
            (``"sequential"``).

    An interrupt (Ctrl-C) while sampling keeps the draws made so far, with a warning.

    Raises:
        ValueError: for another ``chain_method``, or ``initial_params`` without the right leading dimension.

    Example:
        >>> import pyro
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import OHMC
        >>> mcmc = MCMC(OHMC(lambda: pyro.sample("U", StiefelUniform(4, 2))), 10, num_chains=5, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["U"].shape
        torch.Size([5, 10, 4, 2])
    """

    def __init__(
        self,
        kernel: MCMCKernel,
        num_samples: int,
        warmup_steps: int | None = None,
        initial_params: Sites | None = None,
        num_chains: int = 1,
        hook_fn: Callable[..., None] | None = None,
        mp_context: str | None = None,
        disable_progbar: bool = False,
        disable_validation: bool | None = True,
        transforms: dict[str, Any] | None = None,
        save_params: list[str] | None = None,
        *,
        chain_method: ChainMethod = "vectorized",
    ) -> None:
        self.num_samples: int
        if chain_method not in ("vectorized", "parallel", "sequential"):
            raise ValueError(f"chain_method={chain_method!r}, expected 'vectorized', 'parallel' or 'sequential'.")
        for name, value in {"num_chains": num_chains, "num_samples": num_samples}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}, expected a positive integer.")
        if warmup_steps is not None and (not isinstance(warmup_steps, int) or warmup_steps < 0):
            raise ValueError(f"warmup_steps={warmup_steps!r}, expected an integer that is not negative.")
        self._vectorised = chain_method == "vectorized" and isinstance(kernel, HamiltonianKernel)
        arguments = {
            "warmup_steps": warmup_steps,
            "hook_fn": hook_fn,
            "mp_context": mp_context,
            "disable_progbar": disable_progbar,
            "disable_validation": disable_validation,
            "transforms": transforms,
            "save_params": save_params,
        }
        if self._vectorised or (chain_method == "sequential" and num_chains > 1):
            # Pyro's constructor starts processes for several chains; told of one, it does everything else.
            super().__init__(kernel, num_samples, **arguments)
            self.num_chains = num_chains
            self._diagnostics = [None] * num_chains
            self._initial_params = self._stacked(initial_params)
            self.sampler.num_chains = num_chains
            self.sampler.initial_params = self._initial_params
        else:
            super().__init__(kernel, num_samples, initial_params=initial_params, num_chains=num_chains, **arguments)
        self._hook = hook_fn
        self._requested_samples = num_samples
        self._disable_progbar = disable_progbar

    def _stacked(self, initial_params: Sites | None) -> Sites | None:
        if initial_params is None:
            return None
        initial_params = {name: torch.as_tensor(value) for name, value in initial_params.items()}
        if self.num_chains == 1:
            return {name: value.unsqueeze(0) for name, value in initial_params.items()}
        for name, value in initial_params.items():
            if value.dim() == 0 or len(value) != self.num_chains:
                raise ValueError(
                    f"initial_params['{name}'] has shape {tuple(value.shape)}, expected a leading dimension of "
                    f"{self.num_chains}, one start for each chain."
                )
        return initial_params

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Run all chains; arguments are those of the model."""
        if self._vectorised:
            self._run_vectorised(*args, **kwargs)
        else:
            super().run(*args, **kwargs)

    def get_samples(self, num_samples: int | None = None, group_by_chain: bool = False) -> Sites:
        """Draws of each site, as in Pyro.

        Raises:
            ValueError: if there are none.
        """
        self._check_there_are_draws("get_samples")
        samples: Sites = super().get_samples(num_samples, group_by_chain)
        return samples

    def _check_there_are_draws(self, method: str) -> None:
        if self._samples is None:
            raise ValueError(f"MCMC.{method}: there are no draws yet, call mcmc.run(...) first.")

    def diagnostics(self) -> dict[str, Any]:
        """Effective sizes and R-hat of each site, what the kernel counted, and which chains disagree.

        ``"disagreeing chains"`` names, for each site whose largest R-hat is above 1.05, that R-hat and the chain
        furthest from the others: it may sit in another mode, or not have arrived yet. Sites that the model knows only
        up to sign or rotation disagree by nature; ``"log density"``, the last entry, does not.
        """
        self._check_there_are_draws("diagnostics")
        report = super().diagnostics()
        statistics = report.pop("sample stats", {})
        log_densities = [chain["lp"] for chain in statistics.values() if chain]
        values = dict(self._samples)
        if log_densities:
            values["log density"] = torch.stack(log_densities)
        report["disagreeing chains"] = disagreements(values)
        return report

    def to_inferencedata(self, **options: Any) -> Any:
        """The run for ArviZ; keyword arguments and groups are those of `pyro_manifold.diagnostics.to_inferencedata`."""
        return to_inferencedata(self, **options)

    @poutine.block
    def _run_vectorised(self, *args: Any, **kwargs: Any) -> None:
        self._args, self._kwargs = args, kwargs
        self.num_samples = self._requested_samples  # an interrupt of an earlier run may have left fewer
        args = tuple(arg.detach() if torch.is_tensor(arg) else arg for arg in args)
        with optional(pyro.validation_enabled(not self.disable_validation), self.disable_validation is not None):
            self.kernel.setup_chains(self.num_chains, self.warmup_steps, self._initial_params, *args, **kwargs)
            self._check_saved_names()
            draws = self._draw()
        transforms = self.kernel.transforms if self.transforms is None else self.transforms
        self._samples = {name: transforms[name].inv(z) if name in transforms else z for name, z in draws.items()}
        self._diagnostics = self.kernel.chain_diagnostics()

    def _check_saved_names(self) -> None:
        sites = sorted(self.kernel.initial_params or {})
        unknown = sorted(set(getattr(self.kernel, "save_params", [])) - set(sites))
        if unknown:
            raise ValueError(f"save_params names {unknown}, but the sites are {sites}.")

    def _draw(self) -> Sites:
        """Warm up and draw into buffers of shape ``(chains, draws, ...)``; an interrupt keeps what there is."""
        buffers: Sites = {}
        done = 0
        with _ProgressBar(self.warmup_steps + self.num_samples, self._disable_progbar) as progress:
            try:
                for iteration in range(self.warmup_steps + self.num_samples):
                    stage = "Warmup" if iteration < self.warmup_steps else "Sample"
                    params = self.kernel.advance()
                    index = iteration if stage == "Warmup" else iteration - self.warmup_steps
                    if stage == "Sample":
                        buffers = buffers or self._allocate(params)
                        for name, buffer in buffers.items():
                            buffer[:, index] = params[name]
                        done = index + 1
                    if self._hook is not None:
                        self._hook(self.kernel, params, stage, index)
                    progress.update(stage, self.kernel.logging)
            except KeyboardInterrupt:
                if not done:
                    raise
                warnings.warn(f"Interrupted: kept {done} of {self.num_samples} draws of each chain.", stacklevel=4)
                self.num_samples = done
        return {name: buffer[:, :done] for name, buffer in buffers.items()}

    def _allocate(self, params: Sites) -> Sites:
        names = getattr(self.kernel, "save_params", sorted(params))
        return {name: _buffer(params[name], self.num_samples) for name in names}


def _buffer(value: Tensor, draws: int) -> Tensor:
    return value.new_empty(len(value), draws, *value.shape[1:])


class _ProgressBar:
    """A bar whose figures are read from the device only a few times a second."""

    def __init__(self, total: int, disable: bool) -> None:
        self._bar = tqdm(total=total, disable=disable, mininterval=_SECONDS_BETWEEN_REPORTS)
        self._disable, self._total = disable, total
        self._pending, self._reported = 0, 0.0

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._pending)
        self._bar.close()

    def update(self, stage: str, figures: Callable[[], dict[str, str]]) -> None:
        self._pending += 1
        now = time.monotonic()
        if self._disable or (
            now - self._reported < _SECONDS_BETWEEN_REPORTS and self._bar.n + self._pending < self._total
        ):
            return
        self._bar.set_description(stage, refresh=False)
        self._bar.set_postfix(figures(), refresh=False)
        self._bar.update(self._pending)
        self._pending, self._reported = 0, now
