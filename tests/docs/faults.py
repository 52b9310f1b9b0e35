"""Faults of built pages: raw markup, cut lines, dead links, requests to the network."""

import re
from urllib.parse import unquote, urldefrag

RAW_MARKUP = {
    "a role of reStructuredText": r":[a-z]+:`|:(math|class|func|meth|mod|attr|ref):",
    "a directive of reStructuredText": r"^\s*\.\. [a-z]+::",
    "a table of reStructuredText": r"^\s*={3,}(\s+={3,})+\s*$",
    "raw mathematics": r"\$\$|\\[()\[\]{}]|(?<![\w$])\$[^$\n]+\$|\\[A-Za-z]{2,}",
    "raw code": r"`|^\s*>>> ",
    "a list that is no list": r"\n\s*([-*]|1\.) \S",
    "a table that is no table": r"\|\s*-{3,}\s*\|",
    "a section of a docstring that is no section": r"^\s*(Args|Returns|Raises|Yields|Examples?|Attributes):\s*$",
    "a link that is no link": r"\]\[[\w.]+\]|\]\(\S+\)",
    "an entry that is no entry": r"^\s*::: ",
}


def faults_of_a_page(facts, events, site):
    """Yield what is wrong with one page, from the facts of each width and the events of the browser."""
    yield from _faults_of_text(facts[0])
    for view in facts:
        yield from (f"cut: {part!r}" for part in [*view["cut"], *view["wide"]])
    for event in events:
        parameters = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith((site, "data:", "blob:")):
                yield f"a request to the network: {url}"
        elif event["method"] == "Network.responseReceived" and parameters["response"]["status"] >= 400:
            yield f"not found: {parameters['response']['url']}"
        elif event["method"] == "Runtime.exceptionThrown":
            yield f"an error of a script: {parameters['exceptionDetails']}"


def _faults_of_text(view):
    if len(view["titles"]) != 1:
        yield f"expected one heading h1, found {view['titles']}"
    for name, pattern in RAW_MARKUP.items():
        for block in view["blocks"]:
            found = re.search(pattern, block, re.MULTILINE)
            if found:
                yield f"{name}: {' '.join(block[max(found.start() - 30, 0) : found.end() + 60].split())!r}"
    yield from (f"code as a quotation: {quote[:80]!r}" for quote in view["quotes"] if ">>>" in quote or "... " in quote)
    yield from (f"a formula with an error: {formula!r}" for formula in view["formulaErrors"])


def dead_links(pages, site):
    """Yield links within the site that lead to no page or to no anchor; ``pages`` has the facts of each address."""
    for address, view in pages.items():
        for link in set(view["links"]):
            target, anchor = urldefrag(link)
            if target.startswith(site) and not target.endswith((".png", ".inv", ".xml")):
                if target not in pages:
                    yield f"{address}: no page {link}"
                elif anchor and unquote(anchor) not in pages[target]["anchors"]:
                    yield f"{address}: no anchor {link}"
