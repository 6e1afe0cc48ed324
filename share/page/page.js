// The page around the dialogues: settings, the experts' side, and what the keys do.
const $ = (id) => document.getElementById(id);

const kFields = [
  ["max_tokens", "Most tokens", 400, 1],
  ["temperature", "Temperature", 0.8, 0.1],
  ["top_p", "Top-p", 0.95, 0.05],
  ["top_k", "Top-k", 40, 1],
  ["min_p", "Min-p", 0.05, 0.01],
  ["repeat_penalty", "Repeat penalty", 1, 0.05],
  ["seed", "Seed (random)", "", 1],
];
const kHot = 8;

const shared = {
  meta: { moe_layers: [], num_experts: 0, dialogues: "template" },
  layer: 0,
  talks: [],
  waiting: new Set(),

  invitation() {
    return this.meta.num_experts > 0
      ? "Say something. Each token of the reply takes the colour of the expert that took it."
      : "Say something.";
  },
  settings() {
    const body = {};
    for (const [name] of kFields) if ($(name).value !== "") body[name] = Number($(name).value);
    return body;
  },
  system: () => $("system").value.trim(),
  async post(path, body, signal) {
    return fetch_checked(path, { method: "POST", signal, body: JSON.stringify(body) });
  },
  // At most once a frame, however fast the tokens come.
  redraw(talk) {
    if (this.waiting.size === 0) requestAnimationFrame(() => this.draw());
    this.waiting.add(talk);
  },
  draw() {
    for (const talk of this.waiting) talk.draw();
    this.waiting.clear();
    draw_side();
    draw_buttons();
  },
  again: (talk) => run([[talk, null]]),
  login: () => {
    $("login").hidden = false;
    $("key").focus();
  },
};

async function fetch_checked(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = "Bearer " + key;
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no body that says more
  }
  const error = new Error(message);
  error.status = response.status;
  error.retry_after = response.headers.get("Retry-After");
  throw error;
}

async function begin() {
  try {
    const model = (await (await fetch_checked("/v1/models")).json()).data[0];
    shared.meta = model.meta;
    $("login").hidden = true;
    show_model(model);
  } catch (error) {
    if (error.status === 401) return shared.login();
    $("about").textContent = error.message;
  }
}

function show_model(model) {
  const m = model.meta;
  const dense = m.num_experts === 0;
  $("name").textContent = document.title = model.id;
  const count = m.parameters >= 1e9 ? (m.parameters / 1e9).toFixed(1) + "B" : (m.parameters / 1e6).toFixed(1) + "M";
  $("about").textContent =
    `${count} parameters, ${m.layers} layers` +
    (dense ? ", dense" : `, ${m.moe_layers.length} with ${m.num_experts} experts, ${m.top_k} a token (${m.recipe})`) +
    `, a context of ${m.context}` +
    (m.dialogues === "none" ? ". It was not trained on dialogues: what you write is continued." : "");
  for (const id of ["lane-card", "heat-card", "hot-card"]) $(id).hidden = dense;
  $("dense-card").hidden = !dense;
  m.moe_layers.forEach((layer, i) => $("layer").append(new Option(layer, i)));
  shared.layer = Math.max(m.moe_layers.length - 1, 0);
  $("layer").value = shared.layer;
  set_columns(1);
}

function set_columns(count) {
  while (shared.talks.length > count) shared.talks.pop().stop();
  while (shared.talks.length < count) shared.talks.push(new Talk(shared, shared.talks.length));
  $("talks").replaceChildren(...shared.talks.map((talk) => talk.element));
  const old = $("boxes").firstElementChild?.value ?? "";
  $("boxes").replaceChildren(
    ...shared.talks.map((_, i) => {
      const label = count > 1 ? "Message " + (i + 1) : "Message";
      return make("textarea", "", { id: i ? "say2" : "say", rows: 2, placeholder: label, "aria-label": label });
    }),
  );
  $("say").value = old;
  $("compare").setAttribute("aria-pressed", String(count > 1));
  $("agree-card").hidden = count < 2 || shared.meta.num_experts === 0;
  draw_side();
  draw_buttons();
}

async function run(asked) {
  const all = asked.map(([talk, text]) => talk.ask(text));
  draw_buttons();
  await Promise.all(all);
  draw_side();
  draw_buttons();
}

