// What a reader sees of the page that is open, for faults.py.
(async () => {
  await document.fonts.ready;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const article = document.querySelector("article") ?? document.body;
  const verbatim = "code, pre, script, style, math, .headerlink, .doc-section-title";
  const read = (element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll(verbatim).forEach((part) => part.replaceWith("…"));
    return copy.textContent;
  };
  // Text that is cut: outside the window, or outside a box that hides it, and not within a box that scrolls.
  const cut = (text) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    const boxes = [...range.getClientRects()].filter((box) => box.width > 1 && box.height > 1);
    const right = Math.max(...boxes.map((box) => box.right));
    const left = Math.min(...boxes.map((box) => box.left));
    for (let above = text.parentElement; above && above !== document.body; above = above.parentElement) {
      const { overflowX, visibility } = getComputedStyle(above);
      if (["auto", "scroll"].includes(overflowX) || visibility === "hidden") return false;
      if (overflowX !== "visible" && right > above.getBoundingClientRect().right + 1) return true;
    }
    return right > innerWidth + 1 || left < -1;
  };
  const texts = [];
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    if (walker.currentNode.data.trim() && !walker.currentNode.parentElement.closest("script, style"))
      texts.push(walker.currentNode);
  const holders = new Set(texts.map((text) => text.parentElement).filter((element) => !element.closest(verbatim)));
  return {
    titles: [...document.querySelectorAll("h1")].map((title) => title.textContent.trim()),
    blocks: [...holders].map(read),
    quotes: [...document.querySelectorAll("blockquote")].map((quote) => quote.textContent),
    formulaErrors: [...document.querySelectorAll("merror, .katex-error, mjx-merror, .arithmatex")]
      .map((formula) => formula.textContent),
    cut: texts.filter(cut).map((text) => text.data.trim().slice(0, 80)),
    wide: [...article.querySelectorAll("img, svg")]
      .filter((picture) => picture.getBoundingClientRect().right > innerWidth + 1)
      .map((picture) => picture.outerHTML.slice(0, 160)),
    links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
    parts: [...document.querySelectorAll(".md-tabs__item")].map((part) => part.textContent.trim()),
    entries: [...article.querySelectorAll("h1.doc-heading")].map((entry) => entry.id),
    members: [...article.querySelectorAll(".doc-heading")].map((entry) => entry.id),
    anchors: [...document.querySelectorAll("[id], a[name]")].map((element) => element.id || element.name),
  };
})();
