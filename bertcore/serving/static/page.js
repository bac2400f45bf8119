"use strict";

// Everything on this page is made of text nodes and attributes, so that no text is ever parsed as HTML.

const at = id => document.getElementById(id);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const shared = (made, share, tint) => {
  made.style.setProperty("--share", `${Math.round(100 * Math.min(Math.max(share, 0), 1))}%`);
  if (tint) made.style.setProperty("--tint", tint);
  return made;
};
const linesOf = text => text.split("\n").map(line => line.trim()).filter(Boolean);
const percent = value => `${(100 * value).toFixed(1)} %`;

let models = [], mostTexts = 32, examples = {};
const chosen = () => models[at("model").selectedIndex];

// Requests

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, body, signal) {
  const headers = {};
  if (at("key").value) headers.Authorization = `Bearer ${at("key").value}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {method: body === undefined ? "GET" : "POST", headers, body, signal});
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let message = `the server answered ${answer.status}`;
  try {
    const {error} = JSON.parse(text);
    message = error.message || error;
  } catch { /* not from the server itself: a proxy's page */ }
  throw new Refusal(answer.status, message);
}

// Drawing

function heatMap(names, rows, {small = false, most = 1, places = 2} = {}) {
  const label = (name, index, kind) => element("th", {scope: kind, title: name},
    ...(small ? [] : [element("span", {className: "number"}, String(index + 1))]), element("span", {className: "name"}, name));
  const readout = element("p", {className: "readout"}, "Point at a cell or move with the arrow keys to see its value.",
    small ? ` The colour scale ends at ${most.toFixed(2)}.` : "");
  const body = rows.map((row, down) => element("tr", {}, label(names[down], down, "row"), ...row.map((value, across) => {
    const share = value / most;
    const cell = shared(element("td", {tabIndex: down || across ? -1 : 0}, value.toFixed(places)), Math.abs(share),
      value < 0 && "var(--cold)");
    cell.classList.toggle("strong", Math.abs(share) > 0.7);
    cell.title = `${names[down]}\n${names[across]}\n${value.toFixed(4)}`;
    return cell;
  })));
  const head = element("tr", {}, element("th"), ...names.map((name, index) => label(name, index, "col")));
  const table = element("table", {className: `heat ${small ? "small" : names.length > 8 ? "many" : ""}`},
    element("thead", {}, head), element("tbody", {}, ...body));
  const show = cell => {
    const down = cell.parentNode.rowIndex - 1, across = cell.cellIndex - 1;
    readout.textContent = `${rows[down][across].toFixed(4)}: “${names[down]}” ${small ? "to" : "and"} “${names[across]}”`;
  };
  const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  table.addEventListener("pointerover", event => event.target.matches("td") && show(event.target));
  table.addEventListener("focusin", event => show(event.target));
  table.addEventListener("keydown", event => {
    const move = moves[event.key], from = event.target;
    const to = move && table.rows[from.parentNode.rowIndex + move[0]]?.cells[from.cellIndex + move[1]];
    if (move) event.preventDefault();
    if (!to?.matches("td")) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
  return [element("div", {className: "scroll"}, table), readout];
}

function bar(name, share, value, made = element("li")) {
  made.append(element("span", {}, name), shared(element("span", {className: "bar"}), share),
    element("span", {className: "value"}, value));
  return made;
}

const hueOf = label => [...label].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) * 137.5 % 360;

function marked(text, entities) {
  const characters = [...text], parts = [], labels = new Map();  // offsets count code points
  let end = 0;
  for (const entity of entities) {
    const label = entity.entity_group ?? entity.label;
    const mark = element("mark", {title: `${label} ${percent(entity.score)}`},
      characters.slice(entity.start, entity.end).join(""), element("small", {}, label));
    mark.style.setProperty("--hue", hueOf(label));
    parts.push(characters.slice(end, entity.start).join(""), mark);
    end = entity.end;
    labels.set(label, (labels.get(label) || 0) + 1);
  }
  const legend = [...labels].map(([label, count]) => {
    const key = element("li", {className: "key"}, `${label} · ${count}`);
    key.style.setProperty("--hue", hueOf(label));
    return key;
  });
  return [element("p", {className: "text"}, ...parts, characters.slice(end).join("")),
    legend.length ? element("ul", {className: "legend"}, ...legend) : element("p", {className: "legend"}, "No entities were found.")];
}

function fillable(answer, sent, form) {
  const mask = chosen().mask_token, pieces = sent.inputs.split(mask), picked = {};
  const masks = Array.isArray(answer[0]) ? answer : [answer];
  const write = () => {
    form.elements.inputs.value = pieces.reduce((text, piece, index) => {
      const word = picked[index - 1] ?? mask;
      return (word.startsWith("##") ? text.trimEnd() + word.slice(2) : text + word.trim()) + piece;
    });
    form.dispatchEvent(new Event("input"));
  };
  return masks.flatMap((words, number) => {
    const buttons = words.map(word => bar(word.token_str, word.score, percent(word.score),
      element("button", {type: "button", ariaPressed: "false", onclick: event => {
        picked[number] = word.token_str;
        buttons.forEach(button => button.ariaPressed = String(button === event.currentTarget));
        write();
      }})));
    const list = element("ol", {className: "bars"}, ...buttons.map(button => element("li", {}, button)));
    return masks.length > 1 ? [element("h2", {}, `Mask ${number + 1}`), list] : [list];
  });
}

function bracketed(text) {
  const spans = [];
  let plain = "";
  for (const part of text.split(/(\[[^[\]]+\])/)) {
    const isMarked = /^\[.+\]$/s.test(part), start = [...plain].length;  // offsets count code points
    plain += isMarked ? part.slice(1, -1) : part;
    if (isMarked) spans.push([start, [...plain].length]);
  }
  return {text: plain, spans};
}

async function chips(answer, sent, form, signal) {
  const kept = answer.map(words => words.toSorted((one, other) => other.value - one.value).slice(0, mostTexts));
  const made = [];
  for (const [index, words] of kept.entries()) {
    const more = answer[index].length - words.length;
    const ids = words.map(word => [word.index]);
    const names = !ids.length ? [] : await ask("decode", JSON.stringify({ids, ...named()}), signal).catch(error => {
      if (signal.aborted) throw error;
      return ids.map(([id]) => `token ${id}`);  // beyond the tokenizer: the model's vocabulary is rounded up
    });
    made.push(element("h2", {}, sent.inputs[index]), element("ul", {className: "chips"}, ...words.map((word, place) => {
      const share = word.value / words[0].value;
      const chip = shared(element("li", {title: `token ${word.index}`}, names[place], element("small", {}, word.value.toFixed(2))), share);
      chip.classList.toggle("strong", share > 0.7);
      return chip;
    })), element("p", {className: "legend"}, more ? `and ${more.toLocaleString("en")} more with less weight` : words.length ? "" : "No word has a weight."));
  }
  return made;
}

function attentionMap({tokens, weights}, sent, form) {
  const shown = tokens.map((_, index) => index).filter(index => form.elements.special.checked || !tokens[index].special);
  const rows = shown.map(row => shown.map(column => weights[row][column]));
  return heatMap(shown.map(index => tokens[index].text), rows, {small: true, most: Math.max(...rows.flat(), 1e-9)});
}

// Tasks: the request that a tab's form makes, and the display of its answer

const named = () => models.length > 1 ? {model: chosen().id} : {};
const cosines = rows => rows.map(row => rows.map(other => row.reduce((sum, value, index) => sum + value * other[index], 0)));
const ranked = (texts, entries) => [element("ol", {className: "bars long"},
  ...entries.map(({index, score}) => bar(texts[index], score / Math.max(1, entries[0].score), score.toFixed(3))))];

const TASKS = {
  similarity: {
    request: form => ["embed", {inputs: linesOf(form.inputs.value)}],
    show: (answer, sent) => heatMap(sent.inputs, cosines(answer)),
  },
  rank: {
    request: form => {
      const query = form.query.value, texts = linesOf(form.texts.value);
      return ["reranker", "late-interaction"].includes(chosen().task)
        ? ["rerank", {query, texts}]
        : ["similarity", {inputs: {source_sentence: query, sentences: texts}}];
    },
    show: (answer, sent) => {
      if (sent.texts) return ranked(sent.texts, answer);
      const entries = answer.map((score, index) => ({index, score})).sort((one, other) => other.score - one.score);
      return ranked(sent.inputs.sentences, entries);
    },
  },
  classify: {
    request: ({inputs, second}) => ["predict", {inputs: second.value.trim() ? [inputs.value, second.value] : inputs.value}],
    show: answer => [element("ol", {className: "bars"}, ...answer.map(({label, score}) => bar(label, score, percent(score))))],
  },
  entities: {
    request: ({inputs, labels}) => chosen().task !== "zero-shot-ner" ? ["token_classification", {inputs: inputs.value}]
      : ["predict_entities", {inputs: inputs.value, labels: labels.value.split(",").map(label => label.trim()).filter(Boolean)}],
    show: (answer, sent) => marked(sent.inputs, answer),
  },
  fill: {
    request: form => ["fill_mask", {inputs: form.inputs.value, parameters: {top_k: form.top_k.valueAsNumber || 8}}],
    show: fillable,
  },
  sparse: {request: form => ["embed_sparse", {inputs: linesOf(form.inputs.value)}], show: chips},
  attention: {
    request: ({inputs, layer, head}) => {
      const most = head.value ? {head: Number(head.value)} : {};
      return ["attention", {inputs: inputs.value, layer: Number(layer.value), ...most}];
    },
    show: attentionMap,
  },
  request: {
    request: form => [form.path.value.slice(1), form.body.value],
    show: answer => {
      const text = JSON.stringify(answer, null, 1).replace(/(?<=\[)\s+(?=[-\d])|(?<=\d)\s+(?=\])/g, "").replace(/\n\s+(?=[-\d])/g, " ");
      return [element("pre", {tabIndex: 0}, text.length > 20000 ? `${text.slice(0, 20000)} …` : text)];
    },
  },
};

TASKS.marked = {
  request: form => ["entity_classification", {inputs: bracketed(form.inputs.value)}],
  show: TASKS.classify.show,
};

const bodyOf = body => typeof body === "string" ? body : JSON.stringify({...body, ...named()});
const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

function curlOf([path, body]) {
  const key = at("unlock").hidden ? "" : ` \\\n  -H "Authorization: Bearer $BERTCORE_API_KEY"`;
  return `curl ${quoted(new URL(path, location.href.split("#")[0]).href)}${key} \\\n  --json ${quoted(bodyOf(body))}`;
}

// A tab's form: run, cancel, errors, curl

function prepare(section) {
  const task = TASKS[section.id], form = section.querySelector("form");
  const rest = at("rest").content.cloneNode(true), find = name => section.querySelector(name);
  form.append(rest.querySelector(".run"));
  section.append(rest);
  const [run, cancel, status, clock, result] = [".primary", ".cancel", ".status", ".clock", ".result"].map(find);
  for (const field of form.querySelectorAll("input:not([type=checkbox]), textarea")) {
    const id = `${section.id}-${field.name}-error`;
    field.setAttribute("aria-describedby", id);
    field.closest("label").after(element("p", {className: "error", id}));
  }
  const isBrief = form.querySelector("textarea").dataset.enter !== undefined;
  find(".hint").textContent = isBrief ? "Enter to run, Shift+Enter for a new line." : "Ctrl+Enter to run.";

  let running = null;
  const say = (text, isWrong = false) => {
    status.textContent = text;
    status.classList.toggle("wrong", isWrong);
  };
  const complain = (message, field) => {
    for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
    for (const each of form.querySelectorAll(".error")) each.textContent = "";
    if (!field) return;
    field.setAttribute("aria-invalid", "true");
    at(field.getAttribute("aria-describedby")).textContent = message;
    field.focus();
  };
  const refuse = error => {
    if (error.name === "AbortError") return say("Cancelled.");
    if (!(error instanceof Refusal)) return say(`The server did not answer: ${error.message}`, true);
    if (error.status === 401) {
      say("The server requires an API key.", true);
      return lock();
    }
    const stated = error.message.match(/^[\w.: ]*?(\w+)(\[\d+\])?(?= (is|has)\b)/)?.[1];
    say(`Refused (${error.status}).`, true);
    complain(error.message, form.elements[{sentences: "texts", source_sentence: "query"}[stated] ?? stated]
      ?? form.querySelector("textarea"));
  };
  const submit = async event => {
    event?.preventDefault();
    if (running) return;
    complain();
    const start = performance.now(), control = running = new AbortController();
    const ticking = setInterval(() => clock.textContent = `${((performance.now() - start) / 1000).toFixed(1)} s`, 100);
    say("Computing …");
    run.ariaBusy = "true";
    cancel.hidden = false;
    try {
      const [path, body] = task.request(form.elements);
      const answer = await ask(path, bodyOf(body), control.signal);
      result.replaceChildren(...await task.show(answer, body, form, control.signal));
      say(`Done in ${Math.round(performance.now() - start)} ms.`);
    } catch (error) {
      result.replaceChildren();
      refuse(error);
    } finally {
      clearInterval(ticking);
      clock.textContent = "";
      running = null;
      run.ariaBusy = null;
      if (document.activeElement === cancel) run.focus();
      cancel.hidden = true;
    }
  };
  const curl = find(".curl pre"), write = () => curl.textContent = curlOf(task.request(form.elements));
  form.addEventListener("submit", submit);
  form.addEventListener("input", write);
  find(".curl").addEventListener("toggle", write);
  section.addEventListener("model", () => {
    running?.abort();
    result.replaceChildren();
    complain();
    say("");
    write();
  });
  cancel.addEventListener("click", () => running?.abort());
  find(".curl button").addEventListener("click", async event => {
    const button = event.currentTarget;
    getSelection().selectAllChildren(curl);
    try {
      await navigator.clipboard.writeText(curl.textContent);
    } catch {  // the clipboard needs localhost or TLS
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => button.textContent = "Copy", 2000);
  });
  form.addEventListener("keydown", event => {
    const isText = event.target.matches("textarea");
    if (event.key !== "Enter" || event.isComposing || !isText) return;
    if (event.ctrlKey || event.metaKey || (isBrief && !event.shiftKey)) submit(event);
  });
  if (section.id === "attention") form.elements.special.addEventListener("change", () => result.firstChild && submit());
}

// Tabs

const sections = [...document.querySelectorAll("main > section")];

function select(section, {focus = false} = {}) {
  for (const each of sections) {
    const tab = at(`tab-${each.id}`), isIt = each === section;
    each.hidden = !isIt;
    tab.ariaSelected = String(isIt);
    tab.tabIndex = isIt ? 0 : -1;
    if (isIt && focus) tab.focus();
  }
  history.replaceState(null, "", `#${section.id}`);
}

