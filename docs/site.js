"use strict";
// What the theme leaves out for those who read by keyboard, by ear or on a telephone.

const nearestHeading = (element) => {
  let block = element;
  while (block && !block.matches("h1, h2, h3, h4")) block = block.previousElementSibling;
  return block ? block.firstChild.textContent.trim() : document.title;
};

/** A table wider than its column is a region that the keyboard reaches and scrolls. */
const tables = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const scrolls = target.scrollWidth > target.clientWidth + 1;
    target.classList.toggle("scrolls", scrolls);
    if (scrolls) {
      target.tabIndex = 0;
      target.setAttribute("role", "region");
      target.setAttribute("aria-label", `Table ${number(target)}: ${nearestHeading(target)}`);
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
    }
  }
});

/** The place of an element among those of its class, as two landmarks of a name are one to the ear. */
const number = (element) =>
  [...document.getElementsByClassName(element.classList[0])].indexOf(element) + 1;

/** A call in a cell of a table may break after a bracket, an equals sign or the name of a module. */
const allowBreaks = (code) => {
  const [first, ...others] = code.textContent.split(/(?<=[(=]|[a-z]\.)(?!\)|$)/);
  if (others.length === 0) return; // a change of nothing would be seen, and be made again, forever
  code.replaceChildren(first, ...others.flatMap((part) => [document.createElement("wbr"), part]));
};

const label = () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) tables.observe(wrap);
  document.querySelectorAll(":is(th, td) code:not(:has(*))").forEach(allowBreaks);
  document.querySelectorAll(".md-code__nav").forEach((nav, place) => {
    nav.setAttribute("aria-label", `Code ${place + 1}`);
  });
};

// The theme wraps tables, and adds the buttons, once the page is there.
new MutationObserver(label).observe(document.body, { childList: true, subtree: true });
label();
