"use strict";
// A chart's slider lies over it: pointer and arrow keys both move it, and it says what is there.
for (const plot of document.querySelectorAll(".plot")) {
  const data = plot.querySelector("script"), slider = plot.querySelector("input");
  if (!data || !slider) continue;
  const { points, series } = JSON.parse(data.textContent);
  const box = plot.querySelector("output"), drawn = [];
  const put = (kind, x, y, color) => {
    const one = document.createElement("span");
    one.className = kind;
    one.style.left = x / 100 + "%";
    if (y !== null) one.style.top = y / 100 + "%";
    if (color) one.style.background = "var(--" + color + ")";
    plot.append(one);
    drawn.push(one);
  };
  const clear = () => { while (drawn.length) drawn.pop().remove(); box.hidden = true; };
  const text = ([, note, values]) =>
    [note, ...values.map(([which, , value]) => series[which][0] + "  " + value)].join("\n");
  const show = (at) => {
    clear();
    const point = points[at], [x, , values] = point;
    put("line", x, null);
    for (const [which, y] of values) put("dot", x, y, series[which][1]);
    box.textContent = text(point);
    box.hidden = false;
    box.style.left = x < 5000 ? "calc(" + x / 100 + "% + 12px)" : "auto";
    box.style.right = x < 5000 ? "auto" : "calc(" + (100 - x / 100) + "% + 12px)";
    slider.setAttribute("aria-valuetext", text(point).replaceAll("\n", ", "));
  };
  const near = (event) => {
    const area = plot.getBoundingClientRect(), x = 1e4 * (event.clientX - area.left) / area.width;
    let best = 0;
    points.forEach((one, i) => { if (Math.abs(one[0] - x) < Math.abs(points[best][0] - x)) best = i; });
    slider.value = best;
    show(best);
  };
  slider.setAttribute("aria-valuetext", text(points[points.length - 1]).replaceAll("\n", ", "));
  slider.addEventListener("pointermove", near);
  slider.addEventListener("pointerdown", (event) => { event.preventDefault(); slider.focus(); near(event); });
  slider.addEventListener("pointerleave", () => { if (document.activeElement !== slider) clear(); });
  slider.addEventListener("input", () => show(+slider.value));
  slider.addEventListener("focus", () => { if (slider.matches(":focus-visible")) show(+slider.value); });
  slider.addEventListener("blur", clear);
}
// What does not scroll is no stop for the keyboard, and no region for a screen reader.
const regions = [...document.querySelectorAll("[role=region][tabindex]")];
const settle = () => {
  for (const one of regions) {
    const scrolls = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
    for (const [name, value] of [["tabindex", "0"], ["role", "region"]]) {
      if (scrolls) one.setAttribute(name, value); else one.removeAttribute(name);
    }
  }
};
settle();
addEventListener("resize", settle);
document.addEventListener("toggle", settle, true);
// A button that copies, where the browser can.
for (const command of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", () => {
    const line = command.querySelector("code"), done = () => {
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    const select = () => { getSelection().selectAllChildren(line); if (document.execCommand("copy")) done(); };
    if (navigator.clipboard) navigator.clipboard.writeText(line.textContent).then(done, select);
    else select();
  });
  command.append(button);
}
