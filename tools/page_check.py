#!/usr/bin/env python3
"""Opens a report in headless Chromium as readers do: light and dark, on a screen (1280 px) and on a
phone (375 px), with and without a script.

Fails on what a reader would meet: errors on the console, requests to anywhere, content wider than
the screen, missing cards, empty charts, text of too little contrast (WCAG 2.1: under 4.5, or under
3 where it is large), a tip that does not come. Writes a screenshot of each to OUT.
    tools/page_check.py REPORT.html OUT [--expect CARD ...]
    tools/page_check.py --pictures FOLDER OUT
Needs chromium, chromium-driver and python3-selenium (Debian 12 has them)."""

import argparse
import base64
import json
import pathlib
import sys

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

SCREENS = [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")]
RUN_CARDS = ["ce", "losses", "step_max_vio", "grad_norm", "step_load"]
TEXT_CARDS = [
    "load",
    "max_vio",
    "nats_per_token",
    "domain",
    "coactivation",
    "vocabulary_input",
    "router_entropy",
    "favourites",
    "sample",
]

# Every text that is seen, with the colour it is drawn in and what lies under it: the grounds of its
# ancestors, each laid over the next by its opacity. In an SVG the ground of a text is the cell
# before it, where it stands in one.
CONTRAST = r"""
const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1]; };
const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
const luminance = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; };
const ground = e => {
  const layers = [];
  for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
};
const faults = [], seen = new Set();
let count = 0;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
  if (!text || ['SCRIPT', 'STYLE', 'title', 'OPTION'].includes(e.tagName) || !e.getClientRects().length || e.closest('#tip')) continue;
  const style = getComputedStyle(e), svg = e.tagName === 'text';
  let under = ground(svg ? e.closest('svg').parentElement : e);
  const cell = svg && /^t[bw][bw]$/.test(e.className.baseVal) ? e.previousElementSibling : null;
  if (cell && cell.tagName === 'rect') {
    const s = getComputedStyle(cell);
    const fill = parse(s.fill);
    under = over([fill[0], fill[1], fill[2], Number(s.fillOpacity)], under);
  }
  const colour = over(parse(svg ? style.fill : style.color), under);
  const a = luminance(colour), b = luminance(under), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  ++count;
  const key = e.tagName + '.' + (e.className.baseVal ?? e.className);
  if (ratio < (large ? 3 : 4.5) - .005 && !seen.has(key)) { seen.add(key); faults.push(key + ' "' + text.slice(0, 30) + '" ' + ratio.toFixed(2)); }
}
return [count, faults];
"""

EMPTY_CHARTS = r"""
return [...document.querySelectorAll('svg')].filter(s => s.getClientRects().length).filter(s => {
  const box = s.getBoundingClientRect();
  return box.width < 20 || box.height < 10 || !s.querySelector('path, rect, circle') || !s.getAttribute('aria-label');
}).map(s => s.closest('[id]').id + ': ' + s.getAttribute('aria-label'));
"""

# What sticks out on either side, unless it lies in a box that scrolls.
OVERFLOW = r"""
const wide = document.documentElement.clientWidth, out = [];
if (document.documentElement.scrollWidth > wide) out.push('the page is ' + document.documentElement.scrollWidth + ' px wide');
for (const e of document.querySelectorAll('body *')) {
  const box = e.getBoundingClientRect();
  if (box.width && (box.right > wide + 1 || box.left < -1) && !e.closest('.scroll, .legend, #tip')) out.push(e.tagName + ' "' + e.textContent.slice(0, 40) + '"');
}
return out.slice(0, 5);
"""


class Checks:
    def __init__(self):
        self.passed, self.failed = 0, []

    def that(self, holds, what):
        if holds:
            self.passed += 1
        else:
            self.failed.append(what)
            print("FAILED: " + what, file=sys.stderr)


def browser():
    options = Options()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)


def open_page(driver, url, width, mode):
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": mode}]},
    )
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    driver.get(url)


