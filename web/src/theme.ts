// Light or dark: the system's choice until somebody makes one here.
import { effect, signal } from "@preact/signals";

const NAME = "tailrace.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = localStorage.getItem(NAME);

export const dark = signal(chosen ? chosen === "dark" : system.matches);

system.addEventListener("change", () => {
  if (!localStorage.getItem(NAME)) dark.value = system.matches;
});

export function toggleTheme(): void {
  dark.value = !dark.value;
  // What the system wants anyway is no choice: the page follows it again.
  if (dark.value === system.matches) localStorage.removeItem(NAME);
  else localStorage.setItem(NAME, dark.value ? "dark" : "light");
}

effect(() => {
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
});

/** What a custom property of the style sheet comes to now, for a canvas. */
export function colour(name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
