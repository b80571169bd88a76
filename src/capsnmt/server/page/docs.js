// Shows /spec to people: each endpoint, its parameters, its answers, and a command to try it.
const main = document.getElementById("operations");

function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

const kindOf = (schema) =>
  schema.type || (schema.oneOf || schema.anyOf || []).map((each) => each.type).join(" or ") || "any";

function parameters(schema) {
  const table = element("table");
  const head = element("tr");
  for (const title of ["Parameter", "Type", "Required", "Meaning"]) head.append(element("th", title));
  const body = element("tbody");
  for (const [name, each] of Object.entries(schema.properties || {})) {
    const row = element("tr");
    const standard = each.default === undefined ? "" : ` (default ${JSON.stringify(each.default)})`;
    const choices = each.enum ? ` one of ${each.enum.join(", ")}` : "";
    const required = (schema.required || []).includes(name) ? "yes" : "";
    row.append(element("th", name));
    for (const text of [kindOf(each), required, `${each.description || ""}${choices}${standard}`]) {
      row.append(element("td", text));
    }
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

function command(path, content) {
  const url = new URL(`.${path}`, document.baseURI).href;
  if (!content) return `curl ${url}`;
  if (!content["application/json"]) return `curl ${url} -F file=@notes.txt -F source=en -F target=de`;
  const example = path === "/detect" ? { q: "Guten Tag!" } : { q: "Hello!", source: "en", target: "de" };
  return `curl ${url} -H 'Content-Type: application/json' -d '${JSON.stringify(example)}'`;
}

function operation(path, method, described) {
  const section = element("section");
  section.append(element("h2", `${method.toUpperCase()} ${path}`), element("p", described.summary));
  const content = described.requestBody?.content;
  if (content) {
    const query = described.parameters ? ", or the query string" : "";
    section.append(element("p", `Body: ${Object.keys(content).join(", ")}${query}`));
    const scroll = element("div");
    scroll.className = "scroll";
    scroll.append(parameters(Object.values(content)[0].schema));
    section.append(scroll);
  }
  const shown = element("pre", command(path, content));
  shown.tabIndex = 0; // what scrolls must be reached by the keyboard
  section.append(shown);
  const answers = element("ul");
  for (const [code, each] of Object.entries(described.responses)) {
    answers.append(element("li", `${code}: ${each.description}`));
  }
  section.append(answers);
  return section;
}

async function start() {
  let paths;
  try {
    const response = await fetch("spec");
    if (!response.ok) throw new Error(response.status);
    ({ paths } = await response.json());
  } catch {
    const failure = element("p", "The description could not be loaded. Is the server running? Reload to try again.");
    failure.setAttribute("role", "alert");
    return main.append(failure);
  }
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, described] of Object.entries(methods)) main.append(operation(path, method, described));
  }
}

start();
