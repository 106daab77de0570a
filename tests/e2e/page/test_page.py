"""The page at / in headless Chromium, served by the real binary on a checkpoint that answers by script."""

import re
import shutil
import threading

import pytest
from conftest import Server
from playwright.sync_api import Page, expect, sync_playwright
from scripted import PLAIN_TAGS, QWEN_TEMPLATE, write_checkpoint

SCRIPTS = {
    "hello": ["Good", " morning", ", **wor", "ld**."],
    "code": ["Here:\n\n", "```py", "thon\nprint", "(1)\n`", "``\n"],
    "think": ["<think>", "\nIs it", " <b>so</b>?\n", "</think>", "\n\nIt is", " so."],
    "tool": [
        "<tool_call>", '\n{"name": "get_weather", ',
        '"arguments": {"city": "', "<img src=x onerror=window.pwned=1>", '"}}\n', "</tool_call>",
    ],
    "sunny": ["It will", " be sunny", "."],
    "evil": [
        "<img src=x", " onerror=window.pwned=1>", "<scr", "ipt>window.pwned=1</script>\n\n",
        "[link](javascript:window.pwned=1) ", "![image](http://127.0.0.1:9/a.png) ", "<a href='javascript:window.pwned=1'>a</a>\n\n",
        "```\"><img src=x onerror=window.pwned=1>\n<b>\n```\n",
    ],
    "loop": ["On", " and", " on", " and"],  # for ever
}
TOOLS = '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]'
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


@pytest.fixture(scope="module")
def scripted_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "model"
    write_checkpoint(folder, SCRIPTS, QWEN_TEMPLATE, PLAIN_TAGS)
    return folder


@pytest.fixture(scope="module")
def page_server(scripted_model, tmp_path_factory):
    running = Server(log_path=tmp_path_factory.mktemp("log") / "log", model=scripted_model)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, f"none of {', '.join(BROWSERS)} is installed: tools/setup.sh check"
    with sync_playwright() as playwright:
        # Chromium's own sandbox wants namespaces, which root in a container has not.
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


class Watched:
    """A tab that fails its test where it asked another host, broke the server's policy, or threw."""

    def __init__(self, browser, server: Server, **context):
        self.context = browser.new_context(**context)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self.on_console)
        self.page.on("request", lambda request: self.on_request(request.url, server.url))
        self.page.goto(server.url + "/")

    def on_console(self, message) -> None:
        # A refused request is told by the page; the browser notes it here besides.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def on_request(self, url: str, own: str) -> None:
        if not url.startswith((own + "/", "blob:", "data:")):
            self.faults.append(f"asked {url}")

    def close(self) -> None:
        self.context.close()
        assert not self.faults


@pytest.fixture
def tab(browser, page_server):
    watched = Watched(browser, page_server)
    yield watched.page
    watched.close()


def box(page: Page):
    return page.get_by_role("textbox", name="Message")


def ask(page: Page, text: str) -> None:
    box(page).fill(text)
    page.keyboard.press("Enter")


def last_answer(page: Page):
    return page.get_by_role("article", name="Answer").last


def finished(page: Page):
    """The last answer, once it is complete."""
    expect(last_answer(page)).to_have_attribute("aria-busy", "false")
    return last_answer(page)


def test_a_chat_streams_markdown_with_its_figures(tab, page_server):
    expect(tab.get_by_role("heading", name="What would you like to ask?")).to_be_visible()
    ask(tab, "hello")
    answer = finished(tab)
    expect(answer).to_contain_text("Good morning, world.")
    expect(answer.locator("strong")).to_have_text("world")
    expect(answer.locator(".figures")).to_contain_text("5 tokens")
    expect(answer.locator(".figures")).to_contain_text("tokens/s")
    expect(tab.get_by_role("status").filter(has_text="Answer complete")).to_have_count(1)
    ask(tab, "code")
    expect(finished(tab).locator("pre code")).to_have_text("print(1)\n")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=page_server.url)
    finished(tab).locator(".copy-code").click()
    expect(finished(tab).locator(".copy-code")).to_have_text("Copied")
    assert tab.evaluate("navigator.clipboard.readText()") == "print(1)\n"
    tab.reload()  # the conversation is kept with the tab
    expect(tab.get_by_role("article", name="Answer")).to_have_count(2)
    tab.get_by_role("button", name="New chat").click()
    expect(tab.get_by_role("article", name="Answer")).to_have_count(0)


