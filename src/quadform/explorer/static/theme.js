// Light or dark: what the reader chose, or what the system prefers.
const KEY = "quadform-theme";

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem(KEY, name); } catch { /* a frame without storage */ }
}

export function firstTheme() {
  let chosen = null;
  try { chosen = localStorage.getItem(KEY); } catch { /* a frame without storage */ }
  document.documentElement.dataset.theme = chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

export const otherTheme = () => (document.documentElement.dataset.theme === "dark" ? "light" : "dark");

export async function copy(words, button, say) {
  const label = button.textContent;
  try { await navigator.clipboard.writeText(words); } catch {
    const area = document.createElement("textarea");
    area.value = words; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  button.textContent = button.dataset.done;
  say(button.dataset.done);
  setTimeout(() => { button.textContent = label; }, 1500);
}
