// What forms cannot do alone: selecting all, erased rows, uploads with progress, answers as they are written.
"use strict";
(() => {
  const at = (id) => document.getElementById(id);

  function countSelected() {
    const all = at("all");
    if (!all) return;
    all.closest("label").hidden = false;
    const boxes = [...document.querySelectorAll("input[name=ids][form=bulk]")];
    const n = boxes.filter((box) => box.checked).length;
    all.checked = n > 0 && n === boxes.length;
    all.indeterminate = n > 0 && n < boxes.length;
    at("selected").textContent = n ? `${n} selected` : "";
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "all") {
      document.querySelectorAll("input[name=ids][form=bulk]").forEach((box) => { box.checked = event.target.checked; });
    }
    if (event.target.id === "all" || event.target.name === "ids") countSelected();
  });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-cancel]");
    const region = link && at(link.dataset.cancel);
    if (!region || !document.querySelector("[id^=row-], .timeline, #tiles")) return;
    event.preventDefault();
    region.replaceChildren();
    at("main").focus();
  });

  document.addEventListener("erased", (event) => {
    for (const id of event.detail.ids || []) at(`row-${id}`)?.remove();
    countSelected();
  });

  document.addEventListener("htmx:afterSwap", (event) => {
    countSelected();
    if (event.target.id === "receipt" && !event.target.contains(document.activeElement)) event.target.focus();
  });

  function put(target, html) {
    target.innerHTML = html; // made and escaped by the service
    window.htmx.process(target);
  }

  function upload(form) {
    const file = form.elements.file.files[0];
    const target = at(form.dataset.target);
    const query = new URLSearchParams();
    for (const field of form.elements) {
      if (field.name && !["file", "csrf"].includes(field.name) && field.value && (field.type !== "checkbox" || field.checked)) {
        query.set(field.name, field.value);
      }
    }
    if (form.dataset.name) query.set(form.dataset.name, file.name);
    const bar = form.querySelector("progress");
    const button = form.querySelector("button");
    const request = new XMLHttpRequest();
    request.open("POST", `${form.dataset.action}?${query}`);
    request.setRequestHeader("Content-Type", form.dataset.type);
    request.setRequestHeader("HX-Request", "true");
    request.setRequestHeader("X-CSRF-Token", form.elements.csrf.value);
    request.upload.addEventListener("progress", (event) => { if (event.total) bar.value = event.loaded / event.total; });
    request.addEventListener("loadend", () => {
      bar.hidden = true;
      button.disabled = false;
      const away = request.getResponseHeader("HX-Redirect");
      if (away) location.assign(away);
      else if (request.status) put(target, request.responseText);
      else say(target, "The file did not arrive: the service cannot be reached, or refused it.");
    });
    bar.value = 0;
    bar.hidden = false;
    button.disabled = true;
    request.send(file);
  }

  function say(target, text) {
    const told = document.createElement("p");
    told.className = "problem";
    told.setAttribute("role", "alert");
    told.textContent = text;
    target.replaceChildren(told);
  }

  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (waiting + value).split("\n\n");
      waiting = parts.pop();
      for (const part of parts) {
        const name = /^event: (.*)$/m.exec(part);
        const data = /^data: (.*)$/m.exec(part);
        if (name && data) yield [name[1], JSON.parse(data[1])];
      }
    }
  }

  async function ask(form) {
    const stop = at("stop"), streamed = at("streamed"), answer = at("answer"), told = at("asking");
    const button = form.querySelector("button:not([type])");
    const giving = new AbortController();
    stop.onclick = () => giving.abort();
    answer.replaceChildren();
    streamed.textContent = "";
    streamed.hidden = true;
    streamed.setAttribute("aria-busy", "true");
    stop.hidden = false;
    button.disabled = true;
    told.textContent = "Looking and reading…";
    try {
      const response = await fetch(form.dataset.stream, {
        method: "POST", body: new URLSearchParams(new FormData(form)), signal: giving.signal,
        headers: { "HX-Request": "true" },
      });
      if (!(response.headers.get("content-type") || "").startsWith("text/event-stream")) {
        const away = response.headers.get("HX-Redirect");
        if (away) location.assign(away); else put(answer, await response.text());
      } else {
        for await (const [name, data] of events(response)) {
          if (name === "text") { streamed.hidden = false; streamed.append(data.text); }
          else { streamed.hidden = true; put(answer, data.html); }
        }
      }
      told.textContent = "";
    } catch (error) {
      told.textContent = error.name === "AbortError" ? "Stopped." : "The service cannot be reached.";
    } finally {
      streamed.setAttribute("aria-busy", "false");
      stop.hidden = true;
      button.disabled = false;
    }
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.matches("form.upload")) { event.preventDefault(); upload(form); }
    if (form.id === "ask") { event.preventDefault(); ask(form); }
  });

  countSelected();
})();
