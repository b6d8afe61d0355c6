(() => {
  "use strict";
  const links = [...document.querySelectorAll(".tabs a")];
  const parts = links.map((link) => document.querySelector(link.getAttribute("href")));

  // A drawing needs the width of its place, which a hidden part does not have.
  function draw(part) {
    for (const canvas of part.querySelectorAll(".canvas:empty")) {
      const spec = JSON.parse(canvas.nextElementSibling.textContent);
      window.fredholmEmbed(canvas, spec, { mode: "vega-lite", renderer: "svg", actions: false, ast: false })
        .then(() => {
          // the place itself has a name and says where the numbers stand; single marks would only be noise
          canvas.firstElementChild.setAttribute("aria-hidden", "true");
          canvas.dataset.drawn = "yes";
        })
        .catch((error) => { canvas.textContent = "This drawing failed: " + error.message; console.error(error); });
    }
  }

  function choose(chosen, moveFocus) {
    links.forEach((link, n) => {
      link.setAttribute("aria-selected", String(n === chosen));
      link.tabIndex = n === chosen ? 0 : -1;
      parts[n].hidden = n !== chosen;
    });
    if (moveFocus) links[chosen].focus();
    draw(parts[chosen]);
  }

  document.querySelector(".tabs").setAttribute("role", "tablist");
  document.querySelector(".tabs").setAttribute("aria-label", "Parts of the page");
  document.querySelector("nav").setAttribute("role", "presentation");
  document.querySelector("nav").removeAttribute("aria-label");
  links.forEach((link, n) => {
    link.parentElement.setAttribute("role", "presentation");
    link.setAttribute("role", "tab");
    link.id = "tab-" + (n + 1);
    link.setAttribute("aria-controls", parts[n].id);
    parts[n].setAttribute("role", "tabpanel");
    parts[n].removeAttribute("aria-label");
    parts[n].setAttribute("aria-labelledby", link.id);
    parts[n].tabIndex = 0;
    link.addEventListener("click", (event) => { event.preventDefault(); choose(n, true); history.replaceState(null, "", link.hash); });
    link.addEventListener("keydown", (event) => {
      const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: links.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose((to + links.length) % links.length, true);
    });
    link.addEventListener("keyup", (event) => { if (event.key === " ") choose(n, true); });
  });
  const asked = links.findIndex((link) => link.hash === window.location.hash);
  choose(Math.max(asked, 0), false);
  window.addEventListener("beforeprint", () => parts.forEach((part) => { part.hidden = false; draw(part); }));
  window.addEventListener("afterprint", () => choose(links.findIndex((link) => link.tabIndex === 0), false));
})();
