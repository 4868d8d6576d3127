// The cluster: runners and how old their leases are, what code they have, and which runner owns which
// shard of each pool. A shard is drawn as a cell with the colour and the letter of its runner.

import { get } from "./api.js";
import { every, h, setText, svg } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { icon } from "./icons.js";
import { ago, emptyState, loader, pageHead, table } from "./parts.js";

const REFRESH_MS = 2000;
const SIDE = 16;
const CELL = 20;

export function clusterPage({ signal }) {
  const place = h("div", {});
  const reload = loader(place, signal, () => get("/cluster", undefined, signal), show, "The cluster could not be loaded");
  every(REFRESH_MS, signal, () => place.querySelector("details[open]") || place.contains(document.activeElement) || reload());
  return h("div.page", {}, pageHead("Cluster", { lead: "Who does the work, and who owns which part of it." }), place);
}

const letter = (i) => String.fromCharCode(65 + (i % 26));

function show({ runners, pools }) {
  if (runners.length === 0) return emptyState("No runner has ever been here", "Start your program, or everstep demo. Runs wait until a runner takes them up.");
  const alive = runners.filter((runner) => runner.alive).length;
  return [
    alive === 0 && h("div.banner.s-failed", { role: "alert" }, icon("warning"), h("p", {}, "No runner is alive. Runs wait until one is started.")),
    h("div", {}, h("p.muted.cluster-sum", {}, `${plural(alive, "runner")} alive of ${count(runners.length)} known`),
      table("Runners", ["Runner", "State", "Lease", "Pools", { label: "Weight", class: "num" }, { label: "Shards", class: "num" }, "Workflows"], runners.map(runnerRow))),
    h("section.section", {}, h("h2", {}, "Shards"), h("div.pools", {}, pools.map((pool) => poolMap(pool, runners)))),
  ];
}

function runnerRow(runner, i) {
  return h("tr", {},
    h("td", {}, h("span.runner-name", {}, swatch(i), h("span", {}, h("span.name", {}, runner.name), h("p.muted.mono", { title: runner.id }, runner.id.slice(-12))))),
    h("td", {}, runner.alive ? h("span.badge.s-completed", {}, icon("completed", 14), "Alive") : h("span.badge.s-failed", {}, icon("failed", 14), "Gone")),
    h("td", {}, runner.lease_age_ms !== undefined && h("span.num", {}, `renewed ${duration(runner.lease_age_ms)} ago`), h("p.muted", {}, runner.alive ? "runs out " : "ran out ", ago(runner.lease_until))),
    h("td", {}, runner.pools.join(", ")), h("td.num", {}, String(runner.weight)), h("td.num", {}, count(runner.shards)),
    h("td", {}, h("details", {}, h("summary", {}, plural(runner.workflows.length, "workflow")), h("ul.versions", {}, runner.workflows.map((workflow) => h("li", {}, workflow.name, " ", h("span.muted", {}, versions(workflow))))))));
}

/** All versions, or the newest and those whose runs it accepts. */
function versions({ versions: all, version, from }) {
  if (all) return all.map((v) => `v${v}`).join(", ");
  return from < version ? `v${version}, accepts v${from} and later` : `v${version}`;
}

function swatch(i) {
  return h("span.swatch", { class: `runner-${i % 8}`, "aria-hidden": "true" }, letter(i));
}

function poolMap(pool, runners) {
  if (!pool.shards) return h("figure.card.pool", {}, h("figcaption", {}, h("h3", {}, pool.name), h("p.muted", {}, `${count(pool.owned)} of ${count(pool.of)} shards are owned`)), h("progress", { max: pool.of, value: pool.owned, "aria-label": `Owned shards of ${pool.name}` }));
  const owners = new Map();
  for (const owner of pool.shards) owners.set(owner, (owners.get(owner) ?? 0) + 1);
  const caption = h("p.muted.shard-said", {}, `${count(pool.owned)} of ${count(pool.of)} shards are owned`);
  const map = svg("svg.shards", { viewBox: `0 0 ${SIDE * CELL} ${Math.ceil(pool.shards.length / SIDE) * CELL}`, role: "img", "aria-label": `Shards of the pool ${pool.name}. ${legendText(owners, runners)}`,
    onpointermove: (event) => {
      const shard = event.target.dataset?.shard;
      if (shard !== undefined) setText(caption, `Shard ${shard}: ${runners[pool.shards[shard]]?.name ?? "owned by nobody"}`);
    },
    onpointerleave: () => setText(caption, `${count(pool.owned)} of ${count(pool.of)} shards are owned`) });
  for (const [i, owner] of pool.shards.entries()) {
    const [x, y] = [(i % SIDE) * CELL, Math.floor(i / SIDE) * CELL];
    map.append(svg("rect", { x: x + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 3, class: owner === null ? "shard-free" : `runner-${owner % 8}`, "data-shard": i }));
    if (owner !== null) map.append(svg("text", { x: x + CELL / 2, y: y + CELL / 2 + 3.5, class: `shard-letter on-runner-${owner % 8}` }, letter(owner)));
  }
  return h("figure.card.pool", {}, h("figcaption", {}, h("h3", {}, pool.name), caption), map,
    h("ul.legend", {}, [...owners].sort((a, b) => (a[0] ?? 99) - (b[0] ?? 99)).map(([owner, n]) => h("li", {}, owner === null ? h("span.swatch.shard-free-swatch", { "aria-hidden": "true" }) : swatch(owner), h("span", {}, owner === null ? "Nobody" : runners[owner]?.name ?? "unknown"), h("span.muted.num", {}, count(n))))));
}

function legendText(owners, runners) {
  return [...owners].map(([owner, n]) => `${owner === null ? "Nobody" : runners[owner]?.name} owns ${n}`).join(", ");
}
