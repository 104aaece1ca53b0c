// The Gantt pictures of the report: drawn from the data beside each, when they come into view. Zoom, move, step from
// block to block by mouse or keyboard, predicted or measured, memory. No library and no network: this is all of it.
"use strict";
(() => {
  const KINDS = "FDWB";
  // dark edges tell kinds apart without colour, as in crosspipe.schedule.drawing.layout: F has none
  const EDGES = { F: [], D: [0], W: [1], B: [0, 1] }, EDGE = 0.12;
  const EDGE_WORDS = { F: "", D: ", dark upper edge", W: ", dark lower edge", B: ", both edges dark" };
  const NAMES = { F: "forward", D: "input gradient", W: "weight gradient", B: "backward (D and W)" };
  const LEFT = 52, RIGHT = 10, HEAD = 22, AXIS = 30, GAP = 8;
  const HELP = "+ and − zoom, 0 shows all; arrows step from block to block, Shift + arrows move. " +
    "Mouse: drag to move, Ctrl + wheel or double-click to zoom.";

  const escape = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const digits = (value) => Number(value.toPrecision(4)).toString();

  function time(ns) {
    for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]])
      if (Math.abs(ns) >= size) return `${digits(ns / size)} ${unit}`;
    return `${digits(ns)} ns`;
  }

  // Rows come as [kind, chunk, microbatch, piece, wait, duration, …] in ticks; here they become blocks with times.
  function unpack(timeline, unit) {
    const rows = timeline.rows.map((flat) => {
      const row = [];
      for (let i = 0, now = 0; i < flat.length; i += 6) {
        const start = now + flat[i + 4], end = start + flat[i + 5];
        row.push({ kind: KINDS[flat[i]], chunk: flat[i + 1], microbatch: flat[i + 2], piece: flat[i + 3],
          start: start * unit, end: end * unit });
        now = end;
      }
      return row;
    });
    const memory = timeline.memory.map((flat) => {
      const steps = [];
      for (let i = 0, now = 0; i < flat.length; i += 2) steps.push([(now += flat[i]) * unit, flat[i + 1]]);
      return steps;
    });
    const messages = [];
    for (let i = 0; i < timeline.messages.length; i += 4) {
      const [source, target, start, end] = timeline.messages.slice(i, i + 4);
      messages.push({ source, target, start: start * unit, end: end * unit });
    }
    return { ...timeline, rows, memory, messages };
  }

  // The last entry that begins at or before `ns`; -1 before the first.
  function last(entries, ns, at) {
    let low = 0, high = entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at(entries[middle]) <= ns) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  let pictures = 0;

  class Gantt {
    constructor(box) {
      const data = JSON.parse(box.querySelector("script").textContent);
      this.data = data;
      this.timelines = data.timelines.map((timeline) => unpack(timeline, data.unit_ns));
      this.end = Math.max(1, ...data.timelines.map((timeline) => timeline.makespan * data.unit_ns));
      this.shown = "both";
      this.memory = true;
      this.from = 0;
      this.to = this.end;
      this.selected = null; // { panel, stage, index }
      this.build(box);
      this.draw();
    }

    build(box) {
      const bar = document.createElement("div");
      bar.className = "tools";
      const button = (text, label, act) => {
        const made = document.createElement("button");
        made.type = "button";
        made.textContent = text;
        if (label) made.setAttribute("aria-label", label);
        made.addEventListener("click", () => act(made));
        bar.append(made);
        return made;
      };
      if (this.timelines.length > 1) {
        const names = ["both", ...this.timelines.map((timeline) => timeline.name)];
        const choices = names.map((name) => button(name, null, () => {
          this.shown = name;
          this.selected = null;
          choices.forEach((one, i) => one.setAttribute("aria-pressed", names[i] === name));
          this.draw();
        }));
        choices.forEach((one, i) => one.setAttribute("aria-pressed", i === 0));
      }
      button("memory", null, (self) => {
        this.memory = !this.memory;
        self.setAttribute("aria-pressed", this.memory);
        this.draw();
      }).setAttribute("aria-pressed", true);
      button("−", "zoom out", () => this.zoom(2));
      button("+", "zoom in", () => this.zoom(0.5));
      button("all", "show all", () => this.show(0, this.end));

      this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      this.svg.setAttribute("tabindex", "0");
      this.svg.setAttribute("role", "application"); // it has keys of its own
      this.svg.setAttribute("aria-roledescription", "Gantt picture");
      this.svg.setAttribute("aria-label", box.dataset.label);
      this.drawing = document.createElementNS("http://www.w3.org/2000/svg", "g");
      this.drawing.setAttribute("aria-hidden", "true"); // thousands of marks: what is selected is said instead
      this.svg.append(this.drawing);
      this.readout = document.createElement("p");
      this.readout.className = "readout";
      this.readout.id = `readout-${++pictures}`;
      this.readout.textContent = HELP;
      this.svg.setAttribute("aria-describedby", this.readout.id);
      this.said = document.createElement("p"); // read out on keys; a mouse that passes over blocks says nothing
      this.said.className = "said";
      this.said.setAttribute("role", "status");
      box.append(bar, this.svg, this.readout, this.said);

      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event));
      }, { passive: false });
      this.svg.addEventListener("dblclick", (event) => this.zoom(0.5, this.timeAt(event)));
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        this.grip = { x: event.clientX, from: this.from, to: this.to };
        this.svg.setPointerCapture(event.pointerId);
      });
      this.svg.addEventListener("pointerup", () => { this.grip = null; });
      this.svg.addEventListener("pointercancel", () => { this.grip = null; });
      this.svg.addEventListener("pointermove", (event) => {
        if (this.grip && Math.abs(event.clientX - this.grip.x) > 2) {
          const { x, from, to } = this.grip;
          const move = (x - event.clientX) * (to - from) / (this.plot * this.svg.clientWidth / this.width);
          this.show(from + move, to + move);
        } else this.point(event);
      });
      new ResizeObserver(() => {
        if (Math.abs(this.svg.clientWidth - this.width) > 1) this.draw();
      }).observe(this.svg);
    }

    // Shows [from, to] in ns, as near to it as the timeline allows.
    show(from, to) {
      const span = Math.min(this.end, Math.max(to - from, this.end / 5000));
      this.from = Math.max(0, Math.min(from, this.end - span));
      this.to = this.from + span;
      this.draw();
    }

    zoom(factor, around) {
      const block = this.block();
      const centre = around ?? (block ? (block.start + block.end) / 2 : (this.from + this.to) / 2);
      this.show(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
    }

    key(event) {
      const acts = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "−": () => this.zoom(2),
        "0": () => this.show(0, this.end), Home: () => this.show(0, this.end),
        ArrowLeft: () => event.shiftKey ? this.move(-0.25) : this.step(0, -1),
        ArrowRight: () => event.shiftKey ? this.move(0.25) : this.step(0, 1),
        ArrowUp: () => this.step(-1, 0),
        ArrowDown: () => this.step(1, 0),
        Escape: () => { this.select(null); this.readout.textContent = this.said.textContent = HELP; },
      };
      if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in acts)) return;
      event.preventDefault();
      acts[event.key]();
    }

    move(share) {
      const by = share * (this.to - this.from);
      this.show(this.from + by, this.to + by);
    }

    // To the next stage (and from one timeline into the next), or to the next block of the stage.
    step(stages, blocks) {
      const lanes = this.panels().flatMap((panel) =>
        panel.rows.map((row, stage) => ({ panel, stage, row })).filter((lane) => lane.row.length));
      if (!lanes.length) return;
      const now = this.selected;
      if (!now) return this.select({ panel: lanes[0].panel, stage: lanes[0].stage, index: 0 });
      const here = lanes.findIndex((lane) => lane.panel === now.panel && lane.stage === now.stage);
      const lane = lanes[Math.max(0, Math.min(lanes.length - 1, here + stages))];
      let index = now.index + blocks;
      if (stages) index = last(lane.row, this.block().start, (block) => block.start);
      this.select({ panel: lane.panel, stage: lane.stage, index: Math.max(0, Math.min(lane.row.length - 1, index)) });
    }

    select(place, follow = true) {
      const before = this.block();
      this.selected = place;
      const block = this.block();
      if (!follow && block === before) return;
      if (follow && block && (block.start < this.from || block.end > this.to)) {
        const span = this.to - this.from, middle = (block.start + block.end) / 2;
        this.show(middle - span / 2, middle + span / 2);
      } else this.draw();
      if (!block) return;
      this.readout.textContent = this.describe(place.panel, place.stage, block);
      if (follow) this.said.textContent = this.readout.textContent;
    }

    block() {
      return this.selected && this.selected.panel.rows[this.selected.stage][this.selected.index];
    }

    panels() {
      return this.timelines.filter((timeline) => this.shown === "both" || timeline.name === this.shown);
    }

    describe(panel, stage, block) {
      const chunk = this.data.chunks > 1 ? `, chunk ${block.chunk}` : "";
      const piece = block.piece < 0 ? "" : `, piece ${block.piece}`;
      const held = panel.memory[stage]?.[last(panel.memory[stage], block.start, (step) => step[0])];
      const memory = held ? `; stage holds ${digits(held[1] * this.data.memory_unit_bytes / 2 ** 20)} MiB` : "";
      return `${panel.name}, stage ${stage}: ${block.kind}${block.microbatch} (${NAMES[block.kind]}${chunk}${piece}), ` +
        `${time(block.start)} to ${time(block.end)}, takes ${time(block.end - block.start)}${memory}`;
    }

    timeAt(event) {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * this.width / box.width;
      return this.from + (x - LEFT) / this.plot * (this.to - this.from);
    }

    point(event) {
      const box = this.svg.getBoundingClientRect();
      const y = (event.clientY - box.top) * this.width / box.width, now = this.timeAt(event);
      for (const lane of this.lanes) {
        if (y < lane.top || y > lane.top + this.pitch) continue;
        const index = last(lane.panel.rows[lane.stage], now, (block) => block.start);
        const block = lane.panel.rows[lane.stage][index];
        if (block && now <= block.end) this.select({ panel: lane.panel, stage: lane.stage, index }, false);
        return;
      }
    }

    draw() {
      const { data } = this, panels = this.panels(), stages = data.sites.length;
      this.width = Math.max(320, this.svg.clientWidth || 1000);
      this.plot = this.width - LEFT - RIGHT;
      const row = Math.max(9, Math.min(24, 480 / stages)), strip = this.memory ? row * 0.6 : 0;
      this.pitch = row + strip + 2;
      this.lanes = [];
      let body = this.legend(), y = 22;
      for (const panel of panels) {
        body += `<text class="head" x="${LEFT}" y="${y + 14}">${escape(panel.name)} (${escape(panel.origin)}), ` +
          `makespan ${time(panel.makespan * data.unit_ns)}</text>`;
        y += HEAD;
        const tops = data.sites.map((site, stage) => {
          if (stage && site !== data.sites[stage - 1]) y += GAP;
          const top = y;
          this.lanes.push({ panel, stage, top });
          y += this.pitch;
          return top;
        });
        body += this.panel(panel, tops, row, strip);
        y += 4;
      }
      body += this.axis(y);
      const height = y + AXIS;
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height.toFixed(1)}`);
      this.drawing.innerHTML = body;
    }

    x(ns) {
      return LEFT + (ns - this.from) / (this.to - this.from) * this.plot;
    }

    clipped(ns) {
      return Math.max(LEFT, Math.min(LEFT + this.plot, this.x(ns)));
    }

    panel(panel, tops, row, strip) {
      const height = row - 2, size = Math.min(12, height * 0.8), stages = tops.length;
      const paths = new Map();
      const edge = EDGE * height;
      let numbers = "", rest = "", mark = "", edges = "";
      panel.rows.forEach((blocks, stage) => {
        const top = tops[stage];
        const every = this.pitch >= 11 ? 1 : 4;
        if (stage % every === 0)
          rest += `<text x="${LEFT - 6}" y="${top + height / 2 + 4}" text-anchor="end">${stage}</text>`;
        if (stage === 0 || this.data.sites[stage] !== this.data.sites[stage - 1]) {
          const count = this.data.sites.filter((site) => site === this.data.sites[stage]).length;
          const middle = top + count * this.pitch / 2;
          rest += `<text class="site" transform="translate(12,${middle}) rotate(-90)">site ${this.data.sites[stage]}</text>`;
        }
        for (let i = Math.max(0, last(blocks, this.from, (b) => b.start)); i < blocks.length; i++) {
          const block = blocks[i];
          if (block.start >= this.to) break;
          if (block.end <= this.from) continue;
          const left = this.clipped(block.start), right = this.clipped(block.end), wide = right - left;
          const key = KINDS.indexOf(block.kind) * this.data.chunks + block.chunk;
          const outline = `M${left.toFixed(2)} ${top.toFixed(1)}h${wide.toFixed(2)}v${height.toFixed(1)}h${(-wide).toFixed(2)}z`;
          paths.set(key, (paths.get(key) ?? "") + outline);
          for (const lower of EDGES[block.kind])
            edges += `M${left.toFixed(2)} ${(top + (lower ? height - edge / 2 : edge / 2)).toFixed(1)}h${wide.toFixed(2)}`;
          const fits = (text) => wide >= (text.length * 0.62 + 0.4) * size;
          const label = [block.kind + block.microbatch, String(block.microbatch)].find(fits);
          if (size >= 6 && label)
            numbers += `<text x="${((left + right) / 2).toFixed(1)}" y="${(top + height / 2 + size * 0.35).toFixed(1)}" ` +
              `fill="${this.data.colours[key][1]}">${label}</text>`;
          if (block === this.block())
            mark = `<path class="mark" d="${outline}"/>`;
        }
        if (strip && panel.memory[stage]) rest += this.held(panel.memory[stage], top + row, strip);
      });
      let lines = "";
      for (const message of panel.messages) {
        if (message.end < this.from || message.start > this.to || message.source >= stages) continue;
        lines += `M${this.x(message.start).toFixed(1)} ${(tops[message.source] + height / 2).toFixed(1)}` +
          `L${this.x(message.end).toFixed(1)} ${(tops[message.target] + height / 2).toFixed(1)}`;
      }
      const bars = [...paths].map(([key, d]) => `<path class="bar" fill="${this.data.colours[key][0]}" d="${d}"/>`).join("");
      const bottom = tops[stages - 1] + this.pitch;
      // lines reach beyond what is shown: a nested svg cuts them off
      const cut = `<svg x="${LEFT}" y="0" width="${this.plot}" height="${bottom.toFixed(1)}" viewBox="${LEFT} 0 ${this.plot} ` +
        `${bottom.toFixed(1)}"><path class="line" d="${lines}"/></svg>`;
      const kinds = `<path class="edge" stroke-width="${edge.toFixed(1)}" d="${edges}"/>`;
      return `${bars}${kinds}<g text-anchor="middle" font-size="${size.toFixed(1)}">${numbers}</g>${rest}${cut}${mark}`;
    }

    held(steps, top, strip) {
      const floor = top + strip, scale = (strip - 2) / Math.max(1, this.data.memory_peak);
      let held = steps[last(steps, this.from, (step) => step[0])]?.[1] ?? 0;
      let d = `M${LEFT} ${floor.toFixed(1)}V${(floor - held * scale).toFixed(1)}`;
      for (const [now, value] of steps) {
        if (now <= this.from) continue;
        if (now > this.to) break;
        d += `H${this.x(now).toFixed(1)}V${(floor - value * scale).toFixed(1)}`;
      }
      return `<path class="held" d="${d}H${LEFT + this.plot}V${floor.toFixed(1)}z"/>`;
    }

    axis(y) {
      const span = this.to - this.from, count = Math.max(2, Math.floor(this.plot / 90));
      const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([n]) => step >= n) ?? [1, "ns"];
      let out = `<path class="line" d="M${LEFT} ${y}h${this.plot}"/>`;
      for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
        const x = this.x(at).toFixed(1);
        out += `<path class="line" d="M${x} ${y}v4"/><text x="${x}" y="${y + 16}" text-anchor="middle">` +
          `${Number((at / size).toPrecision(6))}</text>`;
      }
      return `${out}<text x="${LEFT + this.plot}" y="${y + 28}" text-anchor="end">time in ${unit}</text>`;
    }

    legend() {
      const used = new Set(this.timelines.flatMap((timeline) => timeline.rows.flat().map((block) => block.kind)));
      let x = LEFT, out = "";
      for (const kind of KINDS) {
        if (!used.has(kind)) continue;
        const name = this.width < 700 ? "" : ` ${NAMES[kind]}`;
        const text = `${kind}${name}${this.width < 1050 ? "" : EDGE_WORDS[kind]}`;
        const fill = this.data.colours[KINDS.indexOf(kind) * this.data.chunks][0];
        const edges = EDGES[kind].map((lower) => `M${x} ${lower ? 13 : 3}h12`).join("");
        out += `<rect x="${x}" y="2" width="12" height="12" fill="${fill}"/>` +
          `<path class="edge" stroke-width="2" d="${edges}"/><text x="${x + 16}" y="12">${text}</text>`;
        x += 30 + 6.6 * text.length;
      }
      const peak = digits(this.data.memory_peak * this.data.memory_unit_bytes / 2 ** 20);
      const notes = [
        ...(this.data.chunks > 1 ? ["lighter: later chunk"] : []),
        ...(this.memory && this.data.memory_peak ? [`grey: activations, up to ${peak} MiB`] : []),
      ];
      return `${out}<text class="soft" x="${x}" y="12">${notes.join(", ")}</text>`;
    }
  }

  function draw(box) {
    if (!box.dataset.drawn) {
      box.dataset.drawn = "yes";
      new Gantt(box);
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
  }, { rootMargin: "400px" });
  const boxes = document.querySelectorAll(".gantt[data-label]");
  boxes.forEach((box) => near.observe(box));
  // On paper nothing can be opened: every group is drawn, and closed again afterwards.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((group) => group.querySelector(".gantt"));
    opened.forEach((group) => { group.open = true; });
    boxes.forEach(draw);
  });
  addEventListener("afterprint", () => {
    opened.forEach((group) => { group.open = false; });
    opened = [];
  });
})();
