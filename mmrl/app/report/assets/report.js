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
(() => {
  const pictures = [...document.querySelectorAll(".picture")].filter((one) => one.querySelector("img"));
  if (!pictures.length || typeof HTMLDialogElement === "undefined") return;
  const dialog = document.createElement("dialog");
  dialog.className = "zoom";
  dialog.addEventListener("click", () => dialog.close());
  document.body.append(dialog);
  const show = (picture) => {
    const copy = picture.cloneNode(true);
    copy.querySelectorAll("video").forEach((video) => video.remove());
    copy.removeAttribute("tabindex");
    dialog.replaceChildren(copy);
    dialog.showModal();
  };
  pictures.forEach((picture) => {
    picture.classList.add("zoomable");
    picture.tabIndex = 0;
    picture.addEventListener("click", (event) => { if (!event.target.closest("video")) show(picture); });
    picture.addEventListener("keydown", (event) => { if (event.key === "Enter") show(picture); });
  });
})();
