// All figures of the page as they are shown, and words with a digit that say neither what they show nor that the page has computed them.
(() => {
  const device = (element) => element.closest("[data-device]")?.dataset.device ?? null;
  const read = (element) => {
    const { attribute, server, field, value } = element.dataset;
    const owner = server === undefined ? device(element) : null;
    return { device: owner, attribute: attribute ?? server ?? null, field: field ?? null, value: JSON.parse(value), text: element.textContent };
  };
  const figures = [...document.querySelectorAll("[data-attribute], [data-server], [data-field]")].map(read);
  // Names, settings to choose from and what was said about a change are no figures.
  const others = "[data-attribute], [data-server], [data-field], [data-derived], h2, h3, dt, .controls, [role=status], [role=alert]";
  const unmarked = [];
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const { data, parentElement } = words.currentNode;
    if (/\d/.test(data) && !parentElement.closest(others)) unmarked.push(data);
  }
  return { figures, unmarked };
})()
