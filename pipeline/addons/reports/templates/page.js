"use strict";
// Charts are drawn here, of the numbers beside them: SVG for the lines, which is stretched to the
// width there is, and HTML for the words, whose size is that of the page.
const element = (name, attributes, ...children) => {
  const svg = name === "svg" || name === "path";
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const numeral = (value) => {
  const size = Math.abs(value), far = size && (size < 1e-4 || size >= 1e7);
  const text = far ? Number(value.toPrecision(4)).toExponential() : value.toLocaleString("en", { maximumSignificantDigits: 4 });
  return text.replace("-", "−");
};
const percent = (value) => (100 * value).toLocaleString("en", { maximumFractionDigits: 1 }) + "%";
// An axis: where a value is between 0 and 1, and round numbers with their places.
const axis = (values, log, share, whole, most) => {
  let low = share ? 0 : Math.min(...values), high = share ? 1 : Math.max(...values);
  log = log && low > 0;
  const scaled = (value) => (log ? Math.log10(value) : value);
  low = scaled(low); high = scaled(high);
  const room = share ? 0 : 0.04 * (high - low) || 0.04 * Math.abs(high) || 1;
  low -= room; high += room;
  const at = (value) => (scaled(value) - low) / (high - low), ticks = [];
  if (log && high - low > 1) {
    const by = Math.ceil((high - low) / most);
    for (let power = Math.ceil(low); power <= high; power += by) ticks.push(10 ** power);
  } else {
    const [first, last] = log ? [10 ** low, 10 ** high] : [low, high];
    const unit = 10 ** Math.floor(Math.log10((last - first) / most));
    let step = unit * [1, 2, 5, 10].find((by) => (last - first) / (unit * by) <= most);
    if (whole) step = Math.max(step, 1);
    for (let tick = Math.ceil(first / step); tick * step <= last; tick++) ticks.push(tick * step);
  }
  return { at, ticks: ticks.map((value) => [at(value), share ? percent(value) : numeral(+value.toPrecision(6))]) };
};
for (const figure of document.querySelectorAll(".chart")) {
  const it = JSON.parse(figure.querySelector("script").textContent), title = figure.querySelector("figcaption").textContent;
  const levels = Object.entries(it.levels), text = it.percent ? percent : numeral;
  const x = axis([...it.span, ...it.curves.flatMap((one) => one.x)], it.logx, false, !it.logx, 6);
  const y = axis([...it.curves.flatMap((one) => one.y), ...levels.map((one) => one[1])], it.log, it.percent, false, 5);
  const svg = element("svg", { role: "img", viewBox: "0 0 1000 1000", preserveAspectRatio: "none" });
  const path = (kind, color, d) => svg.append(element("path", { class: kind, style: "--stroke: var(--" + color + ")", d }));
  const across = (value) => Math.round(1000 * x.at(value)), down = (value) => Math.round(1000 * (1 - y.at(value)));
  const legend = [], series = [], points = new Map(), summary = [], marks = [];
  for (const [place] of y.ticks) path("grid", "grid", "M0 " + Math.round(1000 * (1 - place)) + "H1000");
  for (const [value] of it.marks) path("event", "axis", "M" + across(value) + " 0V1000");
  for (const one of it.curves) {
    const places = one.x.map((value, i) => [across(value), down(one.y[i])]);
    if (one.line) path(one.thin ? "thin" : "", one.color, "M" + places.map((place) => place.join(" ")).join("L"));
    if (!one.line || (places.length <= 50 && !one.thin)) path("dots", one.color, places.map((place) => "M" + place.join(" ") + "h0").join(""));
    if (!one.named) continue;
    legend.push([one.label, one.color, ""]);
    one.x.forEach((value, i) => {
      if (!points.has(value)) points.set(value, [places[i][0], one.notes[i] || "", []]);
      points.get(value)[2].push([series.length, places[i][1], text(one.y[i])]);
    });
    series.push([one.label, one.color]);
    summary.push(one.label + ": from " + text(one.y[0]) + " to " + text(one.y[one.y.length - 1]));
  }
  levels.forEach(([name, value], i) => {
    const style = ["dotted", "dashed"][i % 2];
    path(style, "axis", "M0 " + down(value) + "H1000");
    legend.push([name, "axis", style]);
  });
  svg.setAttribute("aria-label", title + ": " + summary.join("; "));
  if (legend.length > 1) figure.append(element("ul", { class: "legend" }, ...legend.map(([label, color, style]) =>
    element("li", {}, element("span", { class: "key " + style, style: "--key: var(--" + color + ")" }), label))));
  const plot = element("div", { class: "plot" }, svg);
  for (const [value, label] of [...it.marks].sort((one, other) => one[0] - other[0])) {
    if (marks.length && x.at(value) - marks[marks.length - 1] < 0.12) continue;
    marks.push(x.at(value));
    plot.append(element("span", { class: "mark-label", style: "left: " + 100 * x.at(value) + "%" }, label));
  }
  const ticks = (name, side, axis) => element("div", { class: name }, ...axis.ticks.map(([at, label]) => element("span", { style: side + ": " + 100 * at + "%" }, label)));
  const ys = ticks("ys", "bottom", y);
  // A percent sign is wider than a digit.
  ys.style.width = Math.max(...y.ticks.map((one) => one[1].length)) + (it.percent ? 1 : 0) + "ch";
  figure.append(element("div", { class: "axes" }, ys, plot, ticks("xs", "left", x), element("div", { class: "x-label" }, it.x_label)));
  if (!points.size) continue;
  // A slider lies over the chart: pointer and arrow keys both move it, and it says what is there.
  const all = [...points.entries()].sort((one, other) => one[0] - other[0]).map((one) => one[1]);
  const slider = element("input", { type: "range", min: 0, max: all.length - 1, value: all.length - 1, "aria-label": title + ", point by point" });
  const box = element("output", { class: "reading" }), drawn = [];
  plot.append(slider, box);
  const put = (kind, style) => { drawn.push(element("span", { class: kind, style })); plot.append(drawn[drawn.length - 1]); };
  const clear = () => { while (drawn.length) drawn.pop().remove(); box.hidden = true; };
  const words = ([, note, values]) => [note, ...values.map(([which, , value]) => series[which][0] + "  " + value)].join("\n");
  const show = (at) => {
    clear();
    const [left, , values] = all[at], near = left < 500;
    put("line", "left: " + left / 10 + "%");
    for (const [which, top] of values) put("dot", "left: " + left / 10 + "%; top: " + top / 10 + "%; background: var(--" + series[which][1] + ")");
    box.textContent = words(all[at]);
    box.hidden = false;
    box.style.left = near ? "calc(" + left / 10 + "% + 12px)" : "auto";
    box.style.right = near ? "auto" : "calc(" + (100 - left / 10) + "% + 12px)";
    slider.setAttribute("aria-valuetext", words(all[at]).replaceAll("\n", ", "));
  };
  const near = (event) => {
    const area = plot.getBoundingClientRect(), at = 1000 * (event.clientX - area.left) / area.width;
    let best = 0;
    all.forEach((one, i) => { if (Math.abs(one[0] - at) < Math.abs(all[best][0] - at)) best = i; });
    slider.value = best;
    show(best);
  };
  clear();
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
