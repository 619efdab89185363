// What keeps people from reading the page, if anything does.
(() => {
  const wrong = [];
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  // Relative luminance and contrast as WCAG 2.2 defines them.
  const linear = (channel) => channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4;
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour).map((channel) => linear(channel / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (element, colour, least) => {
    const [high, low] = [luminance(colour), luminance(ground(element))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (!(ratio >= least)) wrong.push(`${element.outerHTML.slice(0, 100)}: ${colour} on ${ground(element)} is ${ratio.toFixed(2)}, not ${least}`);
  };
  const has_text = (element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  let seen = 0;
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility() || !has_text(element) && !element.matches("input, select")) continue;
    contrast(element, getComputedStyle(element).color, 4.5);
    seen += 1;
  }
  if (seen < 50) wrong.push(`only ${seen} elements have words`);
  for (const line of document.querySelectorAll("svg path, svg line")) contrast(line, getComputedStyle(line).stroke, 3);
  // A bar or a chart has its name and its value in words too.
  const worded = (element, parts) => parts.length > 1 && parts.every((part) => part.textContent.trim()) && element.ariaLabel;
  for (const meter of document.querySelectorAll("meter")) {
    if (!worded(meter, [...meter.parentElement.querySelectorAll(".words > *")])) wrong.push(`no words: ${meter.outerHTML}`);
  }
  for (const chart of document.querySelectorAll("svg")) {
    const words = [...chart.parentElement.querySelectorAll("figcaption > *, .scale")];
    if (!worded(chart, words)) wrong.push(`no words: ${chart.parentElement.textContent}`);
    if (chart.querySelector("line") && !words.at(-1).textContent.includes("dashed: ")) wrong.push(`a line without words: ${chart.parentElement.textContent}`);
  }
  const { scrollWidth } = document.documentElement;
  if (scrollWidth > innerWidth) wrong.push(`${scrollWidth} pixels are wider than the window`);
  const none = document.body.innerText.match(/.{0,20}(NaN|undefined|Infinity|\[object).{0,20}/);
  if (none) wrong.push(`no value: ${none[0]}`);
  return wrong;
})()
