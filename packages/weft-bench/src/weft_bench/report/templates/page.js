"use strict";
// A click on a column's head sorts its table by that column, a second click the other way round.
// A cell sorts by its data-key where it has one (a number), else by its text; cells without a value come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(table.tBodies[0], column, descending ? -1 : 1);
    });
  });
}

function sort(body, column, direction) {
  const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  rows.sort((one, two) => {
    if (one.key === null || two.key === null) return (one.key === null) - (two.key === null);
    if (typeof one.key === "number" && typeof two.key === "number") return direction * (one.key - two.key);
    return direction * String(one.key).localeCompare(String(two.key), "en", { numeric: true });
  });
  body.append(...rows.map((entry) => entry.row));
}

function keyOf(cell) {
  if (cell.dataset.key !== undefined) return Number(cell.dataset.key);
  const text = cell.textContent.trim();
  return text === "" ? null : text;
}
