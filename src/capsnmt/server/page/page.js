// The page: translates as you type, and shows the routing. Texts go into the page as text, never as HTML.
import { drawRouting, hideRouting } from "./routing.js";

const WAIT_MS = 250; // after the last key
const ALTERNATIVES = 3;
const ROUTING_CHARACTERS = 2000; // longer texts are translated without the view
const START_AGAIN_MS = 3000; // when the languages could not be loaded
const RETRIES = 3; // of a busy server, by itself
const $ = (id) => document.getElementById(id);

let languages = [];
let settings = { charLimit: -1, keyRequired: false, apiKeys: false, supportedFilesFormat: [] };
let detected = null; // code of the detected language
let timer = 0;
let running = null; // AbortController of the request under way
let retries = 0; // so far, of the text as it stands

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

// What to tell a person, of an answer that is no translation.
async function explain(response) {
  let text = "";
  try {
    text = (await response.json()).error || "";
  } catch {
    text = "";
  }
  const wait = Number(response.headers.get("Retry-After")) || 0;
  if (response.status === 429) return { text: "Too many requests.", wait: wait || 5 };
  if (response.status === 503) return { text: "The server is busy.", wait: wait || 2 };
  if (response.status === 403 || /api key/i.test(text)) return { text: `${text}. You can enter a key above.`, wait: 0 };
  if (response.status >= 500) return { text: "Something went wrong on the server. Please try again.", wait: 0 };
  return { text: text || `The server answered with ${response.status}.`, wait: 0 };
}

const nameOf = (code) => languages.find((each) => each.code === code)?.name || code;
const targetsOf = (code) => (languages.find((each) => each.code === code)?.targets || []).filter((to) => to !== code);
const sourceCode = () => ($("source").value === "auto" ? detected : $("source").value);

function fill(select, codes, chosen) {
  select.replaceChildren(...codes.map((code) => new Option(code === "auto" ? "Detect language" : nameOf(code), code)));
  if (codes.includes(chosen)) select.value = chosen;
}

function fillTargets() {
  const source = $("source").value;
  const all = languages.flatMap((each) => targetsOf(each.code));
  const codes = source === "auto" ? [...new Set(all)].sort() : targetsOf(source);
  fill($("target"), codes, $("target").value);
  updateSwap();
}

function updateSwap() {
  const source = sourceCode();
  $("swap").disabled = !source || !targetsOf($("target").value).includes(source);
}

function swap() {
  const [source, target, text] = [sourceCode(), $("target").value, $("output").textContent];
  $("source").value = target;
  fillTargets();
  $("target").value = source;
  if (text) $("text").value = text;
  updateSwap();
  changed();
}

function countCharacters() {
  const length = [...$("text").value].length;
  const limit = settings.charLimit;
  $("count").textContent = limit > 0 ? `${length} of ${limit} characters` : `${length} characters`;
  $("count").className = limit > 0 && length > limit ? "over" : "";
  return limit <= 0 || length <= limit;
}

function clearOutput() {
  $("output").textContent = $("latency").textContent = $("detected").textContent = $("copied").textContent = "";
  $("alternatives").hidden = true;
  $("copy").disabled = true;
  hideRouting();
}

function changed() {
  clearTimeout(timer);
  running?.abort();
  retries = 0;
  if (!countCharacters()) {
    clearOutput(); // the old translation is of another text
    return showError("The text is longer than this server takes: shorten it a little.");
  }
  showError("");
  if (!$("text").value.trim()) return clearOutput();
  timer = setTimeout(translate, WAIT_MS);
}

// A busy server is asked again, later each time, but not for ever.
function retryLater(text, wait) {
  if (retries >= RETRIES) return showError(`${text} Please try again later.`);
  const seconds = wait * 2 ** retries;
  retries += 1;
  showError(`${text} Trying again in ${seconds} s …`);
  timer = setTimeout(translate, 1000 * seconds);
}

async function translate() {
  const q = $("text").value;
  const request = { q, source: $("source").value, target: $("target").value };
  Object.assign(request, { n_best: ALTERNATIVES + 1, routing: q.length <= ROUTING_CHARACTERS });
  if ($("key").value) request.api_key = $("key").value;
  running?.abort();
  const own = (running = new AbortController());
  $("output").classList.add("pending");
  const started = performance.now();
  try {
    const response = await fetch("v1/translate", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
      signal: own.signal,
    });
    if (!response.ok) {
      const { text, wait } = await explain(response);
      if (own.signal.aborted) return; // it is about an older text
      return wait ? retryLater(text, wait) : showError(text);
    }
    const answer = await response.json();
    retries = 0;
    showError("");
    show(answer, performance.now() - started);
  } catch (error) {
    if (!own.signal.aborted) showError("The server cannot be reached. Is it running?");
  } finally {
    if (own === running) $("output").classList.remove("pending");
  }
}

