// One WebSocket. Every event is sent with a number; an answer older than the newest drawn is dropped.
const LATE = 300; // milliseconds after which an unanswered event dims the pictures
const AGAIN = [250, 500, 1000, 2000]; // waits between attempts to find the server again

export class Live {
  #socket = null;
  #seq = 0;
  #drawn = 0;
  #late = null;
  #tries = 0;

  constructor(handlers) { this.on = handlers; }

  open() {
    const address = new URL("live", location.href);
    address.protocol = "ws:";
    address.search = address.hash = "";
    this.#socket = new WebSocket(address);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => { this.#tries = 0; this.on.onLost(false); this.on.onOpen(); };
    this.#socket.onmessage = (event) => this.#got(unpacked(event.data));
    this.#socket.onclose = () => {
      this.on.onLost(true);
      this.#settled();
      setTimeout(() => this.open(), AGAIN[Math.min(this.#tries++, AGAIN.length - 1)]);
    };
  }

  send(event) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    this.#socket.send(JSON.stringify({ seq: ++this.#seq, ...event }));
    this.#late ??= setTimeout(() => this.on.onLate(true), LATE);
  }

  #got(message) {
    if (message.seq !== null && message.seq < this.#drawn) return;
    if (message.seq !== null) this.#drawn = message.seq;
    if (message.seq === this.#seq || message.seq === null) this.#settled();
    const handler = { answer: "onAnswer", wait: "onWait", ask: "onAsk", error: "onError" }[message.kind];
    this.on[handler](message);
  }

  #settled() { clearTimeout(this.#late); this.#late = null; this.on.onLate(false); }
}

/** JSON, or a frame: the length of its JSON, the JSON, and the bytes that {"bytes": [from, to]} stand for. */
function unpacked(data) {
  if (typeof data === "string") return JSON.parse(data);
  const length = new DataView(data).getUint32(0, true), start = 4 + length;
  return JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)), (_, value) => (Array.isArray(value?.bytes) ? data.slice(start + value.bytes[0], start + value.bytes[1]) : value));
}
