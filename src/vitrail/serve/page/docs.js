// The API's page: openapi.json as tables and commands. What the document says is only ever set as text.
"use strict";

let openapi = {};

// What a reference stands for.
function resolve(part) {
  let found = part ?? {};
  for (let hops = 0; found.$ref && hops < 9; hops += 1) {
    const keys = found.$ref.replace(/^#\//, "").split("/");
    found = keys.reduce((inside, key) => inside?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], openapi) ?? {};
  }
  return found;
}

// A schema's type in a few words: "integer, at least 1", "array of string", "one of a, b".
function typeOf(schema) {
  const { type, format, items, anyOf, oneOf, allOf, enum: values, const: only, minimum, maximum } = resolve(schema);
  if (values) return `one of ${values.join(", ")}`;
  if (only !== undefined) return JSON.stringify(only);
  const several = anyOf ?? oneOf ?? allOf;
  if (several) return [...new Set(several.map(typeOf))].join(" or ");
  if (items && type === "array") return `array of ${typeOf(items)}`;
  const limits = [minimum !== undefined && `at least ${minimum}`, maximum !== undefined && `at most ${maximum}`];
  const name = schema?.$ref ? schema.$ref.split("/").pop() : [type].flat().join(" or ") || "anything";
  return [format ? `${name} (${format})` : name, ...limits.filter(Boolean)].join(", ");
}

// The fields of a schema, those inside others indented by their path: predictions[].top[].label.
function fieldsOf(schema, path = "", depth = 0) {
  const found = resolve(schema);
  if (depth > 5) return [];
  for (const each of found.anyOf ?? found.oneOf ?? found.allOf ?? []) {
    const inside = fieldsOf(each, path, depth + 1);
    if (inside.length) return inside;
  }
  if (found.items) return fieldsOf(found.items, `${path}[]`, depth + 1);
  return Object.entries(found.properties ?? {}).flatMap(([name, field]) => {
    const here = path ? `${path}.${name}` : name;
    const { description = resolve(field).description ?? "" } = field;
    const needed = found.required?.includes(name) ? "" : "optional";
    return [[here, typeOf(field), needed, description], ...fieldsOf(field, here, depth + 1)];
  });
}

function tableOf(heads, rows) {
  const line = (tag, cells) =>
    make("tr", {}, ...cells.map((text, at) => make(tag, {}, at || tag === "th" ? text : make("code", { textContent: text }))));
  const table = make("table", {}, make("thead", {}, line("th", heads)), make("tbody", {}, ...rows.map((row) => line("td", row))));
  const scroll = make("div", { className: "scroll", tabIndex: 0 }, table);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", heads[0]);
  return scroll;
}

// What stands between backquotes is code.
const prose = (text) =>
  make("p", { className: "prose" }, ...text.split("`").map((part, at) => (at % 2 ? make("code", { textContent: part }) : part)));
const heading = (text) => make("h3", { textContent: text });
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function block(text) {
  const shown = make("pre", { tabIndex: 0 }, make("code", { textContent: text }));
  shown.setAttribute("role", "region");
  shown.setAttribute("aria-label", "Text");
  return shown;
}

// The first example that is given of a content, or none.
function exampleOf({ example, examples, schema }) {
  const [first] = Object.values(examples ?? {});
  const inside = resolve(schema);
  return example ?? resolve(first)?.value ?? inside.example ?? inside.examples?.[0];
}

// What is sent or answered: its types, and of each an example and its fields.
function contentOf(content) {
  return Object.entries(content ?? {}).flatMap(([type, media]) => {
    const [example, fields] = [exampleOf(media), fieldsOf(media.schema)];
    const parts = [];
    if (example !== undefined) parts.push(block(asText(example)));
    if (fields.length) parts.push(tableOf(["Field", "Type", "", "Meaning"], fields));
    const title = `${type}: ${typeOf(media.schema)}`;
    return parts.length ? [make("details", {}, make("summary", { textContent: title }), ...parts)] : [make("p", { textContent: title })];
  });
}

