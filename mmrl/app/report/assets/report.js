(() => {
  const bar = document.querySelector(".filters");
  const cards = [...document.querySelectorAll("#gallery [data-direction]")];
  if (!bar || !cards.length) return;
  const buttons = [["all", "All"], ["better", "Better"], ["same", "Same"], ["worse", "Worse"]].map(([kind, label]) => {
    const count = kind === "all" ? cards.length : cards.filter((card) => card.dataset.direction === kind).length;
    const button = document.createElement("button");
    button.textContent = `${label} ${count}`;
    button.setAttribute("aria-pressed", String(kind === "all"));
    button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      cards.forEach((card) => { card.hidden = kind !== "all" && card.dataset.direction !== kind; });
    });
    bar.append(button);
    return button;
  });
  bar.hidden = false;
})();