function send() {
  if (shared.talks.some((talk) => talk.writing)) return;
  const boxes = [...$("boxes").children];
  const texts = boxes.map((box) => box.value.trim());
  if (texts.every((text) => !text)) return boxes[0].focus();
  boxes.forEach((box) => (box.value = ""));
  const asked = shared.talks.map((talk, i) => [talk, texts[i]]).filter(([, text]) => text);
  run(asked).then(() => boxes[0].isConnected && boxes[0].focus({ preventScroll: true }));
}

function draw_buttons() {
  const writing = shared.talks.some((talk) => talk.writing);
  $("send").disabled = writing;
  $("stop").disabled = !writing;
  $("again").disabled = writing || !shared.talks.some((talk) => talk.messages.length);
}

const share = (rows) => {
  const all = rows.reduce((a, b) => a + b, 0);
  return Array.from(rows, (n) => (all ? n / all : 0));
};

function draw_heat(rows, caption) {
  const figure = make("figure");
  const experts = shared.meta.num_experts;
  const canvas = make("canvas", "", { width: experts, height: rows.length, role: "img", "aria-label": caption });
  canvas.style.height = Math.min(Math.max(rows.length * 14, 56), 300) + "px";
  const note = make("p", "note");
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--over");
  rows.forEach((row, layer) => {
    const shares = share(row);
    const most = Math.max(...shares);
    shares.forEach((s, e) => {
      context.globalAlpha = most ? s / most : 0;
      context.fillRect(e, layer, 1, 1);
    });
  });
  canvas.addEventListener("pointermove", (event) => {
    const e = Math.min(Math.floor((event.offsetX / canvas.clientWidth) * experts), experts - 1);
    const layer = Math.min(Math.floor((event.offsetY / canvas.clientHeight) * rows.length), rows.length - 1);
    note.textContent = `layer ${shared.meta.moe_layers[layer]}, expert ${e}: ${rows[layer][e]} rows, ${(100 * share(rows[layer])[e]).toFixed(1)}%`;
  });
  figure.append(make("figcaption", "", {}, caption), canvas, note);
  return figure;
}

function draw_side() {
  if (shared.meta.num_experts === 0) return;
  const heats = shared.since_start
    ? [draw_heat(shared.since_start, "This server since its start")]
    : shared.talks.map((talk, i) => draw_heat(talk.rows, shared.talks.length > 1 ? "Message " + (i + 1) : "This reply and its prompt"));
  $("heats").replaceChildren(...heats);
  draw_hot(shared.talks[0]);
  if (shared.talks.length > 1) draw_agreement();
}

function draw_hot(talk) {
  const found = [];
  talk.rows.forEach((row, layer) => share(row).forEach((s, e) => s > 0 && found.push([s, layer, e])));
  found.sort((a, b) => b[0] - a[0] || a[1] - b[1] || a[2] - b[2]);
  $("hot").replaceChildren(
    ...found.slice(0, kHot).map(([s, layer, e]) => {
      const words = new Map();
      talk.routed.forEach((token, i) => {
        if (talk.strongest(i, layer) === e) words.set(token.text, (words.get(token.text) || 0) + 1);
      });
      const most = [...words].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([word]) => JSON.stringify(word).slice(1, -1));
      const item = make("li");
      item.append(
        make("b", "x" + e, {}, `layer ${shared.meta.moe_layers[layer]} · ${e}`),
        make("span", "", {}, (100 * s).toFixed(0) + "%"),
        make("span", "w", { title: most.join(" ") }, most.join(" ")),
      );
      item.firstChild.title = "layer · expert";
      return item;
    }),
  );
}

function draw_agreement() {
  const [one, two] = shared.talks;
  const grid = make("div", "agree");
  shared.meta.moe_layers.forEach((layer, i) => {
    const a = share(one.rows[i]), b = share(two.rows[i]);
    const both = a.reduce((sum, s, e) => sum + Math.min(s, b[e]), 0);
    const bar = make("i");
    bar.style.width = 100 * both + "%";
    grid.append(make("span", "soft", {}, "layer " + layer), bar, make("span", "", {}, both.toFixed(2)));
  });
  $("agree").replaceChildren(grid);
}

