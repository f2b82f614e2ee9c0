// Names and roles that the theme leaves out, and that screen readers and keyboards need.
document.querySelector(".md-search").setAttribute("aria-label", "Search");

// The theme adds the buttons of code blocks, each in a <nav>, and the frames of tables after the page has loaded.
const mend = () => {
  for (const nav of document.querySelectorAll("nav.md-code__nav")) nav.setAttribute("role", "none");
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap"))
    if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
    else frame.removeAttribute("tabindex");
};
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