def test_reasoning_is_folded(tab):
    ask(tab, "think")
    answer = finished(tab)
    expect(answer.locator(".markdown")).to_have_text("It is so.")
    text = answer.get_by_text("Is it <b>so</b>?")
    expect(text).to_be_hidden()
    answer.get_by_text("Reasoning").click()
    expect(text).to_be_visible()


def test_stop_ends_the_request_on_the_server(tab, page_server):
    aborted = lambda: sum(v for n, labels, v in page_server.metrics()
                          if n == "tailrace_request_success_total" and 'finished_reason="abort"' in labels)
    before = aborted()
    ask(tab, "loop")
    expect(last_answer(tab)).to_contain_text("and on and on")
    tab.get_by_role("button", name="Stop").click()
    expect(finished(tab).locator(".figures")).to_contain_text("stopped")
    for _ in range(100):
        if aborted() == before + 1 and page_server.metric_sum("tailrace_num_requests_running") == 0:
            break
        tab.wait_for_timeout(50)
    assert aborted() == before + 1
    assert page_server.metric_sum("tailrace_num_requests_running") == 0
    ask(tab, "hello")
    expect(finished(tab)).to_contain_text("Good morning")


def test_tool_calls_are_shown_and_answered(tab):
    tab.get_by_role("button", name="Parameters").click()
    tools = tab.get_by_label("Tools")
    tools.fill("{")
    expect(tab.get_by_text("Not JSON")).to_be_visible()
    tools.fill(TOOLS)
    ask(tab, "tool")
    call = tab.get_by_role("region", name="Call of get_weather")
    expect(call).to_contain_text("<img src=x onerror=window.pwned=1>")
    expect(call.locator("img")).to_have_count(0)
    tab.get_by_label("Result of get_weather").fill("sunny")
    tab.get_by_role("button", name="Send result").click()
    expect(last_answer(tab)).to_contain_text("It will be sunny.")
    assert tab.evaluate("window.pwned") is None


def test_hostile_text_is_inert(tab):
    ask(tab, "evil")
    answer = finished(tab)
    expect(answer).to_contain_text("<img src=x onerror=window.pwned=1>")
    assert answer.locator("img, script, iframe, [onerror], [style]").count() == 0
    for href in answer.locator("a").evaluate_all("links => links.map((a) => a.href)"):
        assert href.startswith("http://127.0.0.1:9/")
    for link in answer.locator("a").all():
        assert "noopener" in link.get_attribute("rel")
    assert tab.evaluate("window.pwned") is None


def test_errors_of_the_api_are_shown(tab):
    tab.get_by_role("button", name="Parameters").click()
    tab.get_by_label("Max tokens").fill("9999999")
    ask(tab, "hello")
    expect(tab.get_by_role("alert")).to_contain_text(re.compile("max_tokens|context"))
    tab.get_by_label("Max tokens").fill("1.5")
    expect(tab.get_by_text("A parameter is not valid.")).to_be_visible()
    tab.get_by_label("Max tokens").fill("2")
    tab.get_by_role("button", name="Again").click()
    expect(finished(tab).locator(".figures")).to_contain_text("reached its length")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_follows_the_systems_theme_until_told(browser, page_server, scheme):
    watched = Watched(browser, page_server, color_scheme=scheme)
    page = watched.page
    brightness = lambda: page.evaluate("+/\\d+/.exec(getComputedStyle(document.body).backgroundColor)[0]")
    switch = page.get_by_role("switch", name="Dark")
    expect(switch).to_have_attribute("aria-checked", "true" if scheme == "dark" else "false")
    was_dark = brightness() < 128
    assert was_dark == (scheme == "dark")
    switch.click()
    assert (brightness() < 128) != was_dark
    page.reload()  # kept
    expect(switch).to_have_attribute("aria-checked", "false" if scheme == "dark" else "true")
    watched.close()


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
    for _ in range(40):
        page.keyboard.press(key)
        if page.evaluate(focused) == name:
            outline = page.evaluate("[getComputedStyle(document.activeElement).outlineStyle, document.activeElement.tagName]")
            assert outline[0] != "none" or outline[1] == "TEXTAREA", f"no visible focus on {name}"
            return
    raise AssertionError(f"{name} cannot be reached by {key}")


