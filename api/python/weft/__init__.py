# SPDX-License-Identifier: MIT
"""A client of weft for asyncio: answers with their canvases while they are denoised. Only the standard library is needed.

    async with weft.Client("http://127.0.0.1:8080") as client:
        answer = await client.ask("List all numbers from 34 to 49.", progress=lambda c: print(c.step, c.share, c.text))
        print(answer.text)

The wheel brings the program, too: `weft demo`, `weft serve FILE`."""
from .client import Answer, Canvas, Client, Model, Part, Refused, Usage

__all__ = ["Answer", "Canvas", "Client", "Model", "Part", "Refused", "Usage"]
