"""Promises: the page shows what happened, escapes everything, needs nothing from elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.api import EngineStats
from semblend.engine.engine import EmbeddedEngine
from tests.serve.browser import open_browser, prefer, resize
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import Running, running, until
from tests.serve.texts import document, messages

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"\'`${1}'


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = open_browser(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: Any) -> Iterator[Any]:
    resize(driver, 1280, 1000)
    prefer(driver, "light")
    yield driver
    refusals = [
        entry
        for entry in driver.get_log("browser")
        if "Content Security Policy" in entry["message"] or "TypeError" in entry["message"]
    ]
    driver.get("about:blank")
    assert refusals == []


def visit(driver: Any, host: Running) -> None:
    driver.get(host.url)
    until(lambda: text(driver, "#status-text") != "connecting", "the page to connect")


def text(driver: Any, selector: str) -> str:
    return str(
        driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        )
    )


def script(driver: Any, code: str, *arguments: Any) -> Any:
    return driver.execute_script(code, *arguments)


def rows(driver: Any) -> list[dict[str, Any]]:
    return list(
        script(
            driver,
            """return [...document.querySelectorAll("#rows > li")].map((li) => ({
                kind: li.querySelector(".badge").dataset.kind,
                strip: [...li.querySelectorAll(".strip rect")].map((r) =>
                  [r.getAttribute("class"), Number(r.getAttribute("x")),
                   Number(r.getAttribute("width"))]),
            }))""",
        )
    )


def ask(host: Running, content: Any, **headers: str) -> httpx.Response:
    response = httpx.post(
        f"{host.v1}/chat/completions",
        json={"model": host.context.options.model_name, "messages": content, "max_tokens": 3},
        headers=headers,
        timeout=60,
    )
    assert response.status_code == 200, response.text
    return response


def test_a_newcomers_example_works_as_printed(engine: EmbeddedEngine, page: Any) -> None:
    """Run the very commands of the empty page; the second request is drawn as reused."""
    if shutil.which("bash") is None or shutil.which("curl") is None:
        pytest.skip("the example is a shell script with curl: install bash and curl")
    usual = Settings(allow_uncertified=True, embedder=EmbedderKind.NONE)
    with EmbeddedEngine(engine.model, settings=usual) as fresh, running(fresh) as host:
        visit(page, host)
        assert script(page, "return !document.getElementById('empty').hidden")
        *first, second = text(page, "#example").splitlines()
        assert host.url in "\n".join(first)
        subprocess.run(["bash", "-c", "\n".join(first)], check=True, capture_output=True)
        until(lambda: fresh.stats().registrations, "a donor")
        subprocess.run(
            ["bash", "-c", "\n".join([*first[:-1], second])], check=True, capture_output=True
        )
        until(
            lambda: [row["kind"] for row in rows(page)] == ["materialised", "cold"],
            "both requests to be drawn",
        )
        assert script(page, "return document.getElementById('empty').hidden")


def test_strips_are_the_engines_own_account(engine: EmbeddedEngine, page: Any) -> None:
    words = document(900)
    with running(engine) as host:
        before = engine.stats().registrations
        ask(host, messages("Answer.", words, "Where?"))
        until(lambda: engine.stats().registrations > before, "a donor")
        report = ask(host, messages("Please read this.", words, "Where?")).json()["semblend"]
        visit(page, host)
        until(lambda: len(rows(page)) == 2, "both requests to be drawn")
        strip = rows(page)[0]["strip"]
        drawn: dict[str, int] = {}
        position = 0
        for kind, start, width in strip:
            assert start == position
            position += width
            drawn[kind.split()[0]] = drawn.get(kind.split()[0], 0) + width
        assert position == report["prompt_tokens"]
        assert drawn["f-reused"] == report["reused_tokens"] > 0
        assert drawn["f-recomputed"] == report["recomputed_tokens"] > 0
        total = script(
            page, "return [...document.querySelectorAll('#legend b')].map((b) => b.textContent)"
        )
        state = httpx.get(f"{host.url}/semblend/state").json()
        assert [int(number.replace(",", "")) for number in total] == list(state["tokens"].values())
        assert "Not sampled yet" in text(page, "#shadow")
        assert "donor" in text(page, "#store")


def test_a_strip_can_be_walked_with_the_keyboard(engine: EmbeddedEngine, page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    with running(engine) as host:
        ask(host, messages("Answer.", document(901, 4), "Where?"))
        visit(page, host)
        until(lambda: rows(page), "the request to be drawn")
        strip = page.find_element("css selector", "#rows .strip")
        script(page, "arguments[0].focus()", strip)
        strip.send_keys(Keys.ARROW_RIGHT)
        assert text(page, "#tip").startswith("tokens 0 to ")
        assert text(page, "#said") == text(page, "#tip")
        strip.send_keys(Keys.ESCAPE)
        assert script(page, "return document.getElementById('tip').hidden")
        page.find_element("css selector", "#rows .more").send_keys(Keys.ENTER)
        assert "First token" in text(page, "#rows .details")


def test_nothing_a_user_or_operator_writes_becomes_markup(
    scripted: ScriptedEngine, page: Any
) -> None:
    with running(scripted, model_name=HOSTILE, trust_tenant_header=True) as host:
        hostile_id = {"x-request-id": "<b>bold</b>", "x-tenant-id": "tenant-secret"}
        ask(host, [{"role": "user", "content": HOSTILE + "WORD-OF-A-PROMPT"}], **hostile_id)
        visit(page, host)
        until(lambda: rows(page), "the request to be drawn")
        page.find_element("css selector", "#rows .more").click()
        assert text(page, "#model") == HOSTILE
        assert HOSTILE in page.title
        assert script(page, "return window.pwned") is None
        assert script(page, "return document.querySelectorAll('img, b b, iframe').length") == 0
        assert script(page, "return document.scripts.length") == 1
        whole = script(page, "return document.documentElement.outerHTML")
        assert "WORD-OF-A-PROMPT" not in whole
        assert "tenant-secret" not in whole
        assert "bold" not in whole
        refused = script(
            page,
            "try { document.body.innerHTML = '<i>x</i>' } catch (error) { return error.name }",
        )
        assert refused == "TypeError"
        page.get_log("browser")  # That refusal was ours.


def test_the_page_asks_nobody_but_its_own_server(scripted: ScriptedEngine, page: Any) -> None:
    with running(scripted) as host:
        visit(page, host)
        until(
            lambda: script(page, "return performance.getEntriesByType('resource').length") >= 1,
            "the first poll",
        )
        names = script(
            page, "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        assert all(name.startswith((host.url, "data:")) for name in names)


def test_a_key_is_asked_for_and_shows_its_own_tenant(
    scripted: ScriptedEngine, page: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps({"keys": {"sk-alice-0123456789": "alice", "sk-bob-0123456789": "b"}})
    )
    with running(scripted, key_file=keys) as host:
        for name in ("alice", "bob"):
            ask(
                host,
                [{"role": "user", "content": "hello"}],
                authorization=f"Bearer sk-{name}-0123456789",
            )
        page.get(host.url)
        dialog = "return document.getElementById('key-dialog').open"
        until(lambda: script(page, dialog), "the dialog")

        def offer(key: str) -> None:
            page.find_element("id", "key").send_keys(key)
            page.find_element("css selector", "#key-form .primary").click()

        offer("sk-wrong-0123456789")
        until(lambda: "Unknown key" in text(page, "#key-note"), "the refusal")
        until(lambda: script(page, dialog), "the dialog again")
        offer("sk-alice-0123456789")
        until(lambda: len(rows(page)) == 1, "the tenant's one request")
        assert "admin keys only" in text(page, "#store")
        assert "Your tenant only" in text(page, "#footer")
        script(page, "sessionStorage.clear()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_the_page_is_readable_in_light_and_dark_and_at_any_width(
    scripted: ScriptedEngine, page: Any, scheme: str, width: int
) -> None:
    with running(scripted) as host:
        for index in range(3):
            ask(host, [{"role": "user", "content": f"hello {index}"}])
        resize(page, width, 900)
        prefer(page, scheme)
        visit(page, host)
        until(lambda: len(rows(page)) == 3, "the requests to be drawn")
        overflow = "return document.documentElement.scrollWidth - innerWidth"
        assert script(page, overflow) <= 0
        for selector in ("#saved", "#legend span", "#footer", "#rows .tokens", ".badge", "#theme"):
            assert script(page, CONTRAST, selector) >= 4.5, selector
        background = script(page, "return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 128) is (scheme == "dark")


CONTRAST = """
const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
const node = document.querySelector(arguments[0]);
let under = node;
const opaque = (n) => (rgb(getComputedStyle(n).backgroundColor)[3] ?? 1) > 0;
while (under && !opaque(under)) under = under.parentElement;
const luminance = (c) => rgb(c).slice(0, 3).map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const [a, b] = [luminance(getComputedStyle(node).color),
  luminance(getComputedStyle(under ?? document.body).backgroundColor)];
