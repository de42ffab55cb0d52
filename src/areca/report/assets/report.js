// Draws the figures in the colours of the page, light or dark, and makes tables sort.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const hovers = window.matchMedia("(hover: hover)");
  const coarse = window.matchMedia("(pointer: coarse)");

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // A deep copy in which "@name" is the value of the style sheet's --name.
  function coloured(value) {
    if (typeof value === "string") return value.startsWith("@") ? variable(value.slice(1)) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" || value[0] === null ? value : value.map(coloured);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
  }

  // As many labels as a figure's width has room for: all, those of whole decades, or else every second, fourth, ...
  function thin(axis, width) {
    const words = axis.ticktext.map((label) => label.replace(/<[^>]+>|&[a-z]+;/g, ""));
    // Logarithmic labels are not evenly apart: two neighbours may meet where all together would have room.
    const logs = axis.type === "log" && axis.range;
    const place = (i) => ((Math.log10(axis.tickvals[i]) - axis.range[0]) / (axis.range[1] - axis.range[0])) * width;
    const apart = (i, j) => place(j) - place(i) >= ((words[i].length + words[j].length) / 2) * 7 + 4;
    const room = (kept) => {
      const shown = words.map((_, i) => i).filter(kept);
      const fits = shown.reduce((sum, i) => sum + words[i].length * 7 + 14, 0) <= width;
      return fits && (!logs || shown.every((i, k) => k === 0 || apart(shown[k - 1], i)));
    };
    const decade = (i) => Math.abs(Math.log10(axis.tickvals[i]) % 1) < 1e-9;
    const choices = [() => true];
    if (words.filter((_, i) => decade(i)).length > 1) choices.push(decade);
    for (const step of [2, 3, 4, 6]) choices.push((i) => i % step === 0);
    const kept = choices.find(room) || ((i) => i === 0);
    axis.ticktext = axis.ticktext.map((label, i) => (kept(i) ? label : ""));
  }

  function themed(figure, width) {
    const { data, layout } = coloured(figure);
    const ink = variable("ink"), muted = variable("muted"), grid = variable("grid"), line = variable("line");
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow.matches ? 11 : 13, color: ink },
      hoverlabel: { bgcolor: variable("raised"), bordercolor: line, font: { color: ink, size: 12 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink },
      dragmode: coarse.matches || narrow.matches ? false : "zoom", // a finger scrolls the page
      autosize: true,
    });
    const words = (layout.yaxis && layout.yaxis.ticktext) || [];
    const left = Math.max(layout.margin.l, ...words.map((label) => label.replace(/<[^>]+>/g, "").length * 7 + 12));
    for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
      const axis = layout[key];
      Object.assign(axis, { gridcolor: grid, linecolor: line, zerolinecolor: muted, showline: true, ticks: "outside", tickcolor: line });
      axis.tickfont = { color: muted };
      axis.title.font = { size: narrow.matches ? 11.5 : 13 };
      if (key.startsWith("x")) {
        axis.tickangle = 0;
        if (axis.ticktext) thin(axis, width - left - layout.margin.r);
      }
    }
    if (narrow.matches) {
      Object.assign(layout.margin, { l: 50, r: 8 });
      layout.legend.font.size = 10.5;
    }
    return { data, layout };
  }

  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: hovers.matches && !narrow.matches ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    showSendToCloud: false, // the page speaks to no server
    plotlyServerURL: "",
    showTips: false,
  };

  function draw() {
    const drawn = Object.entries(figures).map(([name, figure]) => {
      const { data, layout } = themed(figure, document.getElementById(name).clientWidth);
      return Plotly.react(name, data, layout, options);
    });
    return Promise.all(drawn).then(() => document.documentElement.setAttribute("data-drawn", String(drawn.length)));
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const headers = [...table.tHead.rows[0].cells];
    const key = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent;
    function sort(i) {
      const down = headers[i].getAttribute("aria-sort") === "ascending";
      headers.forEach((header) => header.removeAttribute("aria-sort"));
      headers[i].setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const x = key(a, i), y = key(b, i);
        return x !== "" && y !== "" && isFinite(x) && isFinite(y) ? x - y : x.localeCompare(y, undefined, { numeric: true });
      });
      body.append(...(down ? rows.reverse() : rows));
    }
    headers.forEach((header, i) => {
      header.tabIndex = 0;
      header.addEventListener("click", () => sort(i));
      header.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(i); }
      });
    });
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
