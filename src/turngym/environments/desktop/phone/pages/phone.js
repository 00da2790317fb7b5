// The applications of the phone. What they keep lives in the server; a page shows it and saves it.
"use strict";
(async () => {
  const app = location.pathname.slice(1) || "home";
  const state = await (await fetch("/state")).json();
  const saved = (value) => `/save?app=${app}&value=${encodeURIComponent(JSON.stringify(value))}`;
  // Read to its end: only then does a browser call a request finished.
  const save = async () => (await fetch(saved(state[app]))).text();

  const make = (tag, text = "", about = {}) => {
    const element = Object.assign(document.createElement(tag), about);
    if (text) element.textContent = text;
    return element;
  };
  const button = (text, act, kind = "") => make("button", text, { onclick: act, className: kind });
  const row = (text, place) => button(text, () => { location.hash = place; });
  const turned = (text, holder, key) => {
    const element = button(text, async () => {
      holder[key] = !holder[key];
      element.setAttribute("aria-checked", holder[key]);
      await save();
    });
    element.setAttribute("role", "switch");
    element.setAttribute("aria-checked", holder[key]);
    return element;
  };
  const field = (name, value = "", tag = "input") => {
    const input = make(tag, "", { value, autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-label", name);
    return input;
  };
  const labelled = (input) => [make("label", input.getAttribute("aria-label")), input];
  const show = (title, ...parts) => {
    document.title = title;
    document.body.replaceChildren(make("h1", title), ...parts.flat());
    scrollTo(0, 0);
  };
  const leave = async (place) => { await save(); history.length > 1 && place === undefined ? history.back() : (location.hash = place); };
  // What a held finger or a swipe to the left does to a row.
  const onHold = (element, act) => element.addEventListener("contextmenu", (event) => { event.preventDefault(); act(); });
  const onSwipe = (element, act) => {
    let start = null;
    element.addEventListener("touchstart", (event) => { start = event.touches[0]; }, { passive: true });
    element.addEventListener("touchend", (event) => {
      const end = event.changedTouches[0];
      if (start && start.clientX - end.clientX > 120 && Math.abs(start.clientY - end.clientY) < 60) act();
      start = null;
    });
  };

  const APPS = {
    home: () => {
      const names = ["Clock", "Contacts", "Messages", "Notes", "Settings", "Shopping"];
      const apps = make("div", "", { className: "apps" });
      apps.append(...names.map((name) => make("a", name, { href: `/${name.toLowerCase()}`, className: "app" })));
      show("Home", apps);
    },

    settings: (place) => {
      const { switches, choices } = state.settings;
      const choice = choices[place];
      if (choice) {
        return show(place, choice.options.map((option) => {
          const one = button(option, async () => { choice.value = option; await leave(); });
          one.setAttribute("role", "radio");
          one.setAttribute("aria-checked", option === choice.value);
          return one;
        }));
      }
      show("Settings",
        Object.keys(switches).map((name) => turned(name, switches, name)),
        Object.entries(choices).map(([name, { value }]) => row(`${name}: ${value}`, name)));
    },

    contacts: (place) => {
      const people = state.contacts;
      const person = people.find((one) => one.name === place.replace(/^edit /, ""));
      if (place === "new" || (person && place.startsWith("edit "))) {
        const name = field("Name", person?.name), number = field("Number", person?.number);
        return show(person ? "Edit contact" : "New contact", labelled(name), labelled(number),
          button("Save", async () => {
            const made = { name: name.value.trim(), number: number.value.trim() };
            if (!made.name) return;
            person ? Object.assign(person, made) : people.push(made);
            await leave("");
          }, "main"));
      }
      if (person) {
        return show(person.name, make("p", `Number: ${person.number}`),
          button("Edit", () => { location.hash = `edit ${person.name}`; }, "main"),
          button("Delete", async () => { people.splice(people.indexOf(person), 1); await leave(""); }, "main"));
      }
      const sorted = people.map((one) => one.name).sort();
      show("Contacts", button("New contact", () => { location.hash = "new"; }, "main"), sorted.map((name) => row(name, name)));
    },

    notes: (place) => {
      const notes = state.notes, note = notes[place === "" ? -1 : Number(place)];
      if (note || place === "new") {
        const title = field("Title", note?.title), text = field("Text", note?.text, "textarea");
        return show(note ? "Edit note" : "New note", labelled(title), labelled(text),
          button("Save", async () => {
            const made = { title: title.value.trim(), text: text.value.trim() };
            note ? Object.assign(note, made) : notes.push(made);
            await leave("");
          }, "main"));
      }
      show("Notes", button("New note", () => { location.hash = "new"; }, "main"), notes.map((one, i) => {
        const element = row(one.title, String(i));
        onHold(element, () => show(one.title,
          button("Delete note", async () => { notes.splice(i, 1); await save(); draw(); }, "main"),
          button("Keep note", () => draw(), "main")));
        return element;
      }));
    },

    shopping: () => {
      const items = state.shopping, item = field("New item");
      show("Shopping", item, button("Add", async () => {
        if (item.value.trim()) items.push({ item: item.value.trim(), bought: false });
        await save();
        draw();
      }, "main"), items.map((one, i) => {
        const line = make("div", "", { className: "row" });
        const box = make("input", "", { type: "checkbox", checked: one.bought, onchange: async () => { one.bought = box.checked; await save(); } });
        box.setAttribute("aria-label", one.item);
        onSwipe(line, async () => { items.splice(i, 1); await save(); draw(); });
        line.append(box, make("span", one.item));
        return line;
      }), make("p", "Swipe an item to the left to remove it."));
    },

    clock: (place) => {
      const alarms = state.clock;
      if (place === "new") {
        const hour = field("Hour"), minute = field("Minute");
        return show("New alarm", labelled(hour), labelled(minute), button("Save", async () => {
          const [h, m] = [hour.value, minute.value].map((one) => /^\d{1,2}$/.test(one) ? Number(one) : 99);
          if (h > 23 || m > 59) return;
          alarms.push({ time: [h, m].map((one) => String(one).padStart(2, "0")).join(":"), on: true });
          await leave("");
        }, "main"));
      }
      show("Clock", alarms.map((one) => turned(`Alarm ${one.time}`, one, "on")),
        button("New alarm", () => { location.hash = "new"; }, "main"));
    },

    messages: (place) => {
      const sent = state.messages;
      if (place in sent) {
        const text = field("Message");
        return show(place, sent[place].map((one) => make("p", one.text, { className: one.mine ? "mine" : "" })), text,
          button("Send", async () => {
            if (text.value.trim()) sent[place].push({ mine: true, text: text.value.trim() });
            await save();
            draw();
          }, "main"));
      }
      show("Messages", Object.keys(sent).map((name) => row(name, name)));
    },
  };
  const draw = () => APPS[app](decodeURIComponent(location.hash.slice(1)));
  addEventListener("hashchange", draw);
  draw();
})();
