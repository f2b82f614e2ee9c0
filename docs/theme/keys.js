// keys.html: a field that leaves the rows with all its words, and opens their groups.
document.addEventListener("DOMContentLoaded", () => {
  const heading = document.getElementById("of-a-run");
  const groups = [...document.querySelectorAll(".md-content details.keys")];
  if (!heading || !groups.length) return;
  const bar = document.createElement("form");
  bar.className = "keys-filter";
  bar.setAttribute("role", "search");
  bar.innerHTML =
    '<input type="search" aria-label="Find keys" placeholder="Find keys: name, default or meaning">' +
    '<button type="button">Open all groups</button><output></output>';
  heading.before(bar);
  const [field, button, count] = bar.children;
  const rows = [...document.querySelectorAll(".md-content tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const parts = [...document.querySelectorAll(".md-content details.keys > :not(summary)")];

  // The table of a heading is what stands between it and the next heading.
  const shown = (part) => !part.querySelector("tbody") || part.querySelector("tbody tr:not(.keys-hidden)");
  const find = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    rows.forEach((row, index) => {
      const hit = words.every((word) => texts[index].includes(word));
      row.classList.toggle("keys-hidden", !hit);
      left += hit;
    });
    let table = true;
    for (const part of parts.slice().reverse()) {
      if (part.querySelector("tbody")) table = Boolean(shown(part));
      part.classList.toggle("keys-hidden", words.length > 0 && !table);
      if (/^H\d$/.test(part.tagName)) table = !words.length;
    }
    for (const group of groups) {
      const any = group.querySelector("tbody tr:not(.keys-hidden)");
      group.open = words.length > 0 && Boolean(any);
      group.classList.toggle("keys-hidden", words.length > 0 && !any);
      group.previousElementSibling.classList.toggle("keys-hidden", words.length > 0 && !any);
    }
    button.textContent = words.length ? "Show all keys" : "Open all groups";
    count.textContent = words.length ? `${left} of ${rows.length} keys` : "";
  };
  field.addEventListener("input", find);
  bar.addEventListener("submit", (event) => event.preventDefault());
  button.addEventListener("click", () => {
    if (field.value) {
      field.value = "";
      find();
      return;
    }
    const open = groups.some((group) => !group.open);
    for (const group of groups) group.open = open;
    button.textContent = open ? "Close all groups" : "Open all groups";
  });
});
