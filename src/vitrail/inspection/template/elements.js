// What every page needs: elements by their name, elements made, and the colours.

const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Light or dark, by choice or else by the system, and light on paper. `changed` is told whether it is dark, at once too.
function followScheme(changed = () => {}) {
  const [darkSystem, printing] = ["(prefers-color-scheme: dark)", "print"].map((query) => matchMedia(query));
  let scheme = "system";
  const apply = () => {
    if (scheme === "system") delete document.documentElement.dataset.scheme;
    else document.documentElement.dataset.scheme = scheme;
    changed(!printing.matches && (scheme === "dark" || (scheme === "system" && darkSystem.matches)));
  };
  byId("scheme").addEventListener("change", (event) => {
    scheme = event.target.value;
    apply();
  });
  for (const query of [darkSystem, printing]) query.addEventListener("change", apply);
  apply();
}

// Copy what an element says; where the browser keeps that from a page, select it instead. The button says which.
async function copyText(element, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(element.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(element);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (button.textContent = before), 2500);
}
