// One column: a dialogue with the model, its last reply token by token, and what the experts did.
class Talk {
  constructor(shared, number) {
    this.shared = shared;
    this.number = number;
    this.element = make("section", "talk", { "aria-label": "dialogue " + (number + 1) });
    this.forget();
  }

  forget() {
    this.messages = [];
    this.element.replaceChildren(make("p", "empty", {}, this.shared.invitation()));
    this.reset_reply();
  }

  reset_reply() {
    const { moe_layers: layers, num_experts: experts } = this.shared.meta;
    this.pieces = []; // text of each token of the reply
    this.thoughts = new Set(); // those that are no part of the answer
    this.thinks = false;
    this.thought = "";
    this.answer = "";
    this.routed = []; // the routing of each, one step later
    this.spans = [];
    this.dirty = new Set();
    this.prompt_left = null; // tokens of the prompt whose routing has not come
    this.rows = layers.map(() => new Float64Array(experts));
    this.usage = null;
  }

  get writing() {
    return this.abort != null;
  }

  // Sends a message, or asks again for the last reply where there is none.
  async ask(text) {
    if (text != null) {
      if (this.messages.length === 0) this.element.replaceChildren();
      this.messages.push({ role: "user", content: text });
      this.element.append(said("user", "You", text));
    } else {
      if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
      this.reply?.remove();
      this.under?.remove();
    }
    this.trouble?.remove();
    this.reset_reply();
    this.reply = said("assistant", "Model", "");
    this.body = this.reply.lastChild;
    this.body.setAttribute("role", "group");
    this.body.classList.add("writing");
    this.under = make("div", "under", { "aria-live": "polite" });
    this.element.append(this.reply, this.under);
    this.abort = new AbortController();
    this.began = performance.now();
    try {
      await this.read_stream();
    } catch (error) {
      if (error.name !== "AbortError") this.show_trouble(error);
    }
    this.abort = null;
    this.finish();
  }

  stop() {
    this.abort?.abort();
  }

  body_of_request() {
    const { settings, meta } = this.shared;
    const body = {
      ...settings(),
      stream: true,
      stream_options: { include_usage: true },
      routing: meta.num_experts > 0,
    };
    if (meta.dialogues === "none") {
      body.prompt = this.messages.map((m) => m.content).join("\n");
      return ["/v1/completions", body];
    }
    const system = this.shared.system();
    body.messages = (system ? [{ role: "system", content: system }] : []).concat(this.messages);
    return ["/v1/chat/completions", body];
  }

  async read_stream() {
    const [path, body] = this.body_of_request();
    const response = await this.shared.post(path, body, this.abort.signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the connection was lost");
      rest += value;
      for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
        const data = rest.slice("data: ".length, end);
        if (data === "[DONE]") return;
        this.take(JSON.parse(data));
      }
    }
  }

  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    if (choice.routing) this.take_routing(choice.routing);
    const thought = choice.delta?.reasoning_content || "";
    const answer = choice.delta ? choice.delta.content || "" : choice.text;
    const text = thought + (answer && (thought || this.thinks) ? "\n\n" : "") + answer;
    if (thought || answer) this.thinks = !answer;
    this.thought += thought;
    this.answer += answer;
    // A chunk that comes while the prompt is still read has no token of the reply.
    const at = Math.max(this.routed.length, this.shared.meta.num_experts > 0 ? 0 : this.pieces.length);
    if (text || (this.prompt_left === 0 && !choice.finish_reason)) {
      const place = choice.finish_reason ? Math.max(this.pieces.length - 1, 0) : at;
      while (this.pieces.length <= place) this.pieces.push("");
      this.pieces[place] += text;
      if (thought) this.thoughts.add(place);
      this.dirty.add(place);
    }
    if (choice.finish_reason) this.finish_reason = choice.finish_reason;
    this.shared.redraw(this);
  }

  take_routing(routing) {
    if (this.prompt_left == null) this.prompt_left = routing.prompt_tokens;
    for (const token of routing.tokens) {
      token.experts.forEach((experts, layer) => experts.forEach((e) => this.rows[layer][e]++));
      if (this.prompt_left > 0) {
        this.prompt_left--;
        continue;
      }
      this.dirty.add(this.routed.length);
      this.routed.push(token);
    }
  }

  // The expert with the largest weight in a layer; null where none is known.
  strongest(i, layer) {
    const token = this.routed[i];
    if (!token || !token.experts[layer]?.length) return null;
    const weights = token.weights[layer];
    return token.experts[layer][weights.indexOf(Math.max(...weights))];
  }

  colour(i) {
    const expert = this.strongest(i, this.shared.layer);
    const span = this.spans[i];
    const shown = span.classList.contains("on") ? " on" : "";
    const thought = this.thoughts.has(i) ? " thought" : "";
    span.className = (expert == null ? "" : "t x" + expert + shown) + thought;
    span.tabIndex = -1;
  }

  // Only what has changed since the last time.
  draw() {
    for (const i of [...this.dirty].sort((a, b) => a - b)) {
      if (this.pieces[i] == null) continue;
      if (!this.spans[i]) {
        this.spans[i] = make("span", "", { "data-i": i });
        this.body.append(this.spans[i]);
      }
      if (this.spans[i].textContent !== this.pieces[i]) this.spans[i].textContent = this.pieces[i];
      this.colour(i);
    }
    this.dirty.clear();
    const seconds = (performance.now() - this.began) / 1000;
    if (this.writing && this.pieces.length)
      this.under.textContent = `${this.pieces.length} tokens, ${(this.pieces.length / seconds).toFixed(1)} a second`;
  }

  recolour() {
    this.spans.forEach((_, i) => this.colour(i));
  }

  finish() {
    this.draw();
    this.body.classList.remove("writing");
    const text = this.answer;
    if (text || this.usage) {
      const message = { role: "assistant", content: text };
      if (this.thought) message.reasoning_content = this.thought; // the template decides
      this.messages.push(message);
    }
    if (this.spans[0]) this.spans[0].tabIndex = 0;
    this.under.replaceChildren();
    if (this.usage) {
      const u = this.usage;
      const cached = u.prompt_tokens_details.cached_tokens;
      this.under.append(
        `${u.completion_tokens} tokens in ${((performance.now() - this.began) / 1000).toFixed(1)} s, ` +
          `${u.prompt_tokens} of prompt${cached ? ` (${cached} known already)` : ""}` +
          (this.finish_reason === "length" ? ", cut at the limit" : ""),
      );
    } else if (text) this.under.append("stopped");
    if (text) {
      const copy = make("button", "", { type: "button" }, "Copy");
      copy.addEventListener("click", () => navigator.clipboard?.writeText(text));
      this.under.append(copy);
    }
    this.shared.redraw(this);
  }

  show_trouble(error) {
    this.trouble = make("div", "trouble", { role: "alert" }, error.message);
    if (error.retry_after) {
      const again = make("button", "", { type: "button" }, "Try again");
      this.trouble.append(` (in ${error.retry_after} s) `, again);
      again.addEventListener("click", () => this.shared.again(this));
    }
    this.element.append(this.trouble);
    if (error.status === 401) this.shared.login();
  }
}

function said(role, who, text) {
  const element = make("div", "said " + role);
  element.append(make("span", "who", {}, who + ": "), make("span", "", {}, text));
  return element;
}

function make(tag, classes = "", attributes = {}, text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}
