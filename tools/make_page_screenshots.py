#!/usr/bin/env python3
"""Takes docs/page_*.png: the page on the demo model, in headless Chromium.

usage: .venv-test/bin/python tools/make_page_screenshots.py     after `make build` and tools/setup.sh check
"""
import itertools
import pathlib
import shutil
import sys
import tempfile
import threading

from playwright.sync_api import expect, sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from conftest import Server  # noqa: E402

SIZES = {"chat": {"width": 1180, "height": 760}, "engine": {"width": 1180, "height": 1000}}
QUESTIONS = ("What is a water wheel, and what is it used for?", "Write a Python function that adds up a list of numbers.")
OTHERS = ("Name three rivers.", "Tell me a story about a mill.", "Explain how rain forms.", "Write a long letter to a miller.")


def keep_busy(server: Server, ended: threading.Event) -> list[threading.Thread]:
    """Other people's requests, one after the other in each thread, so that steps have rows to show."""

    def run(question: str) -> None:
        client = server.client()
        for turn in itertools.count():
            if ended.is_set():
                return
            text = f"Letter {turn}. {question} " * 6
            client.chat.completions.create(model="demo", messages=[{"role": "user", "content": text}], max_tokens=40)

    threads = [threading.Thread(target=run, args=(question,)) for question in OTHERS]
    for thread in threads:
        thread.start()
    return threads


def take(page, name: str, theme: str) -> None:
    path = ROOT / "docs" / f"page_{name}_{theme}.png"
    page.set_viewport_size(SIZES[name])
    page.mouse.move(5, 300)
    page.screenshot(path=path)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(log_path=pathlib.Path(folder) / "log")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell"), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            page = browser.new_context(viewport=SIZES["chat"], color_scheme=theme).new_page()
            page.goto(server.url)
            page.get_by_role("button", name="Parameters").click()
            page.get_by_label("Temperature").fill("0")
            page.get_by_label("Max tokens").fill("160")
            page.get_by_role("button", name="Close").click()
            for number, question in enumerate(QUESTIONS):
                page.get_by_role("textbox", name="Message").fill(question)
                page.keyboard.press("Enter")
                expect(page.locator(".figures")).to_have_count(number + 1, timeout=60_000)
            take(page, "chat", theme)
            ended = threading.Event()
            threads = keep_busy(server, ended)
            page.set_viewport_size(SIZES["engine"])
            page.goto(server.url + "/#engine")
            page.get_by_role("radio", name="10 s").check()
            page.wait_for_timeout(15_000)
            take(page, "engine", theme)
            ended.set()
            for thread in threads:
                thread.join()
            page.context.close()
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()
