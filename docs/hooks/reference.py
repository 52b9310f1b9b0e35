"""Reference of the site: a page a module, and one for each name of its `__all__`; mkdocstrings writes the entries.

Modules are read and not imported, so that the site needs neither torch nor Pyro.
"""

from collections.abc import Iterator
from pathlib import Path

import griffe
from properdocs.config.defaults import ProperDocsConfig
from properdocs.plugins import get_plugin_logger
from properdocs.structure.files import File, Files

log = get_plugin_logger("reference")

PACKAGE = "pyro_manifold"
USERS = (
    "infer",
    "infer.autoguide",
    "distributions",
    "distributions.constraints",
    "distributions.transforms",
    "diagnostics",
    "manifolds",
    "optim",
    "nn",
    "contrib",
)
AUTHORS = ("infer.mcmc", "infer.mcmc.transitions", "infer.mcmc.sgmcmc", "density.embedding")
"""Modules of which extensions are made: kernels, metrics."""

FOR_THE_PACKAGE = {
    "MetaSampler": {"coefficients", "fingerprint", "hidden", "is_live", "names", "tensors", "with_tensors"},
    "SMC": {"run_in_silence"},
    "Store": {"check_is_free", "folder", "make_folder"},
    "Superchains": {"chains"},
    "Tuning": {"inverse_masses", "numbers"},
    "Until": {"goals"},
}
"""Members that other modules of the package call, and users do not."""

KERNEL = f"{PACKAGE}.infer.mcmc.kernel.Kernel"

texts: dict[str, str] = {}
"""Texts of the pages, by their file."""

INTRODUCTION = """# Reference

All public names, each on a page of its own. Names are in the module that has them in Pyro, where Pyro has them. At the
root of this site are `objects.inv`, the inventory by which intersphinx and mkdocstrings link to them, and for language
models `llms.txt` and `llms-full.txt`.
"""


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Put the pages into the part of the navigation that is named Reference."""
    (part,) = (entry["Reference"] for entry in config.nav if "Reference" in entry)
    texts.clear()  # a server builds again
    texts.update(_pages(Path(config.config_file_path).parent))
    modules = {name: [_source_uri(name)] for name in (*USERS, *AUTHORS)}
    for uri in texts:
        module, _, name = uri.removeprefix("reference/").removesuffix(".md").partition("/")
        if name:
            modules[module].append({name: uri})
    part[:] = ["reference/index.md", *({name: pages} for name, pages in modules.items()), *part]
    return config


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add the pages."""
    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))
    return files


def _pages(folder: Path) -> dict[str, str]:
    """Write the pages, by their file."""
    package = griffe.load(PACKAGE, search_paths=[folder])
    found = {"reference/index.md": _index(package)}
    modules = [package[name] for name in (*USERS, *AUTHORS)]
    public = {item.canonical_path for module in modules for item in public_items(module).values()}
    documented: dict[str, str] = {}  # where a name is defined -> where it is documented
    for module in modules:
        found |= _pages_of(module, public, documented)
    return found


def _source_uri(module: str, name: str = "") -> str:
    return f"reference/{module}{'/' if name else ''}{name}.md"


def public_items(module: griffe.Module) -> dict[str, griffe.Object | griffe.Alias]:
    """Return the names of `__all__` with what they name, but modules, which have pages of their own.

    A function may be named as the module that defines it; the name is then the function.
    """
    found = {}
    for name in module.exports or ():
        if isinstance(name, str) and name[0] != "_":  # another package's are no strings
            path = module.imports.get(name, f"{module.path}.{name}")
            item = module.modules_collection[path]
            if not item.is_module:
                found[name] = item
    return found


def members_of(
    item: griffe.Object | griffe.Alias, public: set[str], kernels: griffe.Object | None
) -> tuple[list[str], list[str]]:
    """Return the members of a class that belong into its entry, its own and those of bases that are not public.

    A kernel of users has none: `MCMC` calls its methods, and the base classes for authors have them.
    """
    if kernels is not None and kernels in item.mro():
        return [], []
    inherited = {
        name: member
        for name, member in item.inherited_members.items()
        if member.final_target.parent.canonical_path not in public
    }
    hidden = FOR_THE_PACKAGE.get(item.name, set())
    own, others = (
        [name for name, member in members.items() if name[0] != "_" and member.has_docstring and name not in hidden]
        for members in (item.members, inherited)
    )
    return own, others


def first_line(item: griffe.Object | griffe.Alias) -> str:
    """Return the first line of a docstring, for a cell of a table."""
    if item.docstring is None:
        log.warning(f"{item.path} is public and has no docstring.")
        return ""
    parts = item.docstring.value.splitlines()[0].split("$")  # text and formulas in turn
    parts[::2] = [text.replace("|", r"\|") for text in parts[::2]]
    parts[1::2] = [tex.replace(r"\|", r"\Vert{}").replace("|", r"\vert{}") for tex in parts[1::2]]
    return "$".join(parts)


def _index(package: griffe.Module) -> str:
    def table(names: tuple[str, ...]) -> Iterator[str]:
        yield "| module | |\n|---|---|"
        for name in names:
            yield f"| [`{PACKAGE}.{name}`]({name}.md) | {first_line(package[name])} |"

    rows = [*table(USERS), "\nFor authors of kernels and metrics, see also [Extending](../how_to/extending.md):\n"]
    return "\n".join([INTRODUCTION, *rows, *table(AUTHORS)]) + "\n"


def _pages_of(module: griffe.Module, public: set[str], documented: dict[str, str]) -> dict[str, str]:
    """Write the page of a module, which lists its names, and those of the names that have no page yet."""
    title = module.path.removeprefix(f"{PACKAGE}.")
    rows, entries = [], {}
    kernel = None if title in AUTHORS else module.modules_collection[KERNEL]
    for name, item in public_items(module).items():
        path = f"{module.path}.{name}"
        first = documented.setdefault(item.canonical_path, path)
        anchors = ""
        if first == path:
            own, inherited = members_of(item, public, kernel) if item.is_class else ([], [])
            entries[_source_uri(title, name)] = _entry(path, item, own, inherited, public)
            addresses = (path, *(f"{path}.{member}" for member in own + inherited))
            anchors = "".join(f'<span id="{address}"></span>' for address in addresses)  # a module was one page
        rows.append(f"| {anchors}[`{name}`][{first}] | {first_line(item)} |")
    introduction = module.docstring.value if module.docstring else ""
    table = "\n".join(["| name | |", "|---|---|", *rows])
    heading = f"# {module.path.replace('.', '.<wbr>')}"  # may break after a dot
    return {_source_uri(title): "\n\n".join([heading, introduction, table]), **entries}


def _entry(
    path: str, item: griffe.Object | griffe.Alias, own: list[str], inherited: list[str], public: set[str]
) -> str:
    bases = item.is_class and any(base.canonical_path in public for base in item.resolved_bases)
    options = f"members: {own + inherited}, inherited_members: {inherited}, show_bases: {str(bases).lower()}"
    if item.modules_collection[path].is_module:  # the name is that of a module too: link to it by hand
        return f"[](){{#{path}}}\n\n::: {item.canonical_path}\n    options: {{ {options} }}\n"
    return f"::: {path}\n    options: {{ {options} }}\n"
