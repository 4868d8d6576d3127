// What people can do from any page: each action asks, sends, and says what became of it. Which ones
// are possible in which status is decided here once; whether the role allows them is in session.js.

import { get, path, post, put, remove } from "./api.js";
import { formDialog } from "./dialog.js";
import { h } from "./dom.js";
import { shortId } from "./format.js";
import { hasEnded, word } from "./status.js";
import { toast } from "./toast.js";

const link = (id, text = "Open the run") => ({ href: `/runs/${encodeURIComponent(id)}`, text });
const naming = (run) => h("p", {}, h("strong", {}, run.workflow), " ", h("code", {}, run.key ?? shortId(run.id)));

/** Why an action is not possible with this run now, or nothing if it is. */
export function impossible(run, action) {
  const ended = hasEnded(run);
  switch (action) {
    case "cancel": return ended ? `The run has ended as ${word(run.status).toLowerCase()}.` : run.cancel_requested ? "The run is being cancelled already." : undefined;
    case "pause": return ended ? "The run has ended." : run.status === "paused" ? "The run is paused already." : undefined;
    case "resume": return run.status === "paused" ? undefined : "Only a paused run can be resumed.";
    case "retry": return run.status === "failed" ? undefined : "Only a run that failed can be retried. Fork it instead.";
    case "send": return undefined;
    case "delete": return ended ? undefined : "Only a run that has ended can be deleted. Cancel it first.";
    default: return undefined;
  }
}

export function cancelRun(run) {
  formDialog({
    title: "Cancel this run?", danger: true, submitLabel: "Cancel the run",
    intro: [naming(run), h("p", {}, "Steps that are running are told to stop. This cannot be taken back; to go on later, fork it from one of its steps.")],
    fields: [{ name: "rollback", type: "choice", label: "What it has done so far", value: "keep", options: [
      { value: "keep", label: "Leave it", hint: "No compensation runs." },
      { value: "undo", label: "Roll it back", hint: "The rollbacks of its completed steps run, newest first." },
    ] }],
    submit: async ({ rollback }) => {
      await post(path("runs", run.id, "cancel"), { rollback: rollback === "undo" });
      toast(rollback === "undo" ? "The run is rolling back" : "The run was cancelled");
    },
  });
}

const SIMPLE = {
  pause: { title: "Pause this run?", label: "Pause the run", text: "It stops before its next step and stays as it is until somebody resumes it.", done: "The run was paused" },
  resume: { title: "Resume this run?", label: "Resume the run", text: "It goes on where it stood.", done: "The run goes on" },
  retry: { title: "Retry this run?", label: "Retry the run", text: "Steps that have completed keep their results; what failed is tried again.", done: "The run is tried again" },
};

export function simpleAction(run, action) {
  const { title, label, text, done } = SIMPLE[action];
  formDialog({
    title, submitLabel: label, intro: [naming(run), h("p", {}, text)],
    submit: async () => {
      await post(path("runs", run.id, action));
      toast(done);
    },
  });
}

export function forkRun(run, from) {
  formDialog({
    title: from ? "Fork from this step" : "Fork this run", wide: true, submitLabel: "Start the fork",
    intro: [naming(run), h("p", {}, "A new run takes over the history up to this step and goes on from there. This run is not changed.")],
    fields: [
      { name: "from", type: "text", label: "From step", value: from, hint: "A location such as outer/~0/inner. Empty: from the beginning." },
      { name: "result", type: "json", label: "Use this result for the step", rows: 4, hint: "Instead of running it again." },
      { name: "input", type: "json", label: "Another input", rows: 4, hint: "Empty: the input of this run." },
      { name: "key", type: "text", label: "Key" },
    ],
    submit: async ({ from: location, result, input, key }) => {
      const results = result !== undefined && location ? [{ location, value: result }] : undefined;
      const { id } = await post(path("runs", run.id, "fork"), { from: location, input, results, key });
      toast("The fork has started", { link: link(id, "Open the fork") });
    },
  });
}

