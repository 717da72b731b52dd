// The events of the job, newest first.

const SOME = 60;
let kinds = null,
  allEvents = false; // null: every kind.

function drawEvents() {
  const present = [...new Set(page.events.map((one) => one.what))].sort();
  $("events-part").hidden = !page.events.length;
  if ($("kinds").present !== present.join()) {
    $("kinds").present = present.join();
    chooser(
      $("kinds"),
      ["all", ...present],
      (name) => (name === "all" ? kinds === null : kinds === name),
      (name) => {
        kinds = name === "all" ? null : name;
        drawEvents();
      },
    );
  }
  const chosenEvents = page.events.filter((one) => kinds === null || one.what === kinds).reverse();
  keyed(
    $("events"),
    allEvents ? chosenEvents : chosenEvents.slice(0, SOME),
    (one) => `${one.at} ${one.node} ${one.what} ${one.g}`,
    makeEvent,
    () => {},
  );
  $("events-more").hidden = allEvents || chosenEvents.length <= SOME;
  say($("events-more"), `Show all ${chosenEvents.length}`);
}
$("events-more").addEventListener("click", () => {
  allEvents = true;
  drawEvents();
});

function makeEvent(one) {
  return el(
    "li",
    {},
    moment(one.at),
    el("span", { class: "kind" }, one.what),
    el("span", { class: "text" }, one.text, " ", el("small", {}, `generation ${one.g}, ${one.node}`)),
  );
}
