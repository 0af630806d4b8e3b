"use strict";
// The player alone, on the sample that the URL names.
(() => {
  const asked = () => new URLSearchParams(location.hash.slice(1));
  const player = window.mountTraces(document.getElementById("traces"), JSON.parse(document.getElementById("trace-data").textContent));
  player.show(asked());
  addEventListener("hashchange", () => player.show(asked()));
  document.querySelector("main").addEventListener("change", () => setTimeout(() => {
    history.replaceState(null, "", `#${new URLSearchParams(player.state())}`);
  }));
})();