def test_all_by_keyboard(tab):
    expect(tab.get_by_role("heading", name="What would you like to ask?")).to_be_visible()
    tab_to(tab, "Message")
    tab.keyboard.type("think")
    tab.keyboard.press("Enter")
    finished(tab)
    tab_to(tab, "Reasoning for " + (tab.locator("summary .quiet").text_content() or "").removeprefix(" for "), "Shift+Tab")
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("Is it <b>so</b>?")).to_be_visible()
    tab_to(tab, "Message")
    tab.keyboard.type("loop")
    tab.keyboard.press("Enter")
    expect(last_answer(tab)).to_contain_text("and on and on")
    tab.keyboard.press("Escape")
    expect(finished(tab).locator(".figures")).to_contain_text("stopped")
    tab_to(tab, "Engine", "Shift+Tab")
    tab.keyboard.press("Enter")
    tab_to(tab, "Step")
    before = tab.get_by_role("slider").get_attribute("aria-valuenow")
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    expect(tab.get_by_role("slider")).to_have_attribute("aria-valuenow", str(int(before) - 1))
    expect(tab.locator(".step-text")).to_contain_text("on the device")


def test_the_timeline_moves_and_a_trace_is_saved(tab, page_server):
    tab.goto(page_server.url + "/#engine")
    asking = threading.Thread(target=lambda: page_server.client().chat.completions.create(
        model="model", messages=[{"role": "user", "content": "loop"}], max_tokens=4000))
    asking.start()
    slider = tab.get_by_role("slider")
    expect(slider).to_be_visible()
    first = slider.get_attribute("aria-valuenow")
    expect(slider).not_to_have_attribute("aria-valuenow", first)
    assert int(slider.get_attribute("aria-valuenow")) > int(first)
    expect(tab.get_by_label("The device's time")).to_contain_text("busy")
    expect(tab.get_by_role("meter", name="Full attention")).to_be_visible()
    assert tab.evaluate("""() => {
      const canvas = document.querySelector("canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return data.some((value, at) => at % 4 === 3 && value > 200);
    }""")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Record").click()
    assert '"traceEvents"' in download.value.path().read_text()
    asking.join()
    tile = tab.locator(".tile", has_text="First token")
    expect(tile).to_contain_text("p90")


def test_fits_a_phone(browser, page_server):
    watched = Watched(browser, page_server, viewport={"width": 360, "height": 720})
    page = watched.page
    for script in ("evil", "code"):
        ask(page, script)
        finished(page)
    for view in ("#chat", "#engine"):
        page.goto(page_server.url + "/" + view)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    watched.close()


def test_asks_for_the_key(browser, scripted_model, tmp_path):
    server = Server("--api-key", "secret", log_path=tmp_path / "log", model=scripted_model)
    watched = Watched(browser, server)
    page = watched.page
    page.get_by_label("The server asks for an API key.").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_label("The server refused this API key.").fill("secret")
    page.get_by_role("button", name="Use it").click()
    ask(page, "hello")
    expect(finished(page)).to_contain_text("Good morning")
    assert page.evaluate("JSON.stringify({...localStorage})").find("secret") < 0
    watched.close()
    assert server.stop() == 0
