// All jobs below the key prefix, each with a link to its page.

const JOBS_EVERY_MS = 4000;

async function followJobs() {
  $("list").hidden = false;
  const { value, error } = await fetched("/api/jobs");
  contact(error ? "stale" : "live", error ? "disconnected" : "live");
  tell("outage", error || "");
  if (value) {
    $("list-none").hidden = value.jobs.length > 0;
    keyed(
      $("jobs"),
      value.jobs,
      (job) => job.job_id,
      (job) => el("li", {}, el("a", { href: `/job/${encodeURIComponent(job.job_id)}` })),
      drawJob,
    );
  }
  setTimeout(followJobs, JOBS_EVERY_MS);
}

function drawJob(made, job) {
  const what = JSON.stringify(job);
  if (made.drawn === what) return;
  made.drawn = what;
  const [is, sign] = JOB_STATES[job.state] || ["none", "○"];
  const nodes =
    job.of !== null && job.verdict === null ? `${job.nodes} of ${job.of} nodes` : several(job.nodes, "node");
  made.firstChild.replaceChildren(
    el("b", {}, job.job_id),
    el("span", {}, el("span", { class: "chip", "data-tone": is }, `${sign} ${job.state}`)),
    el("span", { class: "dim" }, job.np === null ? "" : `np ${job.np}`),
    el("span", {}, nodes),
    el("span", { class: "dim" }, job.generation === null ? "" : `generation ${job.generation}`),
    el("span", { class: "dim reason" }, job.reason),
  );
}
