// The state, its past, and its address. What is kept over a change of language lies in the session's storage.
export const boot = JSON.parse(document.getElementById("boot").textContent);
const KEY = "quadform-explore";
const PAUSE = 1000; // milliseconds after which a further step of the same control is a move of its own
const MOST = 100; // moves that can be undone

export const memory = { history: [], pinned: null, part: "total", detail: "blocks", step: "", block: "W_Q,W_Q" };
const CHOICES = { part: ["total", "outer", "functional"], detail: ["blocks", "rows", "entries"] };

class Store {
  state = { ...boot.start };
  before = null; // the state before the last move
  moving = false; // from the first step of a move until a while after its last
  onChange = () => {};
  onRest = () => {};
  #rest = null;
  #last = { control: "", time: -Infinity, open: false };

  /** One control moved; `final` when it was let go. Steps that follow each other quickly are one move. */
  set(control, value, final = true) {
    const now = performance.now();
    const same = control === this.#last.control && (this.#last.open || now - this.#last.time < PAUSE);
    if (!same) this.#push();
    this.#last = { control, time: now, open: !final };
    this.moving = true;
    clearTimeout(this.#rest);
    if (final) this.#rest = setTimeout(() => { this.moving = false; this.onRest(); }, PAUSE);
    this.state = { ...this.state, [control]: value };
    if (this.state.layer > this.state.depth) this.state.layer = this.state.depth;
    this.#changed(final);
  }

  /** A whole other state: a preset, a step of the tour. */
  go(state) {
    this.#push();
    this.#jump({ ...state });
  }

  undo() {
    if (!memory.history.length) return;
    this.before = this.state;
    this.#jump(memory.history.pop());
  }

  #jump(state) {
    this.#last = { control: "", time: -Infinity, open: false };
    this.moving = false;
    this.state = state;
    this.#changed(true);
  }

  reset() { this.before = null; memory.history.length = 0; this.state = { ...boot.default }; this.#changed(true); }

  isStart() { return JSON.stringify(this.state) === JSON.stringify(boot.default); }

  #push() {
    this.before = this.state;
    memory.history.push(this.state);
    if (memory.history.length > MOST) memory.history.shift();
  }

  #changed(final) { this.remember(); this.onChange({ final }); }

  /** The state in the address, the rest in the session. */
  remember() {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(this.state)) if (value !== boot.default[name]) words.set(name, value);
    for (const [name, [usual]] of Object.entries(CHOICES)) if (memory[name] !== usual) words.set(name, memory[name]);
    if (memory.block !== "W_Q,W_Q") words.set("block", memory.block);
    history.replaceState(null, "", `${location.pathname}${location.search}#${words}`);
    try { sessionStorage.setItem(KEY, JSON.stringify(memory)); } catch { /* a frame without storage */ }
  }

  load() {
    try { Object.assign(memory, JSON.parse(sessionStorage.getItem(KEY) || "{}")); } catch { /* nothing kept */ }
    this.#fromAddress();
    addEventListener("hashchange", () => { this.#push(); this.#fromAddress(); this.onChange({ final: true }); });
  }

  #fromAddress() {
    const words = new URLSearchParams(location.hash.slice(1));
    this.state = { ...(words.size ? boot.default : boot.start) };
    for (const [name, value] of words) {
      if (CHOICES[name]?.includes(value)) memory[name] = value;
      else if (name === "block") memory.block = value;
      else if (name in boot.default) this.state[name] = typeof boot.default[name] === "number" ? Number(value) : value;
    }
  }
}

export const store = new Store();