export function sendMessage(run, name) {
  formDialog({
    title: "Send a message", wide: true, submitLabel: "Send the message", intro: naming(run),
    fields: [
      { name: "name", type: "text", label: "Name", required: true, value: name, hint: "What the run listens for." },
      { name: "body", type: "json", label: "Body", required: true, value: {} },
      { name: "dedupe", type: "text", label: "Dedupe key", hint: "A second message with the same key is not delivered." },
    ],
    submit: async (values) => {
      const { sent } = await post(path("runs", run.id, "messages"), values);
      toast(sent === "duplicate" ? "It had been sent before" : "The message was sent", { detail: word(sent) });
    },
  });
}

export function resolveDeferred(run, location) {
  formDialog({
    title: "Resolve a deferred", wide: true, submitLabel: "Resolve it", intro: naming(run),
    fields: [
      { name: "location", type: "text", label: "Location", required: true, value: location },
      ...outcomeFields(),
    ],
    submit: async ({ location: where, outcome, value, error }) => {
      const body = outcome === "reject" ? { location: where, error: error ?? null } : { location: where, value: value ?? null };
      const { resolved } = await post(path("runs", run.id, "deferreds"), body);
      toast(resolved === "before" ? "It had been resolved before" : "The deferred was resolved");
    },
  });
}

export function resolveToken() {
  formDialog({
    title: "Resolve a token", wide: true, submitLabel: "Resolve it",
    intro: h("p", {}, "Whoever holds the token of a deferred may resolve it. The first answer wins."),
    fields: [{ name: "token", type: "text", label: "Token", required: true }, ...outcomeFields()],
    submit: async ({ token, outcome, value, error }) => {
      const { resolved } = outcome === "reject"
        ? await post(path("tokens", token, "reject"), { error: error ?? null })
        : await post(path("tokens", token, "resolve"), { value: value ?? null });
      toast(resolved === "before" ? "It had been resolved before" : "The token was resolved");
    },
  });
}

function outcomeFields() {
  return [
    { name: "outcome", type: "choice", label: "Outcome", value: "resolve", options: [{ value: "resolve", label: "Resolve with a value" }, { value: "reject", label: "Reject with an error" }] },
    { name: "value", type: "json", label: "Value", rows: 4, hint: "For “resolve”. Empty: null." },
    { name: "error", type: "json", label: "Error", rows: 3, hint: "For “reject”: what the waiting code gets." },
  ];
}

export function publishEvent(name, done) {
  formDialog({
    title: "Publish an event", wide: true, submitLabel: "Publish it",
    fields: [
      { name: "name", type: "text", label: "Event", required: true, value: name },
      { name: "body", type: "json", label: "Body", required: true, value: {} },
      { name: "key", type: "text", label: "Key", hint: "Only waits that match this key get it." },
      { name: "dedupe", type: "text", label: "Dedupe key" },
      { name: "deliver", type: "select", label: "Deliver to", value: "all", options: [{ value: "all", label: "All that wait for it" }, { value: "one", label: "One that waits for it" }] },
    ],
    submit: async ({ name: event, deliver, ...body }) => {
      if (deliver === "one") body.deliver = deliver;
      await post(path("events", event), body);
      toast("The event was published", { detail: event });
      done?.(event);
    },
  });
}

