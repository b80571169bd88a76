// The routing view: which capsule takes how much of which word, in each iteration.

// Okabe and Ito's colours, told apart by colour-blind eyes too; beyond eight they repeat, darker.
const COLOURS = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"];
const STRONGEST = 0.75; // of a colour behind a word, so that black letters can be read on it
const $ = (id) => document.getElementById(id);

let pieces = []; // of each sentence: words, shares[iteration][word][capsule]

function channels(capsule) {
  const colour = COLOURS[capsule % COLOURS.length];
  const shade = 0.8 ** Math.floor(capsule / COLOURS.length);
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) * shade);
}

function mixed(capsule, strength) {
  const parts = channels(capsule).map((channel) => Math.round(255 - strength * (255 - channel)));
  return `rgb(${parts.join(" ")})`;
}

const percent = (share) => `${Math.round(100 * share)} %`;

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function wordItem(word, shares) {
  const most = shares.indexOf(Math.max(...shares));
  const item = element("li");
  const shown = element("span", word, "word");
  shown.style.backgroundColor = mixed(most, STRONGEST * shares[most]);
  item.title = shares.map((share, capsule) => `capsule ${capsule + 1}: ${percent(share)}`).join("\n");
  const bar = element("span", "", "bar");
  bar.setAttribute("aria-hidden", "true");
  shares.forEach((share, capsule) => {
    const part = element("span");
    part.style.width = `${100 * share}%`;
    part.style.backgroundColor = mixed(capsule, 1);
    bar.append(part);
  });
  item.append(shown, element("span", ` capsule ${most + 1}, ${percent(shares[most])}`, "unseen"), bar);
  item.dataset.capsule = String(most + 1);
  return item;
}

function table(iteration, capsules) {
  const head = element("tr");
  head.append(element("th", "Word"));
  for (let capsule = 1; capsule <= capsules; capsule++) head.append(element("th", `Capsule ${capsule}`));
  head.querySelectorAll("th").forEach((cell) => (cell.scope = "col"));
  const [top, body] = [element("thead"), element("tbody")];
  top.append(head);
  for (const { words, shares } of pieces) {
    words.forEach((word, place) => {
      const row = element("tr");
      const name = element("th", word);
      name.scope = "row";
      row.append(name);
      const own = shares[iteration][place];
      const most = Math.max(...own);
      own.forEach((share) => row.append(element("td", percent(share), share === most ? "most" : "")));
      body.append(row);
    });
  }
  $("shares").replaceChildren(top, body);
}

function draw() {
  const iteration = Number($("iteration").value) - 1;
  const last = Number($("iteration").max);
  const capsules = pieces[0].shares[0][0].length;
  $("iteration-shown").textContent = `${iteration + 1} of ${last}`;
  $("iteration").setAttribute("aria-valuetext", `iteration ${iteration + 1} of ${last}`);
  $("words").replaceChildren(
    ...pieces.map(({ words, shares }) => {
      const list = element("ul", "", "sentence");
      list.append(...words.map((word, place) => wordItem(word, shares[iteration][place])));
      return list;
    }),
  );
  $("legend").replaceChildren(
    ...Array.from({ length: capsules }, (_, capsule) => {
      const item = element("li", `capsule ${capsule + 1}`);
      item.style.backgroundColor = mixed(capsule, STRONGEST);
      return item;
    }),
  );
  table(iteration, capsules);
}

export function hideRouting() {
  $("routing").hidden = true;
}

export function drawRouting(found) {
  pieces = found;
  $("routing").hidden = !pieces.length;
  if (!pieces.length) return;
  const iterations = pieces[0].shares.length;
  if (Number($("iteration").max) !== iterations) {
    $("iteration").max = String(iterations);
    $("iteration").value = String(iterations); // what the decoder reads comes of the last one
  }
  draw();
}

$("iteration").addEventListener("input", draw);
