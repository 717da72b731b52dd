"""Pictures of a browser as small PNG files: the 256 most frequent colours, which text and flat areas hardly exceed."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

REDUCE = """async (png) => {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, image.width, image.height).data, counts = new Map();
  const colours = new Uint32Array(pixels.length / 4);
  for (let at = 0; at < colours.length; at++) {
    colours[at] = (pixels[4 * at] << 16) | (pixels[4 * at + 1] << 8) | pixels[4 * at + 2];
    counts.set(colours[at], (counts.get(colours[at]) || 0) + 1);
  }
  const palette = [...counts].sort(([, one], [, other]) => other - one).slice(0, 256).map(([colour]) => colour);
  const places = new Map(palette.map((colour, place) => [colour, place]));
  const part = (one, other, bits) => (((one >> bits) & 255) - ((other >> bits) & 255)) ** 2;
  const far = (one, other) => part(one, other, 16) + part(one, other, 8) + part(one, other, 0);
  for (const colour of counts.keys()) {
    if (places.has(colour)) continue;
    let best = 0;
    palette.forEach((other, at) => (best = far(colour, other) < far(colour, palette[best]) ? at : best));
    places.set(colour, best);
  }
  let text = '';
  for (const colour of colours) text += String.fromCharCode(places.get(colour));
  return { width: image.width, height: image.height, palette, places: btoa(text) };
}"""


async def reduced(browser: Any, png: bytes) -> bytes:
    """The picture with at most 256 colours; the browser decodes it and maps each colour to the nearest one."""
    page = await browser.new_page()
    try:
        mapped = await page.evaluate(REDUCE, base64.b64encode(png).decode())
    finally:
        await page.close()
    width, height, places = mapped["width"], mapped["height"], base64.b64decode(mapped["places"])
    rows = b"".join(b"\0" + places[at : at + width] for at in range(0, width * height, width))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(colour.to_bytes(3) for colour in mapped["palette"])),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