def screenshot(driver, path, width):
    height = min(16000, driver.execute_script("return document.documentElement.scrollHeight"))
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    path.write_bytes(base64.b64decode(shot["data"]))
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def requests_of(driver, url):
    """Addresses asked for since the last call, beside the page itself and what is inside it."""
    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            address = message["params"]["request"]["url"]
            if address.split("#")[0] != url and not address.startswith(
                ("data:", "chrome:", "about:")
            ):
                found.append(address)
    return found


def tip_over(driver, element):
    """What the tip says when the pointer is in the middle of an element."""
    # The page hides the tip when it scrolls, and hears of scrolling a frame later.
    driver.execute_async_script(
        "arguments[0].scrollIntoView({block: 'center'}); const done = arguments[1]; requestAnimationFrame(() => setTimeout(done, 60))",
        element,
    )
    x, y = driver.execute_script(
        "const b = arguments[0].getClientRects()[0]; return [b.left + b.width / 2, b.top + b.height / 2]",
        element,
    )
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    return driver.execute_script(
        "const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent"
    )


def seen(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0)",
        selector,
    )


def check_comfort(driver, checks, name):
    """The script's part: tips over tokens, cells and curves; layers to choose; a legend that lights
    its tokens; arrow keys; the switch of colours."""
    tokens = seen(driver, "#sample .t")
    if tokens:
        said = tip_over(driver, tokens[9])
        checks.that(
            "expert" in said and "nats" in said and "layer" in said,
            f"{name}: the tip of a token says {said!r}",
        )
        buttons = seen(driver, "#sample .choose button")
        if len(buttons) > 1:
            classes = lambda: driver.execute_script(
                "return [...document.querySelectorAll('#sample .t')].map(t => t.className).join()"
            )
            before = classes()
            other = next(b for b in buttons if b.get_attribute("aria-pressed") != "true")
            driver.execute_script("arguments[0].click()", other)
            checks.that(
                classes() != before, f"{name}: another layer colours the tokens in the same way"
            )
            checks.that(
                other.text.split()[-1] in tip_over(driver, tokens[0]),
                f"{name}: the tip does not follow the layer",
            )
        # The first expert that some token of the layer chose.
        key = seen(driver, "#sample .key")[
            int(
                driver.execute_script(
                    "return document.querySelector('#sample .t:not(.none)').className.match(/x(\\d+)/)[1]"
                )
            )
        ]
        driver.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerenter'))", key)
        lit = driver.execute_script(
            "return [document.querySelectorAll('.dim').length, document.querySelectorAll('.t.lit').length, document.querySelectorAll('.t').length]"
        )
        checks.that(
            lit[0] == 1 and (0 < lit[1] < lit[2] or len(seen(driver, "#sample .key")) == 1),
            f"{name}: the legend lights {lit}",
        )
        driver.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerleave'))", key)
        box = seen(driver, "#sample .tokens")[0]
        box.send_keys("\ue014")  # arrow right
        checks.that(
            driver.execute_script(
                "return document.querySelectorAll('.t.at').length === 1 && !document.getElementById('tip').hidden"
            ),
            f"{name}: the arrow keys do not walk over the tokens",
        )
        driver.execute_script("document.activeElement.blur()")
    for card, selector in (
        ("domain", "#domain .cl, #domain .map"),
        ("ce", "#ce .hv"),
        ("coactivation", "#coactivation .cl, #coactivation .map"),
    ):
        places = seen(driver, selector)
        if places:
            said = tip_over(driver, places[len(places) // 2])
            checks.that(
                "%" in said or any(c.isdigit() for c in said),
                f"{name}: the tip of {card} says {said!r}",
            )
    back = "return getComputedStyle(document.documentElement).backgroundColor"
    before = driver.execute_script(back)
    driver.execute_script("document.getElementById('theme').click()")
    checks.that(
        driver.execute_script(back) != before, f"{name}: the switch of colours does nothing"
    )


def check_without_script(driver, checks, url, cards):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    open_page(driver, url, 375, "light")
    checks.that(
        all(driver.find_element(By.ID, card).is_displayed() for card in cards),
        "without a script a card is hidden",
    )
    hidden = [
        s for s in driver.find_elements(By.CSS_SELECTOR, ".pick > section") if not s.is_displayed()
    ]
    checks.that(not hidden, f"without a script {len(hidden)} layers are hidden")
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def check_pictures(folder, out):
    """Each picture as an <img>, as a README shows it: it loads, at a size one can read."""
    checks, driver = Checks(), browser()
    pictures = sorted(folder.glob("*.svg"))
    try:
        for mode in ("light", "dark"):
            page = out / f"pictures-{mode}.html"
            page.write_text(
                '<!DOCTYPE html><meta name="color-scheme" content="light dark"><body style="margin:16px;background:'
                + ("#fff" if mode == "light" else "#0d1117")
                + '">'
                + "".join(f'<p><img src="{p.resolve().as_uri()}">' for p in pictures)
            )
            open_page(driver, page.resolve().as_uri(), 880, mode)
            sizes = driver.execute_script(
                "return [...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight])"
            )
            for picture, (complete, width, height) in zip(pictures, sizes):
                checks.that(
                    complete and width >= 380 and height >= 80,
                    f"{picture.name}, {mode}: {width} x {height}",
                )
            screenshot(driver, out / f"pictures-{mode}.png", 880)
            page.unlink()
    finally:
        driver.quit()
    checks.that(len(pictures) >= 8, f"only {len(pictures)} pictures")
    print(f"{len(pictures)} pictures: {checks.passed} passed, {len(checks.failed)} failed")
    return 1 if checks.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "report", type=pathlib.Path, help="the page; with --pictures the folder of the pictures"
    )
    parser.add_argument("out", type=pathlib.Path, help="folder of the screenshots")
    parser.add_argument(
        "--expect",
        nargs="*",
        default=RUN_CARDS + TEXT_CARDS,
        help="ids of the cards that must be there",
    )
    parser.add_argument(
        "--pictures", action="store_true", help="check stand-alone pictures instead"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.pictures:
        return check_pictures(arguments.report, arguments.out)
    url = arguments.report.resolve().as_uri()
    checks = Checks()
    driver = browser()
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        for width, mode in SCREENS:
            name = f"{mode}, {width} px"
            open_page(driver, url, width, mode)
            missing = [
                card
                for card in arguments.expect
                if not driver.find_elements(
                    By.CSS_SELECTOR,
                    f"section#{card} svg, section#{card} table, "
                    f"section#{card} .t, section#{card} .chip",
                )
            ]
            checks.that(not missing, f"{name}: missing cards {missing}")
            checks.that(
                not (wide := driver.execute_script(OVERFLOW)),
                f"{name}: wider than the screen: {wide}",
            )
            checks.that(
                not (empty := driver.execute_script(EMPTY_CHARTS)), f"{name}: empty charts: {empty}"
            )
            texts, faint = driver.execute_script(CONTRAST)
            checks.that(texts > 20 and not faint, f"{name}: of {texts} texts too faint: {faint}")
            screenshot(driver, arguments.out / f"{arguments.report.stem}-{mode}-{width}.png", width)
            check_comfort(driver, checks, name)
            log = [
                entry["message"]
                for entry in driver.get_log("browser")
                if entry["level"] in ("SEVERE", "WARNING")
            ]
            checks.that(not log, f"{name}: the console says {log[:3]}")
            checks.that(not (asked := requests_of(driver, url)), f"{name}: requests {asked[:3]}")
        check_without_script(driver, checks, url, arguments.expect)
    finally:
        driver.quit()
    print(
        f"{arguments.report.name}: {checks.passed} passed, {len(checks.failed)} failed; screenshots in {arguments.out}"
    )
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