function makeTabs() {
  const list = document.querySelector("[role=tablist]");
  for (const section of sections) {
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", `tab-${section.id}`);
    const tab = element("button", {type: "button", id: `tab-${section.id}`, onclick: () => select(section)}, section.dataset.name);
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", section.id);
    list.append(tab);
    prepare(section);
  }
  list.addEventListener("keydown", event => {
    const shown = sections.filter(section => !at(`tab-${section.id}`).hidden);
    const from = shown.findIndex(section => !section.hidden), last = shown.length - 1;
    const to = {ArrowRight: from === last ? 0 : from + 1, ArrowLeft: from || shown.length, Home: 0, End: last}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(shown[event.key === "ArrowLeft" ? to - 1 : to], {focus: true});
  });
}

function options(field, count, first = []) {
  const made = Array.from({length: count}, (_, index) => element("option", {value: index + 1}, String(index + 1)));
  field.replaceChildren(...first, ...made);
}

function useModel() {
  const model = chosen(), attention = at("attention").querySelector("form").elements;
  options(attention.layer, model.layers);
  attention.layer.value = model.layers;
  options(attention.head, model.heads, [element("option", {value: ""}, "mean of all")]);
  at("kinds").hidden = model.task !== "zero-shot-ner";
  if (model.mask_token) {
    const text = at("fill").querySelector("textarea");
    if (!text.value) text.value = `The capital of France is ${model.mask_token}.`;
    at("insert").textContent = `Insert ${model.mask_token}`;
  }
  const entities = at("marked").querySelector("textarea");
  entities.value ||= `[Ada Lovelace] was born in ${model.task === "relation-extraction" ? "[London]" : "London"}.`;
  for (const section of sections) {
    const tasks = section.dataset.tasks;
    const isOfTask = !tasks || tasks.split(" ").includes(model.task);
    at(`tab-${section.id}`).hidden = !isOfTask || (section.id === "attention" && !model.layers);
    section.dispatchEvent(new Event("model"));
  }
  const shown = sections.filter(section => !at(`tab-${section.id}`).hidden);
  const wanted = location.hash.slice(1);
  select(shown.find(section => section.id === wanted) ?? shown[0]);
}

