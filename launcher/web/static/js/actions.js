// Actions, if the page was opened with its token. Each dialog first says what the action does.

const asking = $("ask");
let token = "";
if (location.hash.startsWith("#token=")) {
  // No log has the token, and from here on the address does not have it either.
  token = location.hash.slice(7);
  try {
    token = decodeURIComponent(token);
  } catch {
    /* Not percent-encoded: take it literally. */
  }
  history.replaceState(null, "", location.pathname);
  try {
    sessionStorage.setItem("token", token);
  } catch {
    /* The token lasts as long as the page. */
  }
} else {
  try {
    token = sessionStorage.getItem("token") || "";
  } catch {
    /* The browser stores nothing for this page. */
  }
}
const mayAct = () => Boolean(setup.actions && token && !kept && page.head && !page.head.verdict);

function offerActions() {
  $("actions").hidden = !mayAct();
  if (!mayAct() || $("actions").firstChild) return;
  $("actions").append(
    el("button", { class: "quiet", type: "button", onclick: askScale }, "Scale …"),
    el("button", { class: "quiet", type: "button", onclick: askStop }, "Stop …"),
  );
}
function offerDrain(row, node) {
  if (mayAct())
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
    [
      `Active: ${several(page.head.members, "node")}; np is ${page.head.np}. With a smaller np the last nodes become spares; `,
      "with a larger one spares join. In both cases all workers restart from the state that they save.",
    ],
    [el("label", { for: "np" }, "np: N, N+, or MIN:MAX"), np],
    "Scale",
    false,
    () => ({ action: "scale", np: np.value }),
  );
}
function askDrain(node) {
  const deadline = el("input", { type: "text", id: "deadline", inputmode: "numeric", autocomplete: "off" });
  confirm(
    `Drain ${node}`,
    [
      "The workers of this node save and exit, then its agent ends. ",
      "The other nodes resume from the saved state without it.",
    ],
    [el("label", { for: "deadline" }, "Seconds until the host goes away (empty: no deadline)"), deadline],
    "Drain",
    false,
    () =>
      deadline.value.trim() ? { action: "drain", node, deadline: deadline.value.trim() } : { action: "drain", node },
  );
}
function askStop() {
  const fast = el("input", { type: "checkbox", id: "fast" });
  confirm(
    `Stop ${page.head.job_id}`,
    [
      "The job ends: its workers save and exit, its agents end. To resume it, start it with ",
      el("code", {}, "--rerun"),
      ".",
    ],
    [el("label", { class: "check" }, fast, "at once: workers exit within 2 s and do not save")],
    "Stop the job",
    true,
    () => ({ action: "stop", now: fast.checked }),
  );
}

function confirm(title, words, fields, does, hard, action) {
  const said = el("p", { class: "said", role: "status" });
  const act = el("button", { class: hard ? "strong hard" : "strong", type: "submit" }, does);
  const form = el(
    "form",
    {
      class: "inner",
      onsubmit: async (event) => {
        event.preventDefault();
        act.disabled = true;
        say(said, "Sending …");
        const { value, error } = await fetched(`/api/job/${encodeURIComponent(setup.job)}/actions`, {
          method: "POST",
          body: JSON.stringify(action()),
          headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
        });
        say(said, error || value.said);
        act.disabled = !error;
        say(leave, error ? "Cancel" : "Close");
      },
    },
    el("h2", { id: "ask-title" }, title),
    el("p", {}, ...words),
    ...fields,
    said,
  );
  const leave = el("button", { class: "quiet", type: "button", onclick: () => asking.close() }, "Cancel");
  form.append(el("div", { class: "row right" }, leave, act));
  asking.replaceChildren(form);
  asking.showModal();
}
