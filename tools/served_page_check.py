#!/usr/bin/env python3
"""The page of `moe serve` as people meet it: starts the server on a free port of the loopback and
drives its page in headless Chromium.

  tools/served_page_check.py MOE MODEL OUT    OUT: a folder for screenshots

A message is sent and its tokens arrive one by one, in the colours of experts; a token's experts are
shown when it is pointed at and when the arrow keys reach it; a reply is stopped and drawn again; two
prompts stand side by side; nothing is wider than a phone; light and dark; nothing is asked of another
address and nothing is logged as an error.
"""

import os
import sys
import time
from pathlib import Path

from page_check import Checks, browser, open_page, requests_of, screenshot, seen
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "interop"))
from serve_process import Serve

PATIENCE = 30  # seconds


def wait(driver, script, *arguments):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := driver.execute_script("return " + script, *arguments):
            return found
        time.sleep(0.02)
    return None


def begin(driver, url, width, mode):
    open_page(driver, url, width, mode)
    return wait(driver, "document.getElementById('say') !== null")


def set_field(driver, name, value):
    driver.execute_script(
        "document.getElementById(arguments[0]).value = arguments[1]", name, str(value)
    )


def say(driver, text, box="say"):
    driver.find_element(By.ID, box).send_keys(text)


ENDED = (
    "document.getElementById('stop').disabled && document.querySelector('.under button') !== null"
)


def check_reply(driver, checks, name):
    for field, value in [("max_tokens", 300), ("seed", 1)]:
        set_field(driver, field, value)
    # A small model writes faster than a script can ask from outside.
    driver.execute_script(
        "window.steps = new Set(); new MutationObserver(() =>"
        " window.steps.add(document.querySelectorAll('.said .t').length))"
        ".observe(document.getElementById('talks'), {childList: true, subtree: true})"
    )
    say(driver, "The experts of a layer", "say")
    driver.find_element(By.ID, "say").send_keys(Keys.ENTER)
    wait(driver, ENDED)
    steps = driver.execute_script("return window.steps.size")
    tokens = seen(driver, ".said .t")
    checks.that(len(tokens) >= 60, f"{name}: {len(tokens)} tokens have a colour")
    checks.that(steps > 1, f"{name}: the tokens came in {steps} steps")
    classes = {token.get_attribute("class") for token in tokens}
    checks.that(len(classes) > 2, f"{name}: the colours are {classes}")
    checks.that("300 tokens in" in text_of(driver, ".under"), f"{name}: the figures of the reply")
    hot = text_of(driver, "#hot")
    checks.that("layer" in hot and "%" in hot, f"{name}: the hot experts are {hot!r}")
    painted = driver.execute_script(
        "const c = document.querySelector('#heats canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return d.some((v, i) => i % 4 === 3 && v > 0)"
    )
    checks.that(painted, f"{name}: the heat map is painted")


def text_of(driver, selector):
    return driver.execute_script(
        "return document.querySelector(arguments[0]).textContent", selector
    )


def check_lane(driver, checks, name):
    tokens = seen(driver, ".said .t")
    x, y = driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center'}); const b = arguments[0].getClientRects()[0];"
        "return [b.left + b.width / 2, b.top + b.height / 2]",
        tokens[5],
    )
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    said = text_of(driver, "#lane-head")
    # Not every token ends a letter, and one without a text of its own is not to be seen.
    place = int(tokens[5].get_attribute("data-i"))
    checks.that(f"token {place + 1} of the reply" in said, f"{name}: the lane says {said!r}")
    rows = seen(driver, "#lane .parts")
    checks.that(len(rows) == 3, f"{name}: the lane has {len(rows)} layers")
    driver.execute_script("arguments[0].focus()", tokens[5])
    tokens[5].send_keys(Keys.ARROW_RIGHT)
    said = text_of(driver, "#lane-head")
    following = driver.execute_script(
        "return [...document.querySelectorAll('.said .t')].find("
        "e => e.textContent && Number(e.dataset.i) > arguments[0]).dataset.i",
        place,
    )
    checks.that(
        f"token {int(following) + 1} of the reply" in said,
        f"{name}: after an arrow key it says {said!r}",
    )
    before = [t.get_attribute("class") for t in tokens]
    driver.execute_script(
        "const s = document.getElementById('layer'); s.value = '0'; s.dispatchEvent(new Event('change'))"
    )
    after = [t.get_attribute("class") for t in tokens]
    checks.that(before != after, f"{name}: another layer has other colours")


