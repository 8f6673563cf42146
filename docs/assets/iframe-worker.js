// Browsers start no web worker from file://. Here its script runs in a hidden frame instead, so that search needs no server.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html>"
      this.inside = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inside = frame.contentWindow
          const load = (address) => new Promise((loaded, failed) => {
            const script = inside.document.createElement("script")
            Object.assign(script, { src: address, onload: loaded, onerror: failed })
            inside.document.head.append(script)
          })
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          inside.importScripts = async (...addresses) => {
            for (const address of addresses) await load(address)
          }
          load(new URL(url, location.href).href).then(() => resolve(inside), reject)
        }
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
