// Opened from disk, a page may not start a worker, and the site's search is one: there it runs in a hidden frame instead.
// It has what that search asks for: a script, messages to it and messages from it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      this.ready = new Promise((resolve, reject) => {
        script.onload = () => resolve(inside);
        script.onerror = () => reject(new Error(`${url} cannot be read`));
      });
      script.src = new URL(url, location.href);
      inside.document.append(script);
      inside.document.close();
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
