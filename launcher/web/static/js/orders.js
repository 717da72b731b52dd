// Orders, for whoever opened the page with its token. Each says first what follows from it.

const asking = $("ask");
let token = "";
if (location.hash.startsWith("#token=")) {
  // It is in no log, and from here on not in the address.
  token = location.hash.slice(7);
  try {
    token = decodeURIComponent(token);
  } catch {
    /* It is as it stands there. */
  }
  history.replaceState(null, "", location.pathname);
  try {
    sessionStorage.setItem("token", token);
  } catch {
    /* It lasts as long as the page. */
  }
} else {
  try {
    token = sessionStorage.getItem("token") || "";
  } catch {
    /* There is none. */
  }
}
const mayOrder = () => Boolean(setup.orders && token && !kept && page.head && !page.head.verdict);

function offerOrders() {
  $("orders").hidden = !mayOrder();
  if (!mayOrder() || $("orders").firstChild) return;
  $("orders").append(
    el("button", { class: "quiet", type: "button", onclick: askScale }, "Scale …"),
    el("button", { class: "quiet", type: "button", onclick: askStop }, "Stop …"),
  );
}
function offerDrain(row, node) {
  if (mayOrder())
    row.append(
      el(
        "button",
        {
          class: "quiet",
          type: "button",
          onclick: () => {
            panel.close();
            askDrain(node);
          },
        },
        "Drain …",
      ),
    );
}

function askScale() {
  const np = el("input", { type: "text", id: "np", value: page.head.np || "", autocomplete: "off", required: true });
  confirm(
    `Scale ${page.head.job_id}`,
    `${several(page.head.members, "node")} run, np is ${page.head.np}. With fewer nodes the last ones leave the world and wait as spares; with more, nodes that wait are taken in. Either way all workers start again, from where they saved.`,
    [el("label", { for: "np" }, "np: N, N+, or MIN:MAX"), np],
    "Scale",
    false,
    () => ({ order: "scale", np: np.value }),
  );
}
function askDrain(node) {
  const deadline = el("input", { type: "text", id: "deadline", inputmode: "numeric", autocomplete: "off" });
  confirm(
    `Drain ${node}`,
    "Its workers save, and its agent ends. The others go on without it, from where they saved.",
    [el("label", { for: "deadline" }, "Seconds until the machine goes (empty: there is time)"), deadline],
    "Drain",
    false,
    () =>
      deadline.value.trim() ? { order: "drain", node, deadline: deadline.value.trim() } : { order: "drain", node },
  );
}
function askStop() {
  const fast = el("input", { type: "checkbox", id: "fast" });
  confirm(
    `Stop ${page.head.job_id}`,
    "The job ends for good: its workers save and leave, its agents end. To go on it must be started again with --rerun.",
    [el("label", { class: "check" }, fast, "at once: workers do not save, they have 2 seconds")],
    "Stop the job",
    true,
    () => ({ order: "stop", now: fast.checked }),
  );
}

function confirm(title, words, fields, does, hard, order) {
  const said = el("p", { class: "said", role: "status" });
  const act = el("button", { class: hard ? "strong hard" : "strong", type: "submit" }, does);
  const form = el(
    "form",
    {
      class: "inner",
      onsubmit: async (event) => {
        event.preventDefault();
        act.disabled = true;
        say(said, "Telling the job …");
        const { value, error } = await fetched(`/api/job/${encodeURIComponent(setup.job)}/orders`, {
          method: "POST",
          body: JSON.stringify(order()),
          headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
        });
        say(said, error || value.said);
        act.disabled = !error;
        say(leave, error ? "Cancel" : "Close");
      },
    },
    el("h2", { id: "ask-title" }, title),
    el("p", {}, words),
    ...fields,
    said,
  );
  const leave = el("button", { class: "quiet", type: "button", onclick: () => asking.close() }, "Cancel");
  form.append(el("div", { class: "row right" }, leave, act));
  asking.replaceChildren(form);
  asking.showModal();
}
