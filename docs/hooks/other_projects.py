"""Links from the reference to the names of Python, torch and Pyro that signatures have.

The addresses are written here and not read from the inventories of those sites: the site is built without a network.
"""

from properdocs.config.defaults import ProperDocsConfig

PYTHON = "https://docs.python.org/3/library"
TORCH = "https://docs.pytorch.org/docs/stable"
PYRO = "https://docs.pyro.ai/en/stable"
PAGES = {
    f"{PYTHON}/functions.html": "bool float int object type",
    f"{PYTHON}/stdtypes.html": "dict list set str tuple",
    f"{PYTHON}/exceptions.html": (
        "AttributeError Exception FileNotFoundError ImportError NotImplementedError RuntimeError TypeError ValueError"
    ),
    f"{PYTHON}/typing.html": "typing.Any typing.Literal typing.NoReturn typing.Self",
    f"{PYTHON}/collections.html": "collections.OrderedDict",
    f"{PYTHON}/collections.abc.html": " ".join(
        f"collections.abc.{name}" for name in ("Callable", "Hashable", "Iterable", "Iterator", "Mapping", "Sequence")
    ),
    f"{PYTHON}/concurrent.futures.html": "concurrent.futures.Executor",
    f"{PYTHON}/pathlib.html": "pathlib.Path",
    f"{TORCH}/tensors.html": "torch.Tensor",
    f"{TORCH}/tensor_attributes.html": "torch.device torch.dtype",
    f"{TORCH}/size.html": "torch.Size",
    f"{TORCH}/generated/torch.Generator.html": "torch.Generator",
    f"{TORCH}/generated/torch.nn.Module.html": "torch.nn.Module",
    f"{TORCH}/distributions.html": "torch.distributions.constraints.Constraint",
    f"{PYRO}/infer.autoguide.html": " ".join(
        f"pyro.infer.autoguide.initialization.{name}" for name in ("init_to_median", "init_to_uniform")
    ),
    f"{PYRO}/inference_algos.html": "pyro.infer.elbo.ELBO",
    f"{PYRO}/mcmc.html": "pyro.infer.mcmc.mcmc_kernel.MCMCKernel",
}
"""Names, in one string, by the page that has them; each name is the anchor of its entry."""
ELSEWHERE = {
    "torch.distributions.Transform": f"{TORCH}/distributions.html#torch.distributions.transforms.Transform",
    "pyro.distributions.Distribution": f"{PYRO}/distributions.html#pyro.distributions.distribution.Distribution",
    "pyro.distributions.TorchDistribution": (
        f"{PYRO}/distributions.html#pyro.distributions.torch_distribution.TorchDistribution"
    ),
    "pyro.infer.autoguide.init_to_median": (
        f"{PYRO}/infer.autoguide.html#pyro.infer.autoguide.initialization.init_to_median"
    ),
    "pyro.poutine.Trace": f"{PYRO}/poutine.html#pyro.poutine.trace_struct.Trace",
    "pyro.nn.PyroModule": f"{PYRO}/nn.html#pyro.nn.module.PyroModule",
    "pyro.optim.PyroOptim": f"{PYRO}/optimization.html#pyro.optim.optim.PyroOptim",
}
"""Addresses of names that are imported from another module than the one in which they are documented."""


def on_pre_build(config: ProperDocsConfig) -> None:
    """Make the names known to the plugin that writes links."""
    links = config.plugins["autorefs"]
    for page, names in PAGES.items():
        for name in names.split():
            links.register_url(name, f"{page}#{name}")
    for name, address in ELSEWHERE.items():
        links.register_url(name, address)