return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
"""


def test_a_lost_server_is_said_and_a_new_one_is_not_mixed_up_with_it(
    scripted: ScriptedEngine, page: Any
) -> None:
    with running(scripted) as host:
        ask(host, [{"role": "user", "content": "hello"}])
        visit(page, host)
        until(lambda: len(rows(page)) == 1, "the request to be drawn")
        host.stop()
        until(lambda: "unreachable" in text(page, "#status-text"), "the loss to be noticed")
        assert len(rows(page)) == 1
        page.get_log("browser")


def test_uncertified_reuse_is_explained(engine: EmbeddedEngine, page: Any) -> None:
    """Where text was found and not used, the page says why and what to do."""
    words = document(902)
    careful = Settings(embedder=EmbedderKind.NONE, recompute_policy="none", certificate_dir="none")
    with (
        EmbeddedEngine(engine.model, settings=careful) as uncertified,
        running(uncertified) as host,
    ):
        visit(page, host)
        assert script(page, "return document.getElementById('banner').hidden")
        ask(host, messages("Answer.", words, "Where?"))
        until(lambda: uncertified.stats().registrations, "a donor")
        report = ask(host, messages("Please read this.", words, "Where?")).json()["semblend"]
        assert (report["reused_tokens"], report["reason"]) == (0, "no_certificate")
        until(lambda: "semblend certify" in text(page, "#banner"), "the explanation")
        assert rows(page)[0]["kind"] == "discovery_only"
        assert text(page, "#certificate-text") == "No certificate: discovery only"
        found = [width for kind, _, width in rows(page)[0]["strip"] if kind == "f-found"]
        assert sum(found) > 0.7 * report["prompt_tokens"]
        assert sum(width for _, _, width in rows(page)[0]["strip"]) == report["prompt_tokens"]
        assert "a certificate would save" in text(page, "#saved")


def test_the_badge_says_until_when_the_model_is_certified(
    scripted: ScriptedEngine, page: Any
) -> None:
    def certified(days: int) -> EngineStats:
        until = datetime.now(UTC) + timedelta(days=days, hours=1)
        return replace(stats, certified=True, certificate_until=until.isoformat())

    stats = scripted.stats()
    with running(scripted) as host, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "stats", lambda: certified(200))
        visit(page, host)
        until(lambda: "Certified until" in text(page, "#certificate-text"), "the badge")
        patch.setattr(scripted, "stats", lambda: certified(9))
        until(lambda: "expires in 9 days" in text(page, "#certificate-text"), "the warning")


def test_a_prompt_can_be_tried_on_the_page_and_its_answer_is_text(
    scripted: ScriptedEngine, page: Any
) -> None:
    with running(scripted) as host:
        visit(page, host)
        script(page, "document.getElementById('try').open = true")
        page.find_element("id", "try-instruction").send_keys(HOSTILE)
        page.find_element("id", "try-send").click()
        until(lambda: "First token after" in text(page, "#try-answer"), "the answer")
        assert "w1" in text(page, "#try-answer")
        until(lambda: len(rows(page)) == 1, "the request to be drawn")
        assert script(page, "return window.pwned") is None
        scripted.submit_error = RuntimeError("gone")
        page.find_element("id", "try-send").click()
        until(lambda: "No answer:" in text(page, "#try-answer"), "the refusal")
        page.get_log("browser")
