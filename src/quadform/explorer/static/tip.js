// Numbers under the pointer, beside it; a tap shows them on a phone.
export function bindTip(svg, at) {
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (event) => {
    const found = at(event);
    if (!found) return hide();
    tip.textContent = found.words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 6), below = event.clientY + 18;
    tip.style.left = `${Math.max(left, 6)}px`;
    tip.style.top = `${below + box.height > innerHeight ? event.clientY - box.height - 10 : below}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}