def check_stop(driver, checks, name):
    set_field(driver, "max_tokens", 4000)
    driver.find_element(By.ID, "again").click()
    begun = wait(driver, "document.querySelectorAll('.said .t').length > 5")
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    ended = wait(driver, ENDED)
    checks.that(begun and ended, f"{name}: a reply is drawn again and stopped")
    replies = driver.execute_script("return document.querySelectorAll('.said.assistant').length")
    checks.that(replies == 1, f"{name}: there are {replies} replies")
    set_field(driver, "max_tokens", 60)


def check_compare(driver, checks, name):
    driver.find_element(By.ID, "clear").click()
    driver.find_element(By.ID, "compare").click()
    say(driver, "int main() {", "say")
    say(driver, "Once upon a time", "say2")
    driver.find_element(By.ID, "send").click()
    wait(driver, "document.querySelectorAll('.under button').length === 2")
    columns = driver.execute_script(
        "return [...document.querySelectorAll('.talk')].map(t => t.querySelectorAll('.t').length)"
    )
    checks.that(
        len(columns) == 2 and all(n > 30 for n in columns),
        f"{name}: two replies have {columns} tokens",
    )
    agreement = seen(driver, "#agree i")
    checks.that(len(agreement) == 3, f"{name}: {len(agreement)} layers are held against each other")
    checks.that(len(seen(driver, "#heats canvas")) == 2, f"{name}: two heat maps")
    driver.find_element(By.ID, "source").click()
    since = wait(driver, "document.querySelectorAll('#heats canvas').length === 1")
    checks.that(since, f"{name}: what the server did since its start")
    driver.find_element(By.ID, "source").click()


def check_width(driver, checks, name, width):
    over = driver.execute_script("return document.documentElement.scrollWidth")
    checks.that(over <= width, f"{name}: the page is {over} wide on a screen of {width}")


def main():
    binary, model, out = sys.argv[1:4]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    with Serve(binary, model, str(folder / "serve.log"), "--context", "512") as server:
        driver = browser()
        try:
            for mode, width in [("light", 1280), ("dark", 1280), ("light", 360)]:
                name = f"{mode}, {width}"
                checks.that(begin(driver, server.url + "/", width, mode), f"{name}: the page opens")
                check_reply(driver, checks, name)
                check_lane(driver, checks, name)
                check_width(driver, checks, name, width)
                screenshot(driver, folder / f"serve-{mode}-{width}.png", width)
                check_stop(driver, checks, name)
                check_compare(driver, checks, name)
                check_width(driver, checks, name, width)
                screenshot(driver, folder / f"serve-compare-{mode}-{width}.png", width)
            before = driver.execute_script(
                "return getComputedStyle(document.documentElement).color"
            )
            driver.find_element(By.ID, "theme").click()
            after = driver.execute_script("return getComputedStyle(document.documentElement).color")
            checks.that(before != after, "the switch of light and dark")
            strangers = [a for a in requests_of(driver, "") if not a.startswith(server.url)]
            checks.that(not strangers, f"nothing else is asked: {strangers}")
            errors = [e for e in driver.get_log("browser") if e["level"] == "SEVERE"]
            checks.that(not errors, f"nothing is logged: {errors}")
        finally:
            driver.quit()
    print(f"{checks.passed} passed, {len(checks.failed)} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