// Start

function lock() {
  at("unlock").hidden = false;
  at("key").setAttribute("aria-invalid", String(Boolean(at("key").value)));
  at("key-error").textContent = at("key").value ? "This is not the server's key." : "";
  at("notice").textContent = "This server requires an API key. The page keeps it until you close it.";
  at("key").focus();
}

async function connect() {
  try {
    const [listed, info, api] = await Promise.all([ask("v1/models"), ask("info"), ask("openapi.json")]);
    models = listed.data;
    mostTexts = info.max_client_batch_size;
    const posts = Object.entries(api.paths).filter(([path, operations]) => operations.post && path !== "/");
    examples = Object.fromEntries(posts.map(([path, {post}]) => [path, post.requestBody.content["application/json"].example]));
  } catch (error) {
    if (error.status === 401) return lock();
    at("notice").textContent = `The server did not answer as expected: ${error.message}`;
    return;
  }
  at("key").removeAttribute("aria-invalid");
  at("key-error").textContent = at("notice").textContent = "";
  at("model").replaceChildren(...models.map(model => element("option", {}, `${model.id} (${model.task})`)));
  const {path, body} = at("request").querySelector("form").elements;
  path.replaceChildren(...Object.keys(examples).map(name => element("option", {}, name)));
  path.onchange = () => {
    body.value = JSON.stringify(examples[path.value], null, 2);
    body.form.dispatchEvent(new Event("input"));
  };
  path.onchange();
  at("main").hidden = document.querySelector(".choice").hidden = false;
  useModel();
}

makeTabs();
at("model").addEventListener("change", useModel);
at("unlock").addEventListener("submit", event => {
  event.preventDefault();
  connect();
});
at("insert").addEventListener("click", () => {
  const text = at("fill").querySelector("textarea");
  text.setRangeText(chosen().mask_token, text.selectionStart, text.selectionEnd, "end");
  text.form.dispatchEvent(new Event("input"));
  text.focus();
});
connect();
