# SPDX-License-Identifier: MIT
"""The routers that are tried: how each is started, and what it does to requests that clients should know."""
import dataclasses
import os


@dataclasses.dataclass
class Kind:
    name: str           # its environment, and its package
    version: str
    command: tuple      # {home}: its environment
    policy: str         # what the table is made with
    options: tuple = ()
    reads_events: bool = False
    # sglang-router writes chats again with the fields that it knows: mode, stream_canvas and cache_salt are lost there
    keeps_chat_fields: bool = True

    def missing(self, home):
        """Why it cannot be had here, or nothing."""
        program = self.command[0].format(home=os.path.join(home, self.name))
        if os.access(program, os.X_OK) and not os.path.exists(os.path.join(home, self.name + ".why")):
            return ""
        try:
            with open(os.path.join(home, self.name + ".why"), encoding="utf-8") as f:
                return f.read().strip().split("\n")[-1] or "pip gave no reason"
        except OSError:
            return f"{program} is not there"


KINDS = (
    Kind("sglang-router", "0.3.2", ("{home}/bin/python", "-m", "sglang_router.launch_router"), "cache_aware", keeps_chat_fields=False),
    Kind("smg", "1.13.0", ("{home}/bin/python", "-m", "smg", "launch"), "cache_aware"),
    Kind("vllm-router", "0.1.17", ("{home}/bin/vllm-router",), "kv_aware", reads_events=True),
)
