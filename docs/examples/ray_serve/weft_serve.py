# SPDX-License-Identifier: MIT
"""weft behind Ray Serve: each replica of the deployment is a `weft serve` of its own, on a unix socket that only this replica reaches.

    WEFT_MODEL=a.gguf serve run weft_serve:app        # then ask http://127.0.0.1:8000/v1/chat/completions

Ray starts and ends replicas by how many requests run and wait in them (scale_by_queue), sends a request to one in which none waits
(RoomFirst), and replaces one whose /health is not 200: its device broke, it ended, or an operator sent it SIGTERM. What runs on a replica
that leaves is answered to its end. Needs ray[serve] and a `weft` in PATH."""
import asyncio
import ctypes
import json
import math
import os
import re
import signal
import subprocess
import tempfile
import threading

import aiohttp
import ray
from ray import serve
from ray.serve.config import AutoscalingPolicy, RequestRouterConfig
from ray.serve.request_router import FIFOMixin, RequestRouter
from starlette.responses import JSONResponse, StreamingResponse

LOAD = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting", "room_used": "vllm:kv_cache_usage_perc"}
AT_ONCE = 16          # requests of a replica, running and waiting, that Ray aims at
STATS_S = 1.0         # how often Ray asks a replica for its health and its load
LEAVING_S = 600       # how long a replica that leaves may take for what runs on it
OWN_HEADERS = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length", "accept-encoding",
               "date", "server"}


class RoomFirst(FIFOMixin, RequestRouter):
    """Replicas in which no request waits come before the others. Of equals Ray takes the one that is asked less."""

    def initialize_state(self):
        pass

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        full = [r for r in candidate_replicas if r.routing_stats.get("waiting")]
        return [rank for rank in ([r for r in candidate_replicas if r not in full], full) if rank]


def scale_by_queue(ctx):
    """So many replicas that each has AT_ONCE requests, of those that run and wait in replicas and those that wait for one."""
    last = [series[-1].value for name in ("running", "waiting") for series in (ctx.raw_metrics or {}).get(name, {}).values() if series]
    return math.ceil((sum(last) + (ctx.total_queued_requests or 0)) / AT_ONCE), {}


def end_with_replica():
    """In the child: the kernel ends it when the replica is gone, however that went."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@serve.deployment(
    max_ongoing_requests=4 * AT_ONCE, health_check_period_s=STATS_S, graceful_shutdown_wait_loop_s=STATS_S, graceful_shutdown_timeout_s=LEAVING_S,
    request_router_config=RequestRouterConfig(request_router_class=RoomFirst, request_routing_stats_period_s=STATS_S),
    autoscaling_config=dict(min_replicas=1, max_replicas=4, upscale_delay_s=2, downscale_delay_s=60, metrics_interval_s=STATS_S,
                            look_back_period_s=5, policy=AutoscalingPolicy(policy_function=scale_by_queue)))
class Weft:
    """model: a GGUF file. options: further ones of `weft serve`. rows: of a step. events: tell routers what is cached, over ZeroMQ.
    key: that of the tenant `metrics`, where options have --api-keys."""

    async def __init__(self, model, options=(), weft="weft", rows=512, events=False, key=None):
        self.folder = tempfile.TemporaryDirectory(prefix="weft-replica-")
        path = os.path.join(self.folder.name, "http")
        words = [weft, "serve", "-m", model, "--host", f"unix:{path}", "--socket-mode", "600", "--no-page", "--rows", str(rows),
                 "--lame-duck-seconds", str(LEAVING_S), "--drain-seconds", str(LEAVING_S), *options]
        if events:
            place = f"tcp://{ray.util.get_node_ip_address()}:*"
            words += ["--kv-events", place, "--kv-events-replay", place]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=end_with_replica)
        self.own = {"Authorization": f"Bearer {key}"} if key else {}
        self.weft = aiohttp.ClientSession("http://weft", connector=aiohttp.UnixConnector(path, limit=0), timeout=aiohttp.ClientTimeout(total=None))
        while not os.path.exists(path) or await self.look("/health") is None:
            if self.process.poll() is not None:
                raise RuntimeError(f"weft ended with {self.process.returncode}: its own words stand above")
            await asyncio.sleep(0.05)
        self.told, self.leaves = {}, False
        threading.Thread(target=self.end_with_server, daemon=True).start()
        if events:
            source, about = [json.loads(await self.look(name)) for name in ("/kv_event_sources", "/server_info")]
            self.told["kv_event_metadata"] = {
                "endpoint": source["0"]["endpoint"], "replay_endpoint": source["0"]["replay_endpoint"], "dp_rank": 0,
                "block_size": about["block_size"], "max_num_batched_tokens": rows}

    def end_with_server(self):
        """A replica without a server is none: Ray asks others at once, and starts another one."""
        self.process.wait()
        if not self.leaves:
            os._exit(1)

    async def look(self, path):
        """What the server says of itself; None: nothing, or that it is not well."""
        try:
            async with self.weft.get(path, headers=self.own, timeout=aiohttp.ClientTimeout(total=20)) as answer:
                return await answer.text() if answer.status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return None

    # ---- what Ray asks ----

    async def check_health(self):
        if await self.look("/health") is None:
            raise RuntimeError("weft leaves, or is not well")

    async def record_autoscaling_stats(self):
        text = await self.look("/metrics") or ""
        return {name: sum(float(n) for n in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.M)) for name, metric in LOAD.items()}

    async def record_routing_stats(self):
        return {**await self.record_autoscaling_stats(), **self.told}

    async def __del__(self):
        """Ray has waited for all requests: the first signal says that the server leaves, the second one ends it."""
        self.leaves = True
        while self.process.poll() is None:
            self.process.terminate()
            await asyncio.sleep(0.2)
        await self.weft.close()

    # ---- what clients ask ----

    async def __call__(self, request):
        path = request.url.path
        if not path.startswith("/v1/"):  # the rest is the operator's
            return JSONResponse({"error": {"message": f"{path} is not asked for through Ray", "type": "not_found"}}, 404)
        headers = [(k, v) for k, v in request.headers.items() if k not in OWN_HEADERS]
        place = f"{path}?{request.url.query}" if request.url.query else path
        try:
            answer = await self.weft.request(request.method, place, data=await request.body(), headers=headers)
        except aiohttp.ClientError:
            return JSONResponse({"error": {"message": "this replica is gone: ask again", "type": "unavailable"}}, 503)

        async def pieces():
            async with answer:  # a client that leaves closes it, and the server stops to compute
                async for piece in answer.content.iter_any():
                    yield piece
        return StreamingResponse(pieces(), answer.status, {k: v for k, v in answer.headers.items() if k.lower() not in OWN_HEADERS})


if "WEFT_MODEL" in os.environ:
    app = Weft.bind(os.environ["WEFT_MODEL"], os.environ.get("WEFT_OPTIONS", "").split())
