// Pages of results: a field above each larger table keeps the rows that have all the words typed into it.
document.addEventListener("DOMContentLoaded", () => {
  if (!location.pathname.includes("/results/")) return;
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length < 4) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = `Filter ${rows.length} rows`;
    field.className = "table-filter";
    field.setAttribute("aria-label", "Filter the rows of this table");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
    (table.closest(".table-wrapper") ?? table).before(field);
  }
});
