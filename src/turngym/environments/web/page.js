// What turngym knows of a page. Runs in a world of its own: the page's scripts can neither see nor
// change it, and nothing here runs code of the page. Defines `turngym` once per document.
(() => {
  if (globalThis.turngym) return;

  const MAX_VISITED = 20000, MAX_LINES = 1500, MAX_NAME = 2000, MAX_OPTIONS = 60;
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "BR", "HR", "WBR"]);
  const EDITABLE = new Set(["textbox", "searchbox", "spinbutton", "date", "time", "month", "week", "datetime-local", "color", "slider"]);
  const INPUTS = {
    button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio",
    range: "slider", number: "spinbutton", search: "searchbox", file: "file", color: "color", date: "date",
    time: "time", month: "month", week: "week", "datetime-local": "datetime-local",
  };
  const ACTIVE_ROLES = new Set([
    "button", "link", "checkbox", "radio", "textbox", "searchbox", "combobox", "listbox", "option", "menuitem",
    "menuitemcheckbox", "menuitemradio", "slider", "spinbutton", "switch", "tab", "treeitem", "gridcell",
  ]);
  const FIELD = /^(INPUT|SELECT|TEXTAREA|PROGRESS|METER)$/;  // what labels name
  const HANDLES = /\b(ui-draggable|ui-sortable-handle|ui-resizable-se|ui-slider-handle)\b/;
  const SHAPES = new Set(["circle", "rect", "ellipse", "polygon", "path", "line", "polyline", "text"]);

  const elements = new Map(), numbers = new WeakMap(), watched = new WeakSet();
  let next = 1, given = 1, changed = performance.now(), leaving = false;

  const observer = new MutationObserver(() => { changed = performance.now(); });
  const watch = (root) => {
    if (watched.has(root)) return;
    watched.add(root);
    observer.observe(root, { subtree: true, childList: true, attributes: true, characterData: true });
  };
  watch(document);
  // What pages do once they are loaded, they do in timers of their own: their silence begins here.
  addEventListener("load", () => { changed = performance.now(); });
  addEventListener("beforeunload", () => { leaving = true; });

  // The browser has one clipboard for all episodes; nothing comes out of it.
  addEventListener("paste", (event) => { event.preventDefault(); event.stopImmediatePropagation(); }, true);

  // What keeps a form from being sent the browser says in a bubble that is in no document.
  const unfit = new WeakSet();
  addEventListener("invalid", (event) => { unfit.add(event.target); }, true);
  const bubbles = () => [focused()].filter((one) => unfit.has(one) && !one.validity.valid)
    .map((one) => `[${numbers.get(one)}] keeps the form from being sent: ${squeeze(one.validationMessage)}`);

  const FRAMES = 2, BLANK_MS = 1000;
  const lastInLine = () => scheduler.postTask(() => {}, { priority: "background" });

  const markOf = (element) => {
    let number = numbers.get(element);
    if (number === undefined) {
      number = next++;
      numbers.set(element, number);
      elements.set(number, element);
    }
    return number;
  };

  // Takes back the numbers that the last look gave, which nobody saw.
  const unlook = () => {
    while (next > given) {
      numbers.delete(elements.get(--next));
      elements.delete(next);
    }
  };

  // One line, also where Python sees the end of one.
  const squeeze = (text) => (text || "").replace(/[\s\x1c-\x1f\x85]+/g, " ").trim();
  const short = (text) => { const t = squeeze(text); return t.length > MAX_NAME ? t.slice(0, MAX_NAME - 3) + "..." : t; };
  const COLOURS = {
    "0, 0, 0": "black", "255, 255, 255": "white", "255, 0, 0": "red", "0, 128, 0": "green", "0, 0, 255": "blue",
    "255, 255, 0": "yellow", "0, 255, 255": "cyan", "255, 0, 255": "magenta", "128, 128, 128": "grey",
    "255, 165, 0": "orange", "128, 0, 128": "purple", "255, 192, 203": "pink", "128, 128, 0": "olive",
    "0, 255, 0": "lime", "165, 42, 42": "brown",
  };
  const colourOf = (text) => COLOURS[text.replace(/^rgb\(|\)$/g, "")] || text;
  const styleOf = (element) => element.ownerDocument.defaultView.getComputedStyle(element);

  // The colour of a text when it is a strong one, which is put there to be seen.
  const vividOf = (element) => {
    const parts = (styleOf(element).color.match(/^rgb\((\d+), (\d+), (\d+)\)$/) || []).slice(1).map(Number);
    return Math.max(...parts) - Math.min(...parts) > 150 ? colourOf(styleOf(element).color) : "";
  };

  const isVisible = (element) => {
    const rect = element.getBoundingClientRect();
    return rect.width > 1 && rect.height > 1 && styleOf(element).visibility === "visible";
  };
  // A part of a picture: the picture that it is of, and where it is, which the browser does not say.
  const imageOf = (area) => area.getRootNode().querySelector(`img[usemap="#${CSS.escape((area.closest("map") || area).getAttribute("name") || "")}"]`);
  const rectOf = (element) => {
    const image = element.tagName === "AREA" && imageOf(element), whole = (image || element).getBoundingClientRect();
    const [a, b, c, ...more] = image && (element.coords.match(/-?[\d.]+/g) || []).map(Number) || [];
    if (b === undefined || element.shape === "default") return whole;
    const [xs, ys] = element.shape === "circle" ? [[a - c, a + c], [b - c, b + c]] : [[a, c], [b, more[0]]];
    if (element.shape === "poly") for (const [i, one] of more.slice(1).entries()) (i % 2 ? ys : xs).push(one);
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    return new DOMRect(whole.x + left, whole.y + top, Math.max(...xs) - left, Math.max(...ys) - top);
  };

  // What is at a place of an element's document, as the window shows it: frames may be made smaller.
  const shownAt = (element, { x, y, width = 0, height = 0 }) => {
    for (let view = element.ownerDocument.defaultView; view && view !== view.parent && view.frameElement; view = view.parent) {
      const frame = view.frameElement, rect = frame.getBoundingClientRect(), style = styleOf(frame);
      const sx = rect.width / (frame.offsetWidth || 1), sy = rect.height / (frame.offsetHeight || 1);
      x = rect.x + (frame.clientLeft + parseFloat(style.paddingLeft) + x) * sx;
      y = rect.y + (frame.clientTop + parseFloat(style.paddingTop) + y) * sy;
      [width, height] = [width * sx, height * sy];
    }
    return [x, y, width, height];
  };

  const isFileField = (element) => element && element.tagName === "INPUT" && element.type === "file";

  // Whatever role it is given: switches are boxes to tick.
  const isPressed = (element) => ["button", "checkbox", "radio"].includes(INPUTS[element.type]);

  // The field that a label stands for, where pages show the label instead of the field.
  const standInFor = (element) => element.tagName === "LABEL" && element.control && !isVisible(element.control) &&
    /^(file|checkbox|radio)$/.test(element.control.type) ? element.control : null;

  // The field of files that an element is, or stands for where the field itself is not shown.
  const fileFieldOf = (element) => {
    if (isFileField(element)) return element;
    const label = element.closest("label");
    if (label) return isFileField(label.control) ? label.control : null;
    if (roleOf(element) !== "button") return null;
    for (const place of [element, element.closest("form"), element.getRootNode()]) {
      const fields = place ? [...place.querySelectorAll("input[type=file]")].filter((one) => !isVisible(one)) : [];
      if (fields.length) return fields.length === 1 ? fields[0] : null;
    }
    return null;
  };

  const roleOf = (element) => {
    const [given] = squeeze(element.getAttribute("role")).split(" ");
    if (/^[a-z-]+$/i.test(given) && given !== "presentation" && given !== "none") return given;
    switch (element.tagName.toUpperCase()) {
      case "A": case "AREA": return element.hasAttribute("href") ? "link" : "";
      case "BUTTON": case "SUMMARY": return "button";
      case "INPUT": return element.type === "hidden" ? "" : INPUTS[element.type] || "textbox";
      case "TEXTAREA": return "textbox";
      case "SELECT": return "select";
      case "IMG": return "image";
      case "IFRAME": case "FRAME": return "frame";
      case "CANVAS": return "canvas";
      case "H1": case "H2": case "H3": case "H4": case "H5": case "H6": return "heading";
      case "LI": return "item";
      case "DIALOG": return "dialog";
      case "LABEL": return standInFor(element) ? INPUTS[element.control.type] : "";
      case "PROGRESS": return "progressbar";
      case "METER": return "meter";
      default: return element.isContentEditable && !(element.parentElement && element.parentElement.isContentEditable) ? "textbox" : "";
    }
  };

  const isActive = (element, role, style, inPointer) =>
    ACTIVE_ROLES.has(role) || role === "select" || role === "file" || EDITABLE.has(role) ||
    element.hasAttribute("onclick") || element.tabIndex >= 0 && element.hasAttribute("tabindex") ||
    element.getAttribute("draggable") === "true" || HANDLES.test(element.getAttribute("class") || "") ||
    (style.cursor === "pointer" && !inPointer);

  const byIds = (element, ids) => ids.split(/\s+/).map((id) => {
    const other = element.getRootNode().getElementById && element.getRootNode().getElementById(id);
    return other ? other.textContent : "";
  }).join(" ");

  // The words of a label, without those of the field in it.
  const wordsOf = (node) => node.nodeType === Node.TEXT_NODE ? node.data :
    /^(SELECT|TEXTAREA|SCRIPT|STYLE|BUTTON)$/.test(node.tagName) ? " " : [...node.childNodes].map(wordsOf).join("");

  // What a component's own button says: the words that its user put into the component.
  const slotted = (element) => squeeze([...element.querySelectorAll("slot")]
    .flatMap((slot) => slot.assignedNodes({ flatten: true })).map((one) => one.innerText ?? one.textContent).join(" "));

  const nameOf = (element, role) => {
    const labelled = element.getAttribute("aria-labelledby");
    const found = squeeze(element.getAttribute("aria-label")) || (labelled && squeeze(byIds(element, labelled)));
    if (found) return short(found);
    if (FIELD.test(element.tagName)) {
      const labels = [...(element.labels || [])].map(wordsOf).join(" ");
      if (role === "button" && element.value) return short(element.value);
      return short(squeeze(labels) || element.placeholder || element.title || element.alt);
    }
    if (role === "image" || role === "frame") return short(element.alt || element.title || element.name);
    if (role === "textbox" || role === "canvas") return short(element.title);
    const text = squeeze(element.innerText === undefined ? element.textContent : element.innerText) || slotted(element);
    if (text) return short(text);
    const image = element.querySelector && element.querySelector("img[alt], [aria-label], svg title");
    return short((image && (image.alt || image.getAttribute("aria-label") || image.textContent)) || element.getAttribute("alt") || element.getAttribute("title"));
  };

  const hintOf = (element) => {
    // A form's own properties give way to its fields, so its id may be a field called "id".
    const name = element.getAttribute("class") || "", id = squeeze(element.getAttribute("id"));
    return (id && "#" + id) || name.split(/\s+/).filter(Boolean).slice(0, 2).map((one) => "." + one).join("");
  };

  const valueOf = (element, role) => {
    if (role === "select") return [...element.selectedOptions].map((option) => squeeze(option.label || option.text)).join(", ");
    if (role === "file") return [...fileFieldOf(element).files].map((file) => file.name).join(", ");
    if (element.tagName === "INPUT" || element.tagName === "TEXTAREA") {
      if (role === "button" || isPressed(element)) return "";
      return element.type === "password" ? "*".repeat(element.value.length) : element.value.slice(0, MAX_NAME);
    }
    if (element.tagName === "PROGRESS") return element.position < 0 ? "" : `${Math.round(100 * element.position)} %`;
    if (element.tagName === "METER") return `${element.value} of ${element.max}`;
    const said = element.getAttribute("aria-valuetext") || element.getAttribute("aria-valuenow") || "";
    return !said && role === "textbox" ? element.innerText.replace(/\n$/, "").slice(0, MAX_NAME) : said;
  };

  // What has the focus, in a frame or shadow tree too.
  const focused = (root = document) => {
    const one = root.activeElement, inner = one && (one.shadowRoot || one.contentDocument);
    return inner && focused(inner) || one;
  };

  // By itself, or with the group that it is in.
  const isOff = (element) => element.matches(":disabled, [inert], [inert] *");

  const statesOf = (shown) => {
    const states = [], element = standInFor(shown) || shown;
    if (element.checked || element.getAttribute("aria-checked") === "true") states.push("checked");
    if (element.indeterminate || element.getAttribute("aria-checked") === "mixed") states.push("mixed");
    if (element.getAttribute("aria-pressed") === "true") states.push("pressed");
    if (isOff(element) || element.getAttribute("aria-disabled") === "true") states.push("disabled");
    if (element.readOnly) states.push("read-only");
    if (element.getAttribute("aria-selected") === "true") states.push("selected");
    const expanded = element.getAttribute("aria-expanded");
    if (expanded) states.push(expanded === "true" ? "expanded" : "collapsed");
    if (element === focused() && element !== element.ownerDocument.body) states.push("focused");
    if (element.multiple) states.push("multiple");
    if (element.tagName === "TEXTAREA") states.push("multi-line");
    return states;
  };

  // Something to look at without any words: a picture set by a style, or a coloured box.
  const isIcon = (element, style, boxesToo) => {
    if (element.childElementCount || squeeze(element.textContent) || element.namespaceURI.endsWith("svg")) return false;
    const rect = element.getBoundingClientRect();
    if (rect.width < 4 || rect.height < 4 || style.visibility !== "visible") return false;
    if (/url\(/.test(style.content) || /url\(/.test(style.backgroundImage) && rect.width < 200) return true;
    if (boxesToo && element.id && rect.width < 80 && rect.height < 80 && rect.height >= 10) return true;
    if (boxesToo && isFrame(style, rect)) return true;
    return boxesToo && !/^rgba\(.*, 0\)$/.test(style.backgroundColor) && rect.width < 200;
  };

  // An area that something may be done in.
  const isFrame = (style, rect) => rect.width >= 80 && rect.height >= 80 &&
    ["Top", "Right", "Bottom", "Left"].every((side) => style[`border${side}Style`] !== "none");

  // Colour of a box, or which picture a style gives it.
  const looksOf = (style) => {
    const picture = /url\(".*?([^/"]+?)(\.\w+)?"\)/.exec(style.content + style.backgroundImage);
    if (picture) return picture[1];
    return /^rgba/.test(style.backgroundColor) ? "" : colourOf(style.backgroundColor);
  };

  const isInline = (style) => style.display.startsWith("inline") || style.display === "contents";

  // A tree in document order, flattened; each line is
  // [mark, depth, role, name, value, states, options, hint, x, y, width, height, about].
  class Walk {
    constructor(options) {
      this.options = options;
      this.lines = [];
      this.visited = 0;
      this.scrolled = [scrollX, scrollY];  // what is out of sight for that can be scrolled back
      this.left = options.ignore ? new Set(document.querySelectorAll(options.ignore)) : new Set();
    }

    add(element, depth, role, name, more = {}) {
      if (this.lines.length >= MAX_LINES) return;
      const numbers = shownAt(element, rectOf(element)).map(Math.round);
      this.lines.push([
        more.marked ? markOf(element) : 0, depth, role, name, more.value || "", more.states || [],
        more.options || [], more.hint || "", ...numbers, more.about || "",
      ]);
    }

    children(element) {
      if (element.tagName === "DETAILS" && !element.open) return [...element.children].filter((one) => one.tagName === "SUMMARY").slice(0, 1);
      const root = element.shadowRoot || element;
      const slot = element.tagName === "SLOT" && element.assignedNodes ? element.assignedNodes() : [];
      return slot.length ? slot : [...root.childNodes];
    }

    // Does anything below need a line of its own?
    isPlain(element, inPointer) {
      for (const child of this.children(element)) {
        if (child.nodeType !== Node.ELEMENT_NODE || SKIPPED.has(child.tagName) || this.left.has(child)) continue;
        if (child.shadowRoot || child.tagName === "SLOT" || child.namespaceURI.endsWith("svg")) return false;
        const style = styleOf(child);
        if (style.display === "none") continue;
        if (isIcon(child, style, this.options.markText)) return false;
        const role = roleOf(child);
        if (role && role !== "item" && role !== "heading" || !isInline(style)) return false;
        // A sign on its own is likely something to press.
        if (this.options.markText && /^[^\w\s]$/.test(squeeze(child.textContent)) && child.className) return false;
        if (isActive(child, role, style, inPointer) || !this.isPlain(child, inPointer)) return false;
      }
      return true;
    }

    visit(element, depth, inPointer) {
      if (++this.visited > MAX_VISITED || this.lines.length >= MAX_LINES) return;
      if (SKIPPED.has(element.tagName) || this.left.has(element)) return;
      const style = styleOf(element);
      if (style.display === "none" || element.getAttribute("aria-hidden") === "true") return;
      if (element.namespaceURI.endsWith("svg")) return this.shape(element, depth);
      const rect = element.getBoundingClientRect();
      const isHidden = style.visibility !== "visible" || rect.right + this.scrolled[0] <= 0 || rect.bottom + this.scrolled[1] <= 0;
      const role = roleOf(element);
      const active = !isHidden && rect.width > 1 && rect.height > 1 && isActive(element, role, style, inPointer);
      const pointer = style.cursor === "pointer";
      if (isHidden) return this.descend(element, depth, pointer);
      if (role === "frame") return this.frame(element, depth);
      if (role === "select") return this.select(element, depth);
      if (role === "canvas") return rect.width ? this.canvas(element, depth, rect) : undefined;
      if (active) return this.active(element, depth, role, pointer);
      if (role === "progressbar" || role === "meter") return this.add(element, depth, role, nameOf(element, role), { value: valueOf(element, role) });
      if (role === "image") { const name = nameOf(element, role); if (name) this.add(element, depth, "image", name); return this.areas(element, depth + 1); }
      if (element.tagName === "LABEL" && element.control && isVisible(element.control) && FIELD.test(element.control.tagName) && roleOf(element.control) !== "button") {
        for (const child of element.children) this.visit(child, depth, pointer);
        return;
      }
      if (element.tagName === "TR" && this.row(element, depth)) return;
      this.block(element, depth, role, pointer);
    }

    areas(image, depth) {
      const name = (image.useMap || "").slice(1), map = name && image.getRootNode().querySelector(`map[name="${CSS.escape(name)}"]`);
      for (const area of map ? map.querySelectorAll("area[href]") : []) this.active(area, depth, "link", true);
    }

    isShown(element) { const rect = element.getBoundingClientRect(); return rect.width > 0 && rect.height > 0 && styleOf(element).visibility === "visible"; }

    active(element, depth, role, pointer) {
      const isField = EDITABLE.has(role) || role === "combobox" && "value" in element;
      const isLeaf = isField || ["button", "link", "checkbox", "radio", "file", "option", "tab", "switch", "menuitemcheckbox"].includes(role) ||
        role === "menuitem" && !element.querySelector("[role=menu], ul");
      const isSimple = isLeaf || this.isPlain(element, true);
      const name = isSimple ? nameOf(element, role) : squeeze(element.getAttribute("aria-label") || "");
      if (role === "link" && this.isTwin(element, depth, name)) return;
      const shown = role || (isSimple && name && this.options.markText ? "text" : "clickable");
      this.add(element, depth, shown, name, {
        marked: true, value: valueOf(element, isField ? "textbox" : role), states: statesOf(element),
        hint: name ? "" : hintOf(element), about: this.options.markText && !isField ? this.looks(element, name, isLeaf) : "",
      });
      if (!isSimple) this.descend(element, depth + 1, true);
      else if (isLeaf && !isField) for (const child of element.querySelectorAll(`input, select, textarea${element.tagName === "LABEL" ? ", a[href], button" : ""}`)) this.visit(child, depth + 1, true);
    }

    // The icon beside a name, the colour or picture of what has none.
    looks(element, name, isLeaf) {
      return !name ? looksOf(styleOf(element)) : isLeaf ? this.iconIn(element) : "";
    }

    iconIn(element) {
      const icon = [...element.querySelectorAll("*")].find((one) => isIcon(one, styleOf(one), false));
      return icon ? hintOf(icon) : "";
    }

    // A picture and a title that lead to the same other page are one link.
    isTwin(element, depth, name) {
      const before = this.lines.length ? this.lines[this.lines.length - 1] : null, last = this.lastLink;
      this.lastLink = element;
      const leadsAway = element.href && !element.onclick && element.href.split("#")[0] !== location.href.split("#")[0];
      return leadsAway && name && last && before && before[2] === "link" && before[1] === depth && before[3] === name && last.href === element.href;
    }

    // Outlines that an environment's first script kept (`canvas.js` of MiniWoB); pixels are not read.
    canvas(element, depth, rect) {
      this.add(element, depth, "canvas", "", { marked: true, hint: hintOf(element) });
      const outlines = this.options.markText && element.getAttribute("data-outlines");
      for (const { points, colour } of JSON.parse(outlines || "[]")) {
        const xs = points.map((one) => one[0]), ys = points.map((one) => one[1]), last = points.length - 1;
        const isClosed = last > 1 && Math.abs(xs[0] - xs[last]) <= 1 && Math.abs(ys[0] - ys[last]) <= 1;  // rounded
        const [left, top] = [Math.min(...xs), Math.min(...ys)], [sx, sy] = [rect.width / element.width, rect.height / element.height];
        const place = { x: rect.x + left * sx, y: rect.y + top * sy, width: (Math.max(...xs) - left) * sx, height: (Math.max(...ys) - top) * sy };
        const rgb = (colour.match(/^#(..)(..)(..)$/) || []).slice(1).map((one) => parseInt(one, 16)).join(", ");
        const about = [colourOf(rgb || colour), `${isClosed ? last : last + 1} corners`].join(", ");
        this.lines.push([0, depth + 1, isClosed ? "polygon" : "polyline", "", "", [], [], "", ...shownAt(element, place).map(Math.round), about]);
      }
    }

    select(element, depth) {
      if (!this.isShown(element)) return;
      const all = [...element.options].map((option) => short(option.label || option.text));
      const options = all.length > MAX_OPTIONS ? [...all.slice(0, MAX_OPTIONS), `... ${all.length - MAX_OPTIONS} more`] : all;
      const name = nameOf(element, "select");
      this.add(element, depth, "select", name, {
        marked: true, value: valueOf(element, "select"), states: statesOf(element), options, hint: name ? "" : hintOf(element),
      });
    }

    block(element, depth, role, pointer) {
      const plain = this.isPlain(element, pointer);
      if (plain) {
        const text = short(element.innerText);
        if (text) {
          const shown = ["heading", "item", "dialog", "alert", "status"].includes(role) ? role : "text";
          this.add(element, depth, shown, text, { marked: this.options.markText, about: this.options.markText ? vividOf(element) : "" });
        } else if (isIcon(element, styleOf(element), this.options.markText)) {
          const style = styleOf(element), about = this.options.markText ? looksOf(style) : "";
          const shown = this.options.markText && isFrame(style, element.getBoundingClientRect()) ? "box" : "icon";
          this.add(element, depth, shown, "", { marked: true, hint: hintOf(element), about });
        }
        return;
      }
      const isPart = ["dialog", "alertdialog", "navigation", "menu", "tablist", "listbox", "item", "heading", "form"].includes(role);
      const label = squeeze(element.getAttribute("aria-label") || "");
      if (isPart && (label || role === "dialog" || role === "item")) {
        this.add(element, depth, role, label);
        depth += 1;
      }
      this.descend(element, depth, pointer);
    }

    descend(element, depth, pointer) {
      const before = this.scrolled, { scrollLeft, scrollTop } = element;
      if ((scrollLeft || scrollTop) && element !== element.ownerDocument.scrollingElement)
        this.scrolled = [before[0] + scrollLeft, before[1] + scrollTop];
      let loose = "";
      const flush = () => {
        const text = short(loose);
        loose = "";
        if (text && styleOf(element).visibility === "visible") this.add(element, depth, "text", text);
      };
      for (const child of this.children(element)) {
        if (child.nodeType === Node.TEXT_NODE) loose += child.data;
        else if (child.nodeType === Node.ELEMENT_NODE) {
          if (child.tagName === "BR") { flush(); continue; }
          flush();
          this.visit(child, depth, pointer);
        }
      }
      flush();
      this.scrolled = before;
    }

    row(element, depth) {
      if (!element.cells || ![...element.cells].every((cell) => this.isPlain(cell, false) && !isActive(cell, roleOf(cell), styleOf(cell), false))) return false;
      const text = [...element.cells].map((cell) => squeeze(cell.innerText)).join(" | ");
      if (squeeze(text.replaceAll("|", ""))) this.add(element, depth, "row", short(text));
      return true;
    }

    frame(element, depth) {
      let inner = null;
      try { inner = element.contentDocument; } catch { /* another site */ }
      this.add(element, depth, "frame", nameOf(element, "frame"), { about: inner ? "" : "another site" });
      if (!inner || !inner.body) return;
      watch(inner);
      const before = this.scrolled;
      this.scrolled = [inner.defaultView.scrollX, inner.defaultView.scrollY];
      this.visit(inner.body, depth + 1, false);
      this.scrolled = before;
    }

    shape(element, depth) {
      const tag = element.tagName.toLowerCase();
      if (SHAPES.has(tag)) {
        const style = styleOf(element), rect = element.getBoundingClientRect();
        if (style.visibility !== "visible" || !(rect.width || rect.height)) return;
        const colour = style.fill === "none" ? style.stroke : style.fill;
        const text = tag === "text" ? short(element.textContent) : "";
        const points = element.getAttribute("points") || (tag === "path" ? element.getAttribute("d") : "") || "";
        const corners = tag === "polygon" ? (points.match(/-?[\d.]+/g) || []).length / 2 : 0;
        const about = [colourOf(tag === "line" ? style.stroke : colour), corners ? `${corners} corners` : "", tag === "line" ? this.ends(element) : ""].filter(Boolean).join(", ");
        this.add(element, depth, tag === "text" ? "label" : tag, text, { marked: true, about, hint: hintOf(element) });
        return;
      }
      for (const child of element.children) this.visit(child, depth, false);
    }

    ends(line) {
      const matrix = line.getScreenCTM();
      const at = (x, y) => {
        const point = new DOMPoint(+line.getAttribute(x), +line.getAttribute(y)).matrixTransform(matrix);
        return `${Math.round(point.x)},${Math.round(point.y)}`;
      };
      return `${at("x1", "y1")} to ${at("x2", "y2")}`;
    }
  }

  const hits = (element, x, y) => {
    const root = element.getRootNode();
    const top = (root.elementFromPoint ? root : element.ownerDocument).elementFromPoint(x, y);
    if (!top) return null;
    for (let one = top; one; one = one.parentNode || one.host) if (one === element) return true;
    return (element.contains(top) || top.contains(element) && top.tagName === "LABEL") ? true : top;
  };

  // Gives an element the focus; a page may hand it on. Nothing hidden or behind an open dialog gets it.
  const takesFocus = (element) => {
    let isTaken = false;
    if (focused() === element) return true;
    element.addEventListener("focus", () => { isTaken = true; }, { once: true, capture: true });
    element.focus();
    return isTaken || focused() === element;
  };

  const find = (mark) => {
    const element = elements.get(mark);
    if (!element) return [null, "unknown"];
    if (!element.isConnected) return [null, "gone"];
    return [element, ""];
  };

  // What holds an element, out of a shadow tree and out of a frame too.
  const holderOf = (element) => element.parentElement || element.getRootNode().host ||
    element !== document.documentElement && element.ownerDocument.defaultView.frameElement;

  const scrollable = (element) => {
    for (let one = element; one && one !== document.documentElement; one = holderOf(one)) {
      const isPage = one === one.ownerDocument.documentElement, box = isPage && one.ownerDocument.scrollingElement || one;
      if (box.scrollHeight > box.clientHeight + 1 && (isPage || /auto|scroll/.test(styleOf(box).overflowY))) return box;
    }
    return document.scrollingElement || document.documentElement;
  };

  globalThis.turngym = {
    // Quiet is what the page's own thread says, not the clock alone: since the last change the silence
    // has passed, two frames were made, fonts are there, and nothing else waits for the thread.
    async settle(quiet, cap, loadCap) {
      const start = performance.now();
      let seen = changed, frames = 0, isOver = false;
      const count = () => {
        if (seen !== changed) { seen = changed; frames = 0; }
        frames += 1;
        if (!isOver) requestAnimationFrame(count);
      };
      requestAnimationFrame(count);
      // A tab that was opened for a download alone is never painted; one for a page has that by now.
      const isBlank = () => performance.now() - start > BLANK_MS && location.href === "about:blank" && !(document.body && document.body.firstChild);
      const isStill = () => document.readyState === "complete" && document.fonts.status === "loaded" &&
        (document.hidden || isBlank() || frames >= FRAMES && seen === changed) && performance.now() - Math.max(changed, start) >= quiet;
      try {
        for (;;) {
          if (leaving) return "leaving";
          if (performance.now() - start >= (document.readyState === "loading" ? loadCap : cap)) return "busy";
          if (isStill()) {
            await lastInLine();
            if (!leaving && isStill()) return "quiet";
            continue;
          }
          const wait = quiet - (performance.now() - Math.max(changed, start));
          await new Promise((resolve) => setTimeout(resolve, Math.min(Math.max(wait, 4), cap)));
        }
      } finally { isOver = true; }
    },

    stay() { leaving = false; },

    look(options) {
      given = next;
      const walk = new Walk(options);
      if (document.body) walk.visit(document.body, 0, false);
      const root = document.scrollingElement || document.documentElement || { scrollTop: 0, scrollHeight: 0 };
      const active = focused();
      return {
        url: location.href, title: squeeze(document.title), lines: walk.lines,
        isCut: walk.lines.length >= MAX_LINES || walk.visited > MAX_VISITED,
        scroll: [Math.round(root.scrollTop), innerHeight, root.scrollHeight],
        focused: active && active !== document.body && numbers.get(active) || 0,
        notes: bubbles(),
      };
    },

    // Looks once it is quiet; again, where the last look was too early and nobody saw it.
    async observe(quiet, cap, loadCap, options, isAgain) {
      const state = await this.settle(quiet, cap, loadCap);
      if (isAgain) unlook();
      return state === "leaving" ? { state } : { state, ...this.look(options) };
    },

    // Where to put the mouse for a mark: scrolled into view, at a point that the element itself shows.
    locate(mark) {
      const [element, problem] = find(mark);
      if (!element) return { problem };
      const view = element.ownerDocument.defaultView;
      let rect = rectOf(element);
      if (!rect.width && !rect.height) return { problem: "hidden" };
      const holds = (frame, x, y) => x >= 0 && y >= 0 && x < frame.innerWidth && y < frame.innerHeight;
      const isIn = (r) => {  // in the frame, and what is seen there in the window
        const x = r.x + r.width / 2, y = r.y + r.height / 2;
        return holds(view, x, y) && holds(window, ...shownAt(element, { x, y }));
      };
      if (!isIn(rect) || hits(element, rect.x + rect.width / 2, rect.y + rect.height / 2) !== true) {
        (element.tagName === "AREA" && imageOf(element) || element).scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
        rect = rectOf(element);
      }
      const boxes = [...element.getClientRects()].filter((box) => box.width && box.height);
      const box = boxes.length > 1 ? boxes[0] : rect;
      const at = (x, y, covered) => { [x, y] = shownAt(element, { x, y }); return { x, y, covered }; };
      const ex = Math.min(.5, 1.5 / box.width), ey = Math.min(.5, 1.5 / box.height);
      const places = [[.5, .5], [.25, .5], [.75, .5], [.5, .2], [.5, .8], [.1, .1], [.9, .9]];
      let top = null;
      for (const [fx, fy] of [...places, [.5, ey], [.5, 1 - ey], [ex, .5], [1 - ex, .5]]) {  // last, its rims
        const x = box.x + box.width * fx, y = box.y + box.height * fy, hit = hits(element, x, y);
        if (hit === true) return at(x, y, "");
        top = top || hit;
      }
      const cover = top ? `${roleOf(top) || top.tagName.toLowerCase()} "${short(top.innerText || "").slice(0, 40)}"` : "";
      return at(box.x + box.width / 2, box.y + box.height / 2, cover);
    },

    // Where to put the mouse down and where to lift it: places that are in view together.
    locateBoth(mark, target) {
      for (const [one, other] of [[target, mark], [mark, target]]) {
        const places = { [one]: this.locate(one) }, before = String(this.boxes([one]));
        places[other] = this.locate(other);
        for (const number of [one, other]) if (places[number].problem) return { problem: places[number].problem, mark: number };
        if (String(this.boxes([one])) === before) return { places: [places[mark], places[target]] };
        const boxes = this.boxes([one, other]), sum = boxes[0][1] + boxes[1][1] + (boxes[0][3] + boxes[1][3]) / 2;
        scrollBy({ top: (sum - innerHeight) / 2, behavior: "instant" });  // what is between them to the middle
      }
      return { problem: "apart", mark: target };
    },

    // How text gets into a mark: "keys" (it has the focus, its content is selected), "set", or why not.
    edit(mark, text, clear) {
      const [element, problem] = find(mark);
      if (!element) return { problem };
      const role = roleOf(element);
      if (isOff(element) || element.readOnly) return { problem: "disabled" };
      const isField = element.tagName === "TEXTAREA" || element.tagName === "INPUT" && role !== "button" && !isPressed(element) && !isFileField(element);
      if (!isField && !element.isContentEditable) return { problem: "no field" };
      const isFresh = focused() !== element;
      if (!takesFocus(element)) return { problem: isVisible(element) ? "behind" : "hidden" };
      if (element.tagName === "INPUT" && ["range", "color", "date", "time", "month", "week", "datetime-local"].includes(element.type)) {
        const before = element.value;
        element.value = text;
        const isTaken = element.value.toLowerCase() === text.toLowerCase() || text && +element.value === +text;
        if (!isTaken) {
          element.value = before;
          return { way: "set", kept: before };
        }
        element.dispatchEvent(new Event("input", { bubbles: true }));
        element.dispatchEvent(new Event("change", { bubbles: true }));
        return { way: "set" };
      }
      if (element.isContentEditable) {
        const selection = element.ownerDocument.getSelection();
        selection.selectAllChildren(element);
        if (!clear) selection.collapseToEnd();
        return { way: "keys", empty: !element.innerText.trim(), isFresh };
      }
      let end = false;
      if (clear) element.select();
      else try { element.setSelectionRange(element.value.length, element.value.length); } catch { end = true; /* number and email have none */ }
      const isArea = element.tagName === "TEXTAREA";
      return { way: "keys", empty: !element.value && !isArea, end, isArea };
    },

    // Whether a field took the first part of a text only, because the page was at it meanwhile: a script
    // that puts the field elsewhere takes the focus away from it, and the other keys are lost.
    isCutShort(mark, text) {
      const [element] = find(mark);
      if (!element || element.isContentEditable || element.value.length === element.maxLength) return false;
      const { activeElement, body } = element.ownerDocument;
      const isThere = activeElement === element || activeElement === body || !activeElement;
      return isThere && element.value !== "" && element.value !== text && text.startsWith(element.value);
    },

    choose(mark, wanted) {
      const [element, problem] = find(mark);
      if (!element) return { problem };
      if (element.tagName !== "SELECT") return { problem: "no list" };
      if (isOff(element)) return { problem: "disabled" };
      const same = (text) => squeeze(text).toLowerCase() === squeeze(wanted).toLowerCase();
      const options = [...element.options];
      const option = options.find((one) => squeeze(one.label || one.text) === squeeze(wanted)) ||
        options.find((one) => same(one.label || one.text)) || options.find((one) => one.value === wanted);
      if (!option) return { problem: "no option", options: options.slice(0, 20).map((one) => short(one.label || one.text)) };
      if (isOff(option)) return { problem: "option disabled" };
      if (!takesFocus(element)) return { problem: isVisible(element) ? "behind" : "hidden" };
      option.selected = element.multiple ? !option.selected : true;
      element.dispatchEvent(new Event("input", { bubbles: true }));
      element.dispatchEvent(new Event("change", { bubbles: true }));
      return {};
    },

    scroll(mark, direction) {
      const [element, problem] = mark ? find(mark) : [null, ""];
      if (problem) return { problem };
      let box = scrollable(element);
      if (!element && box.scrollHeight <= innerHeight + 1) {
        const boxes = [...document.querySelectorAll("*")].slice(0, 5000).filter((one) =>
          one.scrollHeight > one.clientHeight + 1 && one.clientHeight > 20 && /auto|scroll/.test(styleOf(one).overflowY));
        box = boxes.sort((a, b) => b.clientHeight * b.clientWidth - a.clientHeight * a.clientWidth)[0] || box;
      }
      const before = box.scrollTop, page = Math.min(box.clientHeight || innerHeight, innerHeight);
      box.scrollBy({ top: (direction === "up" ? -0.8 : 0.8) * page, behavior: "instant" });
      return { moved: box.scrollTop !== before };
    },

    // Scrolls what is at a place by so many pixels; what is at its end hands on to what holds it.
    scrollAt(x, y, distance) {
      for (let one = document.elementFromPoint(x, y); ; ) {
        const box = scrollable(one), before = box.scrollTop;
        box.scrollBy({ top: distance, behavior: "instant" });
        if (box.scrollTop !== before || box === document.scrollingElement || !holderOf(box)) return;
        one = holderOf(box);
      }
    },

    selected() {
      const field = focused();
      if (field && /^(INPUT|TEXTAREA)$/.test(field.tagName)) {
        try { return field.value.slice(field.selectionStart, field.selectionEnd); } catch { return field.value; }
      }
      return String((field ? field.ownerDocument : document).getSelection());
    },

    fileField(mark) { const [element] = find(mark); return element && fileFieldOf(element); },

    problem(mark) { return find(mark)[1]; },

    boxes(marks) {
      return marks.map((mark) => {
        const [element] = find(mark);
        return element && shownAt(element, rectOf(element)).map(Math.round);
      });
    },
  };
})();