function show(answer, elapsedMs) {
  const [translation] = answer.translations;
  $("output").textContent = translation.text;
  $("output").lang = $("target").value;
  $("latency").textContent = `${Math.round(elapsedMs)} ms (server ${Math.round(answer.elapsed_ms)} ms)`;
  $("copy").disabled = !translation.text;
  $("copied").textContent = "";
  detected = answer.detected ? answer.detected.language : null;
  const through = answer.path.length > 2 ? `by way of ${nameOf(answer.path[1])}` : "";
  const found = detected ? `detected: ${nameOf(detected)}` : "";
  $("detected").textContent = [found, through].filter(Boolean).join(", ");
  updateSwap();
  showAlternatives(translation);
  drawRouting(translation.lines.flatMap((line) => line.routing || []));
}

// Whole texts: of all lines the second best together, then the third best.
function showAlternatives(translation) {
  const found = new Set();
  for (let rank = 1; rank <= ALTERNATIVES; rank++) {
    const text = translation.lines
      .map((line) => (line.hypotheses[Math.min(rank, line.hypotheses.length - 1)] || line).text + line.end)
      .join("");
    if (text.trim() && text !== translation.text) found.add(text);
  }
  $("alternatives-list").replaceChildren(
    ...[...found].map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      item.lang = $("target").value;
      return item;
    }),
  );
  $("alternatives").hidden = !found.size;
}

async function copy() {
  const text = $("output").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers offer the clipboard to https and localhost only; elsewhere the text is selected and copied by hand.
    const range = document.createRange();
    range.selectNodeContents($("output"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    if (!document.execCommand("copy")) return void ($("copied").textContent = "Press Ctrl+C");
  }
  $("copied").textContent = "Copied";
}

async function upload(event) {
  event.preventDefault();
  const [file] = $("file").files;
  if (!file) return showError("Choose a file first.");
  showError("");
  const form = new FormData();
  form.append("file", file);
  form.append("source", $("source").value);
  form.append("target", $("target").value);
  if ($("key").value) form.append("api_key", $("key").value);
  $("upload").disabled = true;
  $("file-result").textContent = "Translating …";
  try {
    const response = await fetch("translate_file", { method: "POST", body: form });
    if (!response.ok) {
      $("file-result").textContent = "";
      const { text, wait } = await explain(response);
      return showError(wait ? `${text} Please try again.` : text);
    }
    const { translatedFileUrl } = await response.json();
    const link = document.createElement("a");
    link.href = `download_file/${translatedFileUrl.split("/").pop()}`;
    link.textContent = "Save the translated file";
    link.download = "";
    $("file-result").replaceChildren(link);
    link.focus();
  } catch {
    $("file-result").textContent = "";
    showError("The server cannot be reached. Is it running?");
  } finally {
    $("upload").disabled = false;
  }
}

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function start() {
  try {
    [languages, settings] = await Promise.all([fetched("languages"), fetched("frontend/settings")]);
  } catch {
    setTimeout(start, START_AGAIN_MS);
    return showError("The server cannot be reached, or is busy. Trying again …");
  }
  showError("");
  const sources = languages.filter((each) => targetsOf(each.code).length).map((each) => each.code);
  fill($("source"), ["auto", ...sources], sources.length === 1 ? sources[0] : "auto");
  fillTargets();
  if ([...$("target").options].some((option) => option.value === settings.language.target.code)) {
    $("target").value = settings.language.target.code;
  }
  $("key-field").hidden = !settings.apiKeys;
  $("file").accept = settings.supportedFilesFormat.join(",");
  $("file-label").textContent = `Text, web page or subtitles (${settings.supportedFilesFormat.join(", ")})`;
  countCharacters();
  updateSwap();
  $("text").addEventListener("input", changed);
  $("key").addEventListener("change", changed);
  $("source").addEventListener("change", () => (fillTargets(), changed()));
  $("target").addEventListener("change", () => (updateSwap(), changed()));
  $("swap").addEventListener("click", swap);
  $("copy").addEventListener("click", copy);
  $("form").addEventListener("submit", (event) => event.preventDefault());
  $("file-form").addEventListener("submit", upload);
  if ($("text").value.trim()) changed(); // a browser may have kept it
}

start();
