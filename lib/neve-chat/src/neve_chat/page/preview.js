"use strict";
const rows = [...document.querySelectorAll(".conversation")];
const button = document.querySelector("#ids");
const field = document.querySelector("#filter");
const none = document.querySelector("#none");
const plain = new Map(); // text whose tokens are shown -> its nodes without them
document.querySelector(".tools").hidden = false;

// data-tokens is zlib of three arrays: uint32 ids; then, for each of data-pieces, the length of its
// text in UTF-16 units as uint16 and its number of ids as uint8.
async function unpack(text) {
  const packed = Uint8Array.from(atob(text.dataset.tokens), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const count = Number(text.dataset.pieces);
  const end = buffer.byteLength - 3 * count;
  const ids = new Uint32Array(buffer, 0, end / 4);
  const lengths = new Uint16Array(buffer, end, count);
  const sizes = new Uint8Array(buffer, end + 2 * count, count);
  let index = 0;
  return Array.from(lengths, (length, i) => {
    const piece = { index, length, ids: ids.slice(index, index + sizes[i]).join("+") };
    index += sizes[i];
    return piece;
  });
}

function split(text, pieces) {
  const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let i = 0;
  let left = pieces[0]?.length;
  for (const node of nodes) {
    const spans = [];
    for (let rest = node.data; rest; ) {
      const span = document.createElement("span");
      span.className = "token";
      span.textContent = rest.slice(0, left);
      span.title = `token ${pieces[i].index}, id ${pieces[i].ids}`;
      if (left === pieces[i].length) span.dataset.id = pieces[i].ids;
      rest = rest.slice(left);
      left -= span.textContent.length;
      if (!left) left = pieces[++i]?.length;
      spans.push(span);
    }
    node.replaceWith(...spans);
  }
}

const isOn = () => button.getAttribute("aria-pressed") === "true";

async function update(row) {
  const text = row.querySelector(".text");
  if (isOn() && row.open && !plain.has(text)) {
    const pieces = await unpack(text);
    if (!isOn() || plain.has(text)) return; // pressed again meanwhile
    plain.set(text, [...text.cloneNode(true).childNodes]);
    split(text, pieces);
  } else if (!isOn() && plain.has(text)) {
    text.replaceChildren(...plain.get(text));
    plain.delete(text);
  }
}

async function toggle() {
  button.setAttribute("aria-pressed", String(!isOn()));
  await Promise.all(rows.map(update));
}

function filter() {
  const words = field.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(words);
  none.hidden = rows.some((row) => !row.hidden);
}

function go(step) {
  const shown = rows.filter((row) => !row.hidden);
  const here = shown.indexOf(document.activeElement.closest(".conversation"));
  const next = shown[Math.max(0, Math.min(here + step, shown.length - 1))];
  if (!next) return;
  next.open = true;
  next.scrollIntoView();
  next.querySelector("summary").focus({ preventScroll: true });
}

button.addEventListener("click", toggle);
field.addEventListener("input", filter);
for (const row of rows) row.addEventListener("toggle", () => update(row));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === field) {
    if (event.key !== "Escape") return;
    field.value = "";
    filter();
    field.blur();
    return;
  }
  const keys = { j: () => go(1), k: () => go(-1), i: toggle, "/": () => field.focus() };
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
