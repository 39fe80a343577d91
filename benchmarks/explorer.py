"""How long a reader of the explorer waits: for the first usable page, and for a picture after a slider has moved.

    python benchmarks/explorer.py [--width 512] [--positions 2048] [--rounds 7] [ENCODING ...]

The page is started by its command and opened in headless Chromium (needs the extra "explorer", playwright and a
Chromium). For each encoding and each of its pictures D is changed `rounds` times, by 2 a time, and positions likewise.
Times are from the control's event to the frame after the new picture is decoded: the server's work, the way, and the
browser's. Milliseconds: median and slowest.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

from playwright.sync_api import Error, sync_playwright

from hf_posenc import POSITION_ENCODINGS

PATIENCE = 3000
# Moves a slider to a value, and resolves to the milliseconds until the new picture is on the screen; null if none came.
MOVE = """([label, value]) => new Promise(done => {
  const slider = [...document.querySelectorAll('input[type=range]')].find(
    one => one.getAttribute('aria-label') == 'range slider for ' + label && one.offsetParent);
  const place = document.querySelector('#see'), start = performance.now();
  const before = place.querySelector('img').src;
  const watch = new MutationObserver(async () => {
    const image = place.querySelector('img');
    if (!image || image.src == before) return;
    watch.disconnect();
    await image.decode();
    requestAnimationFrame(() => done(performance.now() - start));
  });
  watch.observe(place, {subtree: true, childList: true, attributes: true});
  setTimeout(() => { watch.disconnect(); done(null); }, PATIENCE);
  slider.value = value;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
})""".replace("PATIENCE", str(PATIENCE))
WIDTH, POSITIONS = "D, the model's width", "Positions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "encodings", nargs="*", default=[name for name, entry in POSITION_ENCODINGS.items() if not entry.is_modifier]
    )
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("A browser is needed, but there is no Chromium here; install chromium.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.perf_counter()
    command = [sys.executable, "-m", "hf_posenc", "explorer", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}) as server:
        try:
            with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
                context = playwright.chromium.launch_persistent_context(
                    profile, executable_path=browser, args=["--headless", "--no-sandbox", "--disable-gpu"]
                )
                page = context.new_page()
                opened = open_when_there(page, f"http://127.0.0.1:{port}/", server)
                page.wait_for_selector("#see img")
                ready = time.perf_counter()
                print(f"first usable page: {ready - start:.1f} s after the command, of which {ready - opened:.1f} s "
                      "in the browser\n")  # fmt: skip
                print(f"| encoding | picture | D near {options.width} | positions near {options.positions} |")
                print("|---|---|---|---|")
                for encoding in options.encodings:
                    measure(page, encoding, options)
        finally:
            server.terminate()


def open_when_there(page: Any, address: str, server: subprocess.Popen) -> float:
    """Open the page as soon as it is served; returns when that was."""
    while server.poll() is None:
        at = time.perf_counter()
        try:
            page.goto(address)
            return at
        except Error:
            time.sleep(0.05)
    raise SystemExit("The explorer has stopped.")


def measure(page: Any, encoding: str, options: argparse.Namespace) -> None:
    box = page.get_by_label("Encoding, or several for their sum").first
    box.click()
    page.keyboard.press("Backspace")
    box.fill(encoding)
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_timeout(2000)
    if page.get_by_text("has nothing to draw").count():
        return
    if (table := page.get_by_label("learned_max_positions").locator("visible=true")).count():
        table.first.fill(str(options.positions))
    start = {WIDTH: options.width, POSITIONS: options.positions}
    for picture in page.locator("fieldset", has_text="Picture").get_by_role("radio").all():
        picture.check()
        page.wait_for_timeout(1000)
        for label, value in start.items():
            page.evaluate(MOVE, [label, value])
        name = page.locator("#see img").get_attribute("alt").split(" of ")[0]
        cells = []
        for (label, value), step in zip(start.items(), (2, 1), strict=True):
            if page.evaluate(MOVE, [label, value - step]) is None:
                cells.append("the same")
                continue
            moves = [[label, value - step * turn] for turn in range(2, options.rounds + 2)]
            times = [page.evaluate(MOVE, one) or PATIENCE for one in moves]
            page.evaluate(MOVE, [label, value])
            cells.append(f"{median(times):.0f} ({max(times):.0f})")
        print(f"| {encoding} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
