# SPDX-License-Identifier: MIT
"""Prints conversations of the demo's tasks, with their answers, as the model's chat template writes
them: a text for `weft perplexity --special`. The last task of each is held out from training.

python3 corpus.py CONVERSATIONS [SEED]
"""

import random
import sys

import tasks


def render(messages):
    """What the template prints; the last answer follows an empty thought, as in training."""
    out = ["<bos>"]
    for i, m in enumerate(messages):
        last = i == len(messages) - 1
        role = "model" if m["role"] == "assistant" else m["role"]
        thought = "<|channel>thought\n<channel|>" if last else ""
        out.append(f"<|turn>{role}\n{thought}{m['content'].strip()}<turn|>\n")
    return "".join(out)


def main():
    r = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for _ in range(int(sys.argv[1])):
        sys.stdout.write(render(tasks.conversation(r, want_held_out=True)[0]))


if __name__ == "__main__":
    main()