/** Asks for a workflow and its input, and starts a run. */
export async function startRun({ workflow, input } = {}) {
  const { workflows } = await get("/workflows").catch(() => ({ workflows: [] }));
  const known = workflows.map(({ name, versions }) => ({ value: name, label: `${name} (${versions.map((v) => `v${v}`).join(", ")})` }));
  const picker = known.length > 0
    ? { name: "workflow", type: "select", label: "Workflow", options: known, value: known.some(({ value }) => value === workflow) ? workflow : known[0].value }
    : { name: "workflow", type: "text", label: "Workflow", required: true, value: workflow, hint: "No runner is alive that serves one. The run waits until one is." };
  formDialog({
    title: "Start a run", wide: true, submitLabel: "Start the run",
    fields: [
      picker,
      { name: "input", type: "json", label: "Input", required: true, value: input ?? {}, rows: 9 },
      { name: "key", type: "text", label: "Key", hint: "At most one live run of the workflow has it. If it is taken, you get that run." },
      { name: "at", type: "time", label: "Not before" },
      { name: "version", type: "number", label: "Version", min: 0, hint: "Empty: the newest." },
      { name: "tags", type: "text", label: "Tags", placeholder: "customer:ada region:eu", hint: "name:value, separated by spaces." },
    ],
    submit: async ({ tags, ...body }) => {
      if (tags) body.tags = tags.trim().split(/\s+/).map(parseTag);
      const { id, attached, input_differs } = await post("/runs", body);
      if (!attached) toast("The run has started", { link: link(id) });
      else toast("The key is taken; here is its run", { kind: "info", link: link(id), detail: input_differs ? "Its input differs from yours." : undefined });
    },
  });
}

function parseTag(text) {
  const colon = text.indexOf(":");
  if (colon < 1) throw new Error(`the tag “${text}” is not of the form name:value`);
  return { name: text.slice(0, colon), value: text.slice(colon + 1) };
}

export function removeTag(run) {
  formDialog({
    title: "Remove a tag", danger: true, submitLabel: "Remove the tag", intro: naming(run),
    fields: [{ name: "name", type: "select", label: "Tag", options: run.tags.map(({ name, value }) => ({ value: name, label: `${name}: ${value}` })) }],
    submit: async ({ name }) => {
      await remove(path("runs", run.id, "tags", name));
      toast("The tag was removed", { detail: name });
    },
  });
}

export function editTag(run) {
  formDialog({
    title: "Set a tag", submitLabel: "Set the tag", intro: naming(run),
    fields: [{ name: "name", type: "text", label: "Name", required: true }, { name: "value", type: "text", label: "Value", required: true }],
    submit: async ({ name, value }) => {
      await put(path("runs", run.id, "tags", name), { value });
      toast("The tag was set", { detail: `${name}:${value}` });
    },
  });
}

export function moveRun(run) {
  formDialog({
    title: "Move this run to another pool", submitLabel: "Move the run", intro: naming(run),
    fields: [{ name: "pool", type: "text", label: "Pool", required: true, hint: "Runners of that pool take it up from where it is." }],
    submit: async ({ pool }) => {
      const { outcome } = await post(path("runs", run.id, "move"), { pool });
      const said = { soon: "The run moves as soon as nothing of it is under way", already: "The run was in that pool already" };
      toast(said[outcome] ?? "The run was moved", { detail: pool });
    },
  });
}

export function evictRun(run) {
  formDialog({
    title: "Evict this run from memory?", submitLabel: "Evict the run",
    intro: [naming(run), h("p", {}, "Its runner drops it and loads it again from the store when it is due. Nothing of it is stopped and nothing is lost.")],
    submit: async () => {
      const { outcome } = await post(path("runs", run.id, "evict"));
      const said = { soon: "The run leaves memory when it next waits", told: "Its runner was told to let go of it", already: "The run was in nobody's memory" };
      toast(said[outcome] ?? "The run was evicted");
    },
  });
}

export function deleteRun(run, done) {
  formDialog({
    title: "Delete this run for good?", danger: true, submitLabel: "Delete the run",
    intro: [naming(run), h("p", {}, "Its history, messages and streams are removed. This cannot be taken back.")],
    fields: [{ name: "forget", type: "checkbox", label: "Forget its key, too", hint: "A new run may then have it." }],
    submit: async ({ forget }) => {
      await remove(path("runs", run.id), { forget_key: forget ? "true" : undefined });
      toast("The run was deleted");
      done?.();
    },
  });
}
