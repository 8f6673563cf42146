(() => {
  const lost = document.getElementById("lost");
  const answer = document.getElementById("answer");
  const parts = [...document.querySelectorAll("[data-part]")];
  const show = (name, part) => {
    const place = parts.find((one) => one.dataset.part === name);
    if (!place) return;
    const open = [...place.querySelectorAll("details[open]")].map((one) => one.dataset.keep);
    place.innerHTML = part.html;
    place.dataset.mark = part.mark;
    place.querySelectorAll("details").forEach((one) => { one.open = open.includes(one.dataset.keep); });
  };
  const look = async () => {
    if (!document.hidden) {
      try {
        const seen = parts.map((one) => one.dataset.mark).join(",");
        const found = await fetch(`feed?seen=${seen}`, { cache: "no-store" });
        if (!found.ok) throw new Error(await found.text());
        for (const [name, part] of Object.entries(await found.json())) show(name, part);
        lost.hidden = true;
      } catch (error) {
        lost.textContent = `mmrl watch does not answer (${error.message}); what is shown may be old. The run itself is not touched by that.`;
        lost.hidden = false;
      }
    }
    setTimeout(look, 1000);
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-ask]");
    if (!button) return;
    if (button.dataset.ask === "stop" && !confirm("Stop the run after this step? It is saved and can be resumed.")) return;
    button.disabled = true;
    try {
      answer.textContent = await (await fetch(button.dataset.ask, { method: "POST" })).text();
    } catch (error) {
      answer.textContent = `not asked: ${error.message}`;
    }
  });
  setTimeout(look, 1000);
})();
