// The table of all scores: a click on a column's name sorts by it, and the field above keeps rows with every word typed.
document.querySelectorAll(".all-scores").forEach((box) => {
  const body = box.querySelector("tbody");
  const rows = Array.from(body.rows);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const field = document.createElement("input");
  field.placeholder = "words to look for, as: parliament-400 aligned";
  field.setAttribute("aria-label", "Filter rows");
  field.style.cssText = "width: 100%; padding: 0.5em; border: 1px solid; font: inherit; color: inherit; background: inherit";
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
  });
  box.prepend(field);
  box.querySelectorAll("th").forEach((head, column) => {
    let sign = -1;
    head.style.cursor = "pointer";
    head.addEventListener("click", () => {
      sign = -sign;
      const key = (row) => row.cells[column].textContent;
      const compare = (a, b) => {
        if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === ""); // without a score: last
        const difference = parseFloat(key(a)) - parseFloat(key(b));
        return sign * (Number.isNaN(difference) ? key(a).localeCompare(key(b)) : difference);
      };
      body.append(...[...rows].sort(compare));
    });
  });
});
