"use strict";
(() => {
  const root = document.documentElement;
  let onPaper = false;
  let themeOnScreen;
  let openedForPaper = [];
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const hiddenStrategies = new Set();
  const read = (script) => JSON.parse(script.textContent);
  const pooled = document.querySelector("#pool");
  const pool = pooled ? read(pooled) : [];
  const whole = ([look, ...columns]) => {
    const [x, y, low, high] = columns.map((column) => pool[column]);
    return { ...pool[look], x, y, low, high };
  };
  const figures = [...document.querySelectorAll("[data-figure]")].map((element) => {
    const views = read(element.querySelector("script"));
    for (const panel of Object.values(views).flat()) panel.series = panel.series.map(whole);
    return new PageFigure(element, views);
  });

  /** A figure of the page: panels in views, with a legend that hides and shows. */
  function PageFigure(element, views) {
    const fold = element.querySelector(".fold");
    const holder = element.querySelector(".panels");
    const legend = element.querySelector(".legend");
    const hiddenLabels = new Set();
    let view = Object.keys(views)[0];
    let drawn = false;

    const hidden = (series) => hiddenLabels.has(series.label) || hiddenStrategies.has(series.strategy);

    this.draw = () => {
      drawn = true;
      const palette = colours();
      const panels = views[view];
      while (holder.children.length > panels.length) {
        Plotly.purge(holder.lastChild.querySelector(".chart"));
        holder.lastChild.remove();
      }
      // All of them first: a box is as wide as its neighbours let it be.
      while (holder.children.length < panels.length) {
        const box = document.createElement("div");
        box.className = "panel";
        box.append(document.createElement("h4"), document.createElement("div"));
        box.lastChild.className = "chart";
        holder.append(box);
      }
      panels.forEach((panel, index) => {
        const [heading, chart] = holder.children[index].children;
        heading.textContent = panel.title;
        const shown = panel.series.filter((series) => !hidden(series));
        Plotly.react(
          chart,
          shown.flatMap((series) => traces(series, panel.kind, palette)),
          layout(panel, shown, palette, chart),
          config(`${element.id}-${view}`),
        );
      });
      drawLegend(palette);
    };

    // What is folded has no size to be drawn at.
    this.redraw = () => drawn && fold.open && this.draw();
    fold.addEventListener("toggle", () => fold.open && !onPaper && this.draw());

    this.observe = () => {
      const observer = new IntersectionObserver(
        (entries) => {
          if (!fold.open || !entries.some((entry) => entry.isIntersecting)) return;
          observer.disconnect();
          if (!drawn) this.draw();
        },
        { rootMargin: "800px" },
      );
      observer.observe(element);
    };

    function drawLegend(palette) {
      const named = new Map();
      for (const panel of views[view]) {
        for (const series of panel.series) {
          if (!named.has(series.label)) named.set(series.label, [series, panel.kind]);
        }
      }
      // Where the axis names each, a legend would say it twice.
      const onAxis = [...named.values()].every(([{ x, label }]) => x.length === 1 && x[0] === label);
      legend.replaceChildren(
        ...(onAxis ? [] : [...named.values()]).map(([series, kind]) => {
          const entry = document.createElement("li");
          const button = document.createElement("button");
          button.type = "button";
          button.setAttribute("aria-pressed", String(!hidden(series)));
          button.append(swatch(series, kind, palette), series.label);
          button.addEventListener("click", () => toggle(series));
          entry.append(button);
          return entry;
        }),
      );
    }

    const toggle = (series) => {
      if (hiddenLabels.has(series.label)) hiddenLabels.delete(series.label);
      else hiddenLabels.add(series.label);
      const index = [...legend.querySelectorAll("button")].indexOf(document.activeElement);
      this.draw();
      legend.querySelectorAll("button")[index]?.focus();
    };

    for (const choice of element.querySelectorAll(".views input")) {
      choice.addEventListener("change", () => {
        view = choice.value;
        this.draw();
      });
    }
    const numbers = element.querySelector(".numbers");
    numbers.addEventListener("toggle", () => {
      if (numbers.open) numbers.querySelector(".scroll").replaceChildren(table(views[view]));
    });
  }

  /** The page's colours as the theme in force has them. */
  function colours() {
    const probe = document.createElement("span");
    document.body.append(probe);
    const palette = {};
    for (const name of ["ink", "soft", "grid", "ground", "yellow"]) {
      probe.style.color = `var(--${name})`;
      palette[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return palette;
  }

  // Black and yellow are too faint on one of the grounds.
  const colour = (series, palette) =>
    ({ "#000000": palette.ink, "#F0E442": palette.yellow })[series.colour] ?? series.colour;

  function faded(name, opacity) {
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = name;
    const [red, green, blue] = probe.fillStyle.match(/\w\w/g).map((part) => parseInt(part, 16));
    return `rgba(${red},${green},${blue},${opacity})`;
  }

  /** Returns a series as Plotly's traces: the band of its spread, and itself. */
  function traces(series, kind, palette) {
    const shade = colour(series, palette);
    const spread = series.low.length > 0;
    const lying = isLying(series, kind);
    const [name, value] = lying ? ["%{y}", "%{x:.4~g}"] : ["%{x}", "%{y:.4~g}"];
    const shared = {
      x: lying ? series.y : series.x,
      y: lying ? series.x.map((name) => wrapped(name)) : series.y,
      name: series.label,
      showlegend: false,
      hovertemplate:
        `<b>${escaped(series.label)}</b><br>${name}<br>${value}` +
        `${spread ? "<br>%{customdata}" : ""}<extra></extra>`,
    };
    if (spread) {
      shared.customdata = series.low.map((low, index) =>
        low === null ? "" : `from ${number(low)} to ${number(series.high[index])}`,
      );
    }
    const errors = spread && {
      [lying ? "error_x" : "error_y"]: {
        type: "data",
        symmetric: false,
        array: series.high.map((high, index) => high - series.y[index]),
        arrayminus: series.low.map((low, index) => series.y[index] - low),
        color: kind === "points" ? shade : palette.ink,
        thickness: 1.2,
        width: 3,
      },
    };
    if (isBar(kind)) {
      return [
        {
          ...shared,
          ...errors,
          type: "bar",
          orientation: lying ? "h" : "v",
          marker: {
            color: shade,
            line: { color: palette.ground, width: 1 },
            pattern: {
              shape: series.pattern,
              fillmode: "overlay",
              fgcolor: palette.ground,
              size: 7,
              solidity: 0.2,
            },
          },
        },
      ];
    }
    if (kind === "points") {
      return [
        {
          ...shared,
          type: "scatter",
          ...errors,
          mode: "markers",
          opacity: series.faint ? 0.4 : 1,
          marker: { color: shade, symbol: series.marker, size: series.faint ? 5 : 8 },
        },
      ];
    }
    const line = {
      ...shared,
      type: "scatter",
      mode: series.x.length > 40 ? "lines" : "lines+markers",
      opacity: series.faint ? 0.4 : 1,
      line: { color: shade, dash: series.dash, width: series.faint ? 1 : 2 },
      marker: { color: shade, symbol: series.marker, size: 5 },
    };
    if (!spread) return [line];
    const silent = { x: series.x, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
    const edge = { width: 0, color: shade };
    return [
      { ...silent, y: series.low, line: edge },
      { ...silent, y: series.high, line: edge, fill: "tonexty", fillcolor: faded(shade, 0.12) },
      line,
    ];
  }

  function layout(panel, shown, palette, chart) {
    const lying = shown.some((series) => isLying(series, panel.kind));
    const numbers = (name) =>
      shown.flatMap((series) => series[name]).filter((value) => typeof value === "number");
    // Numbers stay level: labels that turn ask for other room, which moves the ticks, and so on.
    const axis = (label, log, values) => ({
      title: { text: wrapped(label, chart.clientWidth / 9), font: { size: 12 }, standoff: 8 },
      automargin: true,
      ...(values.length ? { tickangle: 0 } : {}),
      gridcolor: palette.grid,
      linecolor: palette.soft,
      zerolinecolor: palette.soft,
      ticks: "outside",
      tickcolor: palette.soft,
      ...(log ? { type: "log", ...logTicks(values) } : {}),
      ...(!log && values.some((value) => Math.abs(value) >= 1e4) ? { tickformat: "~s" } : {}),
    });
    const x = axis(panel.x_label, panel.log_x, numbers("x"));
    // Points that lie are differences, of which zero is the one that matters.
    const fromZero = lying && panel.kind === "points" ? { rangemode: "tozero", zerolinewidth: 1.5 } : {};
    const y = axis(panel.y_label, panel.log_y, numbers("y"));
    if (panel.y_range) y.range = panel.log_y ? panel.y_range.map(Math.log10) : panel.y_range;
    if (lying) {
      const names = [...new Set(shown.flatMap((series) => series.x))];
      const rows = Math.max(...names.map((name) => wrapped(name).split("<br>").length));
      const bars = panel.kind === "bars" ? shown.length : 1;
      chart.style.height = `${90 + names.length * Math.max(30, 16 * rows + 6, 18 * bars)}px`;
    }
    const below = lying ? y : x;
    return {
      barmode: panel.kind === "stacked" ? "stack" : "group",
      bargap: 0.25,
      width: onPaper ? 640 : undefined,
      height: onPaper && !lying ? 300 : chart.clientHeight,
      autosize: !onPaper,
      margin: { l: 44, r: 20, t: 8, b: 26 + 16 * below.title.text.split("<br>").length },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: palette.ink },
      hoverlabel: { bgcolor: palette.ground, font: { color: palette.ink } },
      hovermode: "closest",
      dragmode: touch ? false : "zoom",
      showlegend: false,
      xaxis: { ...below, ...fromZero },
      yaxis: lying ? { ...x, title: undefined, autorange: "reversed" } : y,
    };
  }

  /** Ticks of a logarithmic axis under plain numbers, closer where it spans little. */
  function logTicks(values) {
    const positive = values.filter((value) => value > 0);
    if (!positive.length) return {};
    const [low, high] = [Math.min(...positive), Math.max(...positive)];
    const steps = high / low < 8 ? [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8] : high / low < 200 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power += 1) {
      for (const step of steps) ticks.push(Number((step * 10 ** power).toPrecision(3)));
    }
    return { tickvals: ticks, ticktext: ticks.map(number) };
  }

  function config(name) {
    return {
      displaylogo: false,
      responsive: true,
      displayModeBar: touch ? false : undefined,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { format: "svg", filename: name },
    };
  }

  function swatch(series, kind, palette) {
    const shade = colour(series, palette);
    const dashes = { solid: "", dash: "7 3", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 3" };
    const shapes = {
      circle: "M14 2a4 4 0 1 0 .01 0z",
      square: "M10.5 2.5h7v7h-7z",
      "triangle-up": "M14 1.5l4.5 8h-9z",
      diamond: "M14 1l5 5l-5 5l-5-5z",
      "triangle-down": "M14 10.5l4.5-8h-9z",
      x: "M10 3.5l1.5-1.5 2.5 2.5 2.5-2.5 1.5 1.5-2.5 2.5 2.5 2.5-1.5 1.5-2.5-2.5-2.5 2.5-1.5-1.5 2.5-2.5z",
    };
    const draw = (name, attributes) => {
      const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
      return shape;
    };
    const picture = draw("svg", { width: 28, height: 12, "aria-hidden": "true" });
    if (isBar(kind)) {
      picture.append(draw("rect", { x: 6, y: 1, width: 16, height: 10, fill: shade }));
      return picture;
    }
    if (kind === "line") {
      const line = { x1: 0, x2: 28, y1: 6, y2: 6, stroke: shade, "stroke-width": 2 };
      picture.append(draw("line", { ...line, "stroke-dasharray": dashes[series.dash] ?? "" }));
    }
    picture.append(draw("path", { d: shapes[series.marker] ?? shapes.circle, fill: shade }));
    return picture;
  }

  /** A figure's numbers as a table: a row a point. */
  function table(panels) {
    const numbers = document.createElement("table");
    const head = numbers.createTHead().insertRow();
    for (const name of ["series", "panel", "x", "y", "from", "to"]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = numbers.createTBody();
    for (const panel of panels) {
      for (const series of panel.series) {
        series.x.forEach((x, index) => {
          const row = body.insertRow();
          const name = document.createElement("th");
          name.scope = "row";
          name.textContent = series.label;
          row.append(name);
          const cells = [panel.title, x, series.y[index], series.low[index], series.high[index]];
          for (const value of cells) {
            row.insertCell().textContent = typeof value === "number" ? number(value) : (value ?? "");
          }
        });
      }
    }
    return numbers;
  }

  const isBar = (kind) => kind === "bars" || kind === "stacked";
  /** What stands over names lies on its side, where there is room for the names. */
  const isLying = (series, kind) => kind !== "line" && series.x.some((x) => typeof x === "string");
  /** Text in lines of about so many characters. */
  function wrapped(text, most = 16) {
    const lines = [""];
    for (const word of escaped(String(text)).split(" ")) {
      const line = lines.at(-1);
      if (line && line.length + word.length >= most) lines.push(word);
      else lines[lines.length - 1] = line ? `${line} ${word}` : word;
    }
    return lines.join("<br>");
  }
  const number = (value) => String(Number(value.toPrecision(4)));
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const redraw = () => figures.forEach((figure) => figure.redraw());

  const theme = root.dataset.theme ?? "system";
  for (const choice of document.querySelectorAll("#theme input")) {
    choice.checked = choice.value === theme;
    choice.addEventListener("change", () => {
      if (choice.value === "system") delete root.dataset.theme;
      else root.dataset.theme = choice.value;
      try {
        if (choice.value === "system") localStorage.removeItem("siftback-theme");
        else localStorage.setItem("siftback-theme", choice.value);
      } catch {
        // Nothing is kept where the browser keeps no storage for files.
      }
      redraw();
    });
  }

  const strategies = [...document.querySelectorAll("#strategies input")];
  const choose = () => {
    hiddenStrategies.clear();
    for (const input of strategies) if (!input.checked) hiddenStrategies.add(input.value);
    redraw();
  };
  for (const input of strategies) input.addEventListener("change", choose);
  for (const button of document.querySelectorAll("[data-all]")) {
    button.addEventListener("click", () => {
      for (const input of strategies) input.checked = button.dataset.all === "true";
      choose();
    });
  }

  for (const sheet of document.querySelectorAll(".bar details")) {
    sheet.addEventListener("click", (event) => {
      if (event.target.closest("a")) sheet.open = false;
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const sheet of document.querySelectorAll(".bar details")) sheet.open = false;
  });

  /** Opens what a link of the page leads to. */
  const lead = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target && target.querySelector(":scope > .fold");
    if (fold) fold.open = true;
  };
  window.addEventListener("hashchange", lead);
  lead();

  // What the page carries compressed is saved as it was, where the browser can.
  document.addEventListener("click", async (event) => {
    const carried = event.target.closest('a[href^="data:application/gzip"]');
    if (!carried || !window.DecompressionStream) return;
    event.preventDefault();
    const bytes = Uint8Array.from(atob(carried.href.split(",")[1]), (letter) => letter.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const saved = document.createElement("a");
    saved.href = URL.createObjectURL(await new Response(whole).blob());
    saved.download = carried.download.replace(/\.gz$/, "");
    saved.click();
    URL.revokeObjectURL(saved.href);
  });

  /** Has everything drawn as paper takes it, before it is laid out; and back again. */
  const printed = (starts) => {
    if (starts === onPaper) return;
    onPaper = starts;
    if (starts) {
      themeOnScreen = root.dataset.theme;
      root.dataset.theme = "light";
      openedForPaper = [...document.querySelectorAll("details.printed:not([open])")];
      for (const block of openedForPaper) block.open = true;
    } else if (themeOnScreen) root.dataset.theme = themeOnScreen;
    else delete root.dataset.theme;
    for (const figure of figures) figure.draw();
    if (!starts) for (const block of openedForPaper) block.open = false;
  };
  window.addEventListener("beforeprint", () => printed(true));
  window.addEventListener("afterprint", () => printed(false));
  window.matchMedia("print").addEventListener("change", (event) => printed(event.matches));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  figures.forEach((figure) => figure.observe());
})();