// A command that works as it stands, but for the names of files.
function curlOf(path, verb, { security = openapi.security }, parameters, body) {
  const needed = parameters.filter((each) => each.in === "query" && each.required);
  const valueOf = ({ name, example, schema }) => encodeURIComponent(example ?? resolve(schema).default ?? name.toUpperCase());
  const query = needed.map((each) => `${each.name}=${valueOf(each)}`).join("&");
  const address = new URL(path.replace(/^\//, ""), document.baseURI).href + (query && `?${query}`);
  const lines = security?.length ? ['-H "Authorization: Bearer $TOKEN"'] : [];
  const contents = body?.content ?? {};
  const type = Object.keys(contents).find((each) => each.startsWith("image/")) ?? Object.keys(contents)[0];
  if (type?.startsWith("image/")) lines.push("-H 'Content-Type: image/jpeg'", "--data-binary @photo.jpg");
  else if (type === "multipart/form-data") lines.push("-F file=@photo.jpg");
  else if (type === "application/json") {
    const said = JSON.stringify(exampleOf(contents[type]) ?? {}).replaceAll("'", "'\\''");
    lines.push("-H 'Content-Type: application/json'", `-d '${said}'`);
  } else if (type) lines.push(`-H 'Content-Type: ${type}'`, "--data-binary @photo.jpg");
  const start = verb === "get" || body ? "curl" : `curl -X ${verb.toUpperCase()}`;
  return `${start} ${[...lines, `'${address.replaceAll("'", "%27")}'`].join(" \\\n  ")}`;
}

function endpointOf(path, verb, operation, shared) {
  const parameters = [...(shared ?? []), ...(operation.parameters ?? [])].map(resolve);
  const body = operation.requestBody && resolve(operation.requestBody);
  const section = make("section", { className: "endpoint", id: `${verb}-${path}` });
  section.append(make("h2", { textContent: operation.summary ?? path }));
  section.append(make("code", {}, make("span", { className: "verb", textContent: verb.toUpperCase() }), ` ${path}`));
  if (operation.description) section.append(prose(operation.description));
  const [button, command] = [make("button", { type: "button", className: "button", textContent: "Copy" }), block(curlOf(path, verb, operation, parameters, body))];
  button.addEventListener("click", () => copyText(command.firstChild, button));
  section.append(heading("From a terminal"), make("div", { className: "copied" }, command, button));
  if (parameters.length) {
    const rows = parameters.map(({ name, schema, required, description = "" }) => {
      const { default: standard } = resolve(schema);
      return [name, typeOf(schema), required ? "required" : standard == null ? "" : String(standard), description];
    });
    section.append(heading("Parameters"), tableOf(["Name", "Type", "Default", "Meaning"], rows));
  }
  if (body) section.append(heading("Body"), ...contentOf(body.content));
  section.append(heading("Answers"));
  for (const [status, given] of Object.entries(operation.responses ?? {})) {
    const answer = resolve(given);
    section.append(make("p", { className: "answers" }, make("code", { textContent: status }), ` ${answer.description ?? ""}`), ...contentOf(answer.content));
  }
  return section;
}

async function start() {
  followScheme();
  const answer = await fetch("openapi.json").catch(() => null);
  if (!answer?.ok) return void (byId("problem").textContent = "The server did not give openapi.json. Reload this page to try again.");
  openapi = await answer.json();
  byId("title").textContent = openapi.info.title;
  byId("subtitle").textContent = openapi.info.summary ?? openapi.info.description ?? "";
  const verbs = ["get", "post", "put", "patch", "delete"];
  const all = Object.entries(openapi.paths).flatMap(([path, item]) =>
    verbs.filter((verb) => item[verb]).map((verb) => endpointOf(path, verb, item[verb], item.parameters)),
  );
  const links = all.map(({ id }) => make("a", { href: `#${id}`, textContent: id.replace("-", " ").replace(/^\w+/, (verb) => verb.toUpperCase()) }));
  const list = make("nav", {}, ...links);
  list.setAttribute("aria-label", "Endpoints");
  byId("endpoints").append(list, ...all);
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

start();
