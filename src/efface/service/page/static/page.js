"use strict";
// Keeps the live parts fresh, and asks about the chosen picture again after every release.
(() => {
  const EVERY = 1000;
  let picture = null;
  let asked = null;
  let before = null;

  async function refresh(part) {
    if (document.hidden || !part.dataset.live) return;
    const answer = await fetch(part.dataset.live, { redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401) { location.assign("/login"); return; }
    if (!answer.ok) return;
    const text = await answer.text(); // rendered and escaped by the server
    if (part.dataset.last === text) return;
    const inside = part.contains(document.activeElement) ? document.activeElement : null;
    const place = inside ? [...part.querySelectorAll("a, button")].indexOf(inside) : -1;
    part.dataset.last = text;
    part.innerHTML = text;
    if (place >= 0) part.querySelectorAll("a, button")[place]?.focus();
    const now = part.querySelector("#now");
    if (now) document.getElementById("release").textContent = now.value;
    if (part.querySelector(".story") && !part.querySelector(".ahead")) delete part.dataset.live;
  }

  function told(prediction) {
    return prediction.scores.map((entry) => `${entry.label} ${(100 * entry.score).toFixed(1)} %`);
  }

  function add(prediction) {
    const [first, ...rest] = told(prediction);
    const row = document.createElement("tr");
    for (const [label, text] of [["Release", prediction.release], ["Sees", first], ["Then", rest.join(", ")]]) {
      const cell = row.insertCell();
      cell.dataset.label = label;
      cell.textContent = text;
    }
    document.querySelector("#seen tbody").append(row);
    document.getElementById("seen").hidden = false;
    before = prediction;
  }

  async function ask() {
    const release = document.getElementById("release").textContent;
    if (!picture || asked === release) return;
    asked = release;
    const headers = { "content-type": picture.type || "application/octet-stream",
      "x-token": document.getElementById("try").dataset.token };
    const answer = await fetch("/page/predict", { method: "POST", body: picture, headers });
    const trouble = document.getElementById("trouble");
    trouble.hidden = answer.ok;
    if (!answer.ok) { trouble.textContent = (await answer.json()).error.message; return; }
    const prediction = await answer.json();
    asked = String(prediction.release);
    if (!before || before.release !== prediction.release) add(prediction);
  }

  document.getElementById("picture")?.addEventListener("change", (event) => {
    [picture] = event.target.files;
    [asked, before] = [null, null];
    document.querySelector("#seen tbody").replaceChildren();
    const shown = document.getElementById("shown");
    if (!picture) return;
    shown.src = URL.createObjectURL(picture);
    shown.alt = "the chosen picture";
    shown.hidden = false;
    ask();
  });

  setInterval(() => {
    const parts = [...document.querySelectorAll("[data-live]")];
    Promise.all(parts.map(refresh)).then(ask).catch(() => {});
  }, EVERY);
})();