function show_lane(span) {
  const talk = shared.talks.find((t) => t.spans[span.dataset.i] === span);
  const token = talk?.routed[span.dataset.i];
  document.querySelector(".t.on")?.classList.remove("on");
  if (!token) return;
  span.classList.add("on");
  $("lane-head").textContent = `${JSON.stringify(talk.pieces[span.dataset.i])}, token ${Number(span.dataset.i) + 1} of the reply: its experts in each layer, as wide as their weight.`;
  const grid = make("div", "lane");
  token.experts.forEach((experts, i) => {
    const row = make("div", "parts", { role: "img" });
    const all = token.weights[i].reduce((a, b) => a + b, 0) || 1;
    const order = experts.map((e, k) => [token.weights[i][k], e]).sort((a, b) => b[0] - a[0]);
    for (const [weight, e] of order) {
      const part = make("span", "x" + e, { title: `expert ${e}: ${weight.toFixed(3)}` }, String(e));
      part.style.flex = `${weight / all} 1 0`;
      row.append(part);
    }
    row.setAttribute("aria-label", order.map(([w, e]) => `expert ${e} ${w.toFixed(2)}`).join(", "));
    const label = make("span", "l", {}, "layer " + shared.meta.moe_layers[i]);
    const line = i === shared.layer ? make("b", "l", {}, label.textContent) : label;
    grid.append(line, row);
  });
  $("lane").replaceChildren(grid);
}

function step_token(span, step) {
  let next = span;
  do next = step > 0 ? next.nextElementSibling : next.previousElementSibling;
  while (next && next.textContent === "");  // not every token ends a letter
  if (!next) return;
  span.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function listen() {
  for (const event of ["mouseover", "focusin", "click"])
    $("talks").addEventListener(event, (e) => e.target.dataset?.i != null && show_lane(e.target));
  $("talks").addEventListener("keydown", (e) => {
    if (e.target.dataset?.i == null || !["ArrowLeft", "ArrowRight"].includes(e.key)) return;
    e.preventDefault();
    step_token(e.target, e.key === "ArrowRight" ? 1 : -1);
  });
  $("composer").addEventListener("submit", (e) => {
    e.preventDefault();
    send();
  });
  $("boxes").addEventListener("keydown", (e) => {
    if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
    e.preventDefault();
    send();
  });
  const stop = () => shared.talks.forEach((talk) => talk.stop());
  document.addEventListener("keydown", (e) => e.key === "Escape" && stop());
  $("stop").addEventListener("click", stop);
  $("again").addEventListener("click", () =>
    run(shared.talks.filter((talk) => talk.messages.length).map((talk) => [talk, null])));
  $("clear").addEventListener("click", () => {
    stop();
    shared.talks.forEach((talk) => talk.forget());
    draw_side();
    draw_buttons();
  });
  $("compare").addEventListener("click", () => set_columns(shared.talks.length > 1 ? 1 : 2));
  $("layer").addEventListener("change", () => {
    shared.layer = Number($("layer").value);
    shared.talks.forEach((talk) => talk.recolour());
    const shown = document.querySelector(".t.on");
    if (shown) show_lane(shown);
  });
  $("plain").addEventListener("change", () => $("talks").classList.toggle("plain", $("plain").checked));
  $("source").addEventListener("click", async () => {
    const on = !shared.since_start;
    shared.since_start = on ? (await (await fetch_checked("/experts")).json()).rows : null;
    $("source").setAttribute("aria-pressed", String(on));
    draw_side();
  });
  $("login").addEventListener("submit", (e) => {
    e.preventDefault();
    sessionStorage.setItem("key", $("key").value);
    begin();
  });
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme:dark)").matches ? "dark" : "light")) === "dark";
  const name_theme = () => ($("theme").textContent = dark() ? "Light" : "Dark");
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    name_theme();
    draw_side();
  });
  name_theme();
}

for (const [name, label, initial, step] of kFields) {
  const box = make("div");
  box.append(make("label", "", { for: name }, label), make("input", "", { id: name, type: "number", step: name === "seed" ? 1 : step, min: 0, value: initial }));
  $("fields").append(box);
}
listen();
begin();
