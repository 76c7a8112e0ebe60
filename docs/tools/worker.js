// Browsers give a page from file:// no workers, in which the search runs: here a hidden frame stands in for one.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = inside.document.createElement("script");
      script.src = address;
      this.ready = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (event) => this.onerror?.(event);
      inside.document.documentElement.append(script);
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => setTimeout(() => this.frame.contentWindow.onmessage({ data: copy })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
