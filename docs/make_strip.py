"""Draw one solved episode as a film strip: what was seen, and below it what was done.

Usage: python docs/make_strip.py [ENV] [OUT] [SCALE]      (SCALE only for desktops and phones)
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageDraw

import turngym

LINE = 16
WIDEST = 640
"""Pixels of a picture; wider ones are made smaller."""


def main(name: str, out: Path, **more: float) -> None:
    env = turngym.make(name, screenshot="marks", **more)
    observation, _ = env.reset(seed=1, options={"split": "test"})
    pictures, actions, is_over = [observation["image"]], [], False
    while not is_over:
        actions.append(env.get_wrapper_attr("expert_action")())
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        is_over = terminated or truncated
        if not is_over:
            pictures.append(observation["image"])
    env.close()
    shrink = min(1.0, WIDEST / pictures[0].shape[1])
    height, width = (round(side * shrink) for side in pictures[0].shape[:2])
    strip = Image.new("RGB", (len(pictures) * (width + 6) - 6, height + LINE), "white")
    pen = ImageDraw.Draw(strip)
    for number, (picture, action) in enumerate(zip(pictures, actions, strict=True)):
        x = number * (width + 6)
        strip.paste(Image.fromarray(picture).resize((width, height)), (x, 0))
        last = f"   reward {reward:g}" if number == len(pictures) - 1 else ""
        pen.text((x + 2, height + 2), f"{number + 1}. {action}{last}", fill="black")
    out.parent.mkdir(parents=True, exist_ok=True)
    strip.save(out, optimize=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        given[0] if given else "web/miniwob-login-user",
        Path(given[1] if len(given) > 1 else "docs/assets/web_episode.png"),
        **({"scale": float(given[2])} if len(given) > 2 else {}),
    )
