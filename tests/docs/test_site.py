"""The site as a browser shows it: no page has a fault, no link is dead, each public name has one entry."""

import importlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from pyro.distributions import constraints as pyro_constraints

import pyro_manifold

from .browser import NAMES, Browser, NoBrowserError, executable
from .faults import dead_links, faults_of_a_page
from .serving import served

ROOT = Path(__file__).parents[2]
AUTHORS = ("infer.mcmc", "infer.mcmc.transitions", "infer.mcmc.sgmcmc", "density.embedding")


@pytest.fixture(scope="module")
def browser():
    """A browser, or a skip: pip installs none, and what a package manager installs need not start in a container."""
    program = executable()
    if program is None:
        pytest.skip(f"needs Chromium: install one of {NAMES}, such as by `apt-get install chromium`.")
    try:
        opened = Browser(program)
    except NoBrowserError as error:
        pytest.skip(f"needs Chromium, and {program} does not start: {error}")
    with opened:
        yield opened


def addresses(folder, site):
    for file in sorted(folder.rglob("*.html")):
        yield site + str(file.relative_to(folder)).removesuffix("index.html")


def opened(browser, folder):
    """Faults of the pages of a folder, and their facts by address."""
    pages, faults = {}, []
    with served(folder) as site:
        for address in addresses(folder, site):
            views, events = browser.open(address)
            pages[address.removeprefix(site)] = views[0]
            faults += [f"/{address.removeprefix(site)}: {fault}" for fault in faults_of_a_page(views, events, site)]
        whole = {site + address: view for address, view in pages.items()}
        faults += sorted(fault.replace(site, "/") for fault in dead_links(whole, site))
    return list(dict.fromkeys(faults)), pages


def public_modules(module=pyro_manifold):
    """Modules that `__all__` names, from the package downwards, and those for authors; not the package itself."""
    for name in module.__all__:
        member = getattr(module, name)
        if isinstance(member, ModuleType):
            yield member
            yield from public_modules(member)
    if module is pyro_manifold:
        yield from (importlib.import_module(f"pyro_manifold.{name}") for name in AUTHORS)


def public_names():
    """Addresses in the reference that each public object may have; a page cannot repeat Pyro's constraints."""
    paths = {}
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            if not (isinstance(value, ModuleType) or getattr(pyro_constraints, name, None) is value):
                key = id(value) if hasattr(value, "__qualname__") else (module.__name__, name)
                found = paths.setdefault(key, set())
                found |= {f"{module.__name__}.{name}"}
                if hasattr(value, "__qualname__"):
                    found |= {f"{value.__module__}.{value.__qualname__}"}
    return list(paths.values())


@pytest.mark.long  # `make docs` is the strict build alone
@pytest.mark.skipif(importlib.util.find_spec("properdocs") is None, reason="needs what `make docs` installs")
@pytest.mark.timeout(900)  # 250 pages, in a browser
def test_the_site(browser, tmp_path):
    build = [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    faults, pages = opened(browser, tmp_path)
    assert not faults, "\n".join(faults)
    entries = Counter(entry for view in pages.values() for entry in view["entries"])
    modules = [view for address, view in pages.items() if re.fullmatch(r"reference/[^/]+/", address)]
    listed = {anchor for view in modules for anchor in view["anchors"]}
    for paths in public_names():
        assert sum(entries[path] for path in paths) == 1, f"expected one entry, of {sorted(paths)}"
        assert paths & listed, "the page of the module has the anchor that the name had there before it had a page"
    assert set(entries) <= set().union(*public_names()), "each entry is a public name"
    assert not [entry for view in pages.values() for entry in view["members"] if ".__" in entry or "._" in entry]
    kernel = (tmp_path / "reference/infer/OHMC/index.html").read_text()
    assert "https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor" in kernel, "signatures link to torch"
    assert f"pyro_manifold {pyro_manifold.__version__}" in kernel, "pages have the version"
    assert 1 < len(pages[""]["parts"]) <= 8, "a reader chooses between few parts"


GOOD = "<h1>Title</h1><p id='here'>A product <math><mi>x</mi></math> and <code>$x$</code>.</p><pre>>>> 1\n$$</pre>"
PLANTED = {
    "raw mathematics": ["<span>$$ x $$</span>", r"\(x\)", r"\[x\]", r"of $x^2$ and", r"\frac12", r"of ${x \in"],
    "a role of reStructuredText": [":math:`x`", ":class:`OHMC`"],
    "a directive of reStructuredText": [".. math:: x"],
    "raw code": ["``stiefel``", "<p>>>> f(1)</p>"],
    "code as a quotation": ["<blockquote><blockquote><blockquote>f(1) >>></blockquote></blockquote></blockquote>"],
    "a list that is no list": ["Either:\n- one\n- two"],
    "a table that is no table": ["| a |\n|---|\n| b |"],
    "a table of reStructuredText": ["<p>=====  =====\na      b</p>"],
    "a section of a docstring that is no section": ["<p>Args:</p>"],
    "a link that is no link": ["[OHMC][pyro_manifold.infer.OHMC]", "[limits](limits.md)"],
    "an entry that is no entry": ["<p>::: pyro_manifold.infer.OHMC</p>"],
    "a formula with an error": ["<math><merror><mtext>x</mtext></merror></math>"],
    "expected one heading h1": ["<h1>Another</h1>"],
    "no page": ["<a href='elsewhere/'>elsewhere</a>"],
    "no anchor": ["<a href='#there'>there</a>"],
    "a request to the network": ["<script src='https://cdn.example/mathjax.js'></script>"],
    "not found": ["<img src='missing.png'>"],
    "an error of a script": ["<script>undefined_name()</script>"],
    "cut": [
        f"<pre>{300 * 'x'}</pre>",
        f"<table><tr><td>{300 * 'x'}</td></tr></table>",
        f"<div style='width: 9em; overflow: hidden'>{30 * 'x'}</div>",
        "<svg width=2000 height=20></svg>",
    ],
}


def faults_of(browser, folder, html):
    head = "<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>"
    (folder / "index.html").write_text(f"{head}<article>{html}</article>")
    return opened(browser, folder)[0]


def test_a_page_without_faults(browser, tmp_path):
    wide = f"<pre style='overflow-x: auto'>{300 * 'x'}</pre>"
    assert faults_of(browser, tmp_path, f"{GOOD}<a href='#here'>here</a>{wide}") == []
    assert any("expected one heading" in fault for fault in faults_of(browser, tmp_path, "<p>Text.</p>"))


@pytest.mark.parametrize(
    ("fault", "html"),
    [
        pytest.param(fault, html, marks=[] if number == 0 else pytest.mark.long)
        for fault, parts in PLANTED.items()
        for number, html in enumerate(parts)
    ],
)
def test_a_fault_is_seen(browser, tmp_path, fault, html):
    body = html if html.startswith("<") else f"<p>{html}</p>"
    assert any(fault in line for line in faults_of(browser, tmp_path, GOOD + body))


def test_a_program_that_does_not_start_is_no_browser(tmp_path):
    """Such as the stub by which a package manager offers to install Chromium."""
    stub = tmp_path / "chromium"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    with pytest.raises(NoBrowserError, match="has ended"):
        Browser(str(stub))
