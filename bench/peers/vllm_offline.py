#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""vLLM offline, on made-up weights of a model's shape: decode, prefill, drafts at a stated acceptance, canvases. What `weft bench model`
and `weft bench drafts --accept` measure of weft, measured of an installed vLLM (0.33) on the same card; one JSON line for each figure.

  bench/peers/vllm_offline.py DIR [--quantization fp8_per_tensor] [--sequences 1,8,32,128] [--prefill 1,8]
  bench/peers/vllm_offline.py DIR --drafter DIR --rates 0.8,0.64,0.512 --sequences 1,8,32      chance that the first 1, 2, 3 drafts are all accepted
  bench/peers/vllm_offline.py DIR --engine '{"additional_config": {"gdn_prefill_backend": "triton"}}'      more options of its engine
  bench/peers/vllm_offline.py DIR --canvas 256 --sequences 1,4,8,16,32                         a model that writes by diffusion

DIR has the model's config.json (and generation_config.json); no weights are needed. Weights are uniform within 0.03, embeddings normal
with 0.02, routers normal with 1, so that hidden states keep their size and tokens go to different experts; norms and scales are 1.

What is not floating point keeps vLLM's own made-up values: random codes and one scale for MXFP4. Where config.json says 4 bits in
groups (compressed-tensors), which vLLM leaves as memory happens to be, codes are random and each scale gives weights as wide as those
above. bench/peers/vllm_serve.py is its server on the same weights.

A rate counts tokens while all sequences write: from when each has 16 until the first has all but 16, so that neither prompts nor
sequences that end are in it. `distinct` is the share of different tokens in a step: sequences that all write the same token go to the
same experts, and a temperature keeps them apart. A canvas step is the difference between canvases of 40 and of 8 steps. A start takes minutes: with
--gate NAME the program writes NAME.ready when it has started and measures once NAME.go is there, and while there is NAME.hold it has
imported what it needs and does not start, so that several can start at once and each is measured alone.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time

FILLED = [0]  # how many tensors got values here: in the process that has the model
EDGE = 16     # tokens at either end of an answer that no rate counts
SCALE = 0.03 / 8  # of codes from -8 to 7


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", metavar="DIR")
    a.add_argument("--name", default="", help="said in every line")
    a.add_argument("--quantization", default="none", help="vLLM's name of it, fp8_per_tensor for instance [none: as config.json says]")
    a.add_argument("--sequences", default="1,8,32", help="how many at once, one figure each [1,8,32]")
    a.add_argument("--prompt", type=int, default=512, help="tokens of a prompt [512]")
    a.add_argument("--answer", type=int, default=256, help="tokens of an answer [256]")
    a.add_argument("--prefill", default="", help="prompts of 2048 at once, one figure each [none]")
    a.add_argument("--temperatures", default="0", help="each number of sequences is decoded at each of them [0]")
    a.add_argument("--drafter", metavar="DIR", help="the drafter's config.json (method mtp)")
    a.add_argument("--rates", default="", help="with --drafter: as many numbers as drafts, what vLLM accepts of them")
    a.add_argument("--canvas", type=int, default=0, help="positions of a canvas: measures its steps instead")
    a.add_argument("--kv-gib", type=float, default=16, help="memory for keys and values [16]")
    a.add_argument("--share", type=float, default=0.24, help="share of the card that must be free at the start [0.24]")
    a.add_argument("--graphs", default="", help="sizes of captured graphs [vLLM's own]")
    a.add_argument("--attention", help="attention backend [vLLM's own]")
    a.add_argument("--engine", default="{}", metavar="JSON", type=json.loads, help="more options of the engine")
    a.add_argument("--repeat", type=int, default=3)
    a.add_argument("--limit", type=float, default=600, help="seconds of measuring after which no figure is begun [600]")
    a.add_argument("--gate", metavar="NAME")
    o = a.parse_args()
    o.sequences, o.prefill, o.graphs = ([int(n) for n in v.split(",") if n] for v in (o.sequences, o.prefill, o.graphs))
    o.temperatures = [float(n) for n in o.temperatures.split(",")]
    o.rates = [float(n) for n in o.rates.split(",") if n]
    if bool(o.drafter) != bool(o.rates) or (o.canvas and o.drafter) or o.answer <= 3 * EDGE or o.repeat < 1:
        a.error(f"--drafter and --rates belong together and not to --canvas; --answer is more than {3 * EDGE}, --repeat at least 1")
    return o


def make_up_weights():
    """Puts values of our own in place of vLLM's, which are so small that states vanish and routers tie."""
    import torch
    from vllm.model_executor.model_loader import dummy_loader
    theirs, tensors_of, layer = dummy_loader.initialize_single_dummy_weight, dummy_loader.get_layer_tensors, [None]

    def remember(of):
        layer[0] = type(of).__name__
        return tensors_of(of)

    def fill(tensor, **more):
        packed = "packed" in more.get("name", "")
        if tensor.device.type == "meta" or not packed and (not torch.is_floating_point(tensor) or torch.finfo(tensor.dtype).bits < 16):
            return theirs(tensor, **more)
        FILLED[0] += 1
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed(FILLED[0])
        with torch.no_grad():
            if packed:
                tensor.view(torch.uint8).random_(0, 256, generator=generator)
            elif tensor.dim() <= 1 or tensor.numel() == 1:
                tensor.fill_(1.0)
            elif "scale" in more.get("name", ""):
                tensor.fill_(SCALE)
            elif layer[0] == "GateLinear":
                tensor.normal_(0.0, 1.0, generator=generator)
            elif layer[0] in ("VocabParallelEmbedding", "ParallelLMHead"):
                tensor.normal_(0.0, 0.02, generator=generator)
            else:
                tensor.uniform_(-0.03, 0.03, generator=generator)

    dummy_loader.initialize_single_dummy_weight, dummy_loader.get_layer_tensors = fill, remember


def engine_options(o):
    longest = max([o.prompt + (2 * o.canvas or o.answer)] + [2048 + 64] * bool(o.prefill))
    k = dict(model=o.model, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=0, disable_log_stats=True,
             max_model_len=max(4096, longest), max_num_batched_tokens=16384, max_num_seqs=max([32, *o.sequences]),
             gpu_memory_utilization=o.share, kv_cache_memory_bytes=int(o.kv_gib * 2**30))
    if o.quantization != "none":
        k["quantization"] = o.quantization
    if o.attention:
        k["attention_backend"] = o.attention
    if o.graphs:
        k["compilation_config"] = {"cudagraph_capture_sizes": o.graphs}
    if o.drafter:
        k["speculative_config"] = dict(method="mtp", model=o.drafter, num_speculative_tokens=len(o.rates),
                                       rejection_sample_method="synthetic", synthetic_acceptance_rates=o.rates)
    if o.canvas:
        k.update(limit_mm_per_prompt={"image": 0, "video": 0}, diffusion_config=dict(canvas_length=o.canvas, max_denoising_steps=16))
    return k | o.engine


def vocabulary_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    return (c.get("text_config") or c)["vocab_size"]


def facts_of(worker):
    """What the process with the model says of it."""
    import torch
    c, layers = worker.model_runner.vllm_config, {}
    for layer in c.compilation_config.static_forward_context.values():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        what = getattr(getattr(layer, "attn_backend", None), "__name__", None) or type(getattr(kernel, "fused_experts", None)).__name__
        layers[f"{type(layer).__name__} {what}"] = layers.get(f"{type(layer).__name__} {what}", 0) + 1
    fill = sys.modules["vllm.model_executor.model_loader.dummy_loader"].initialize_single_dummy_weight
    return dict(filled=getattr(fill, "__globals__", {}).get("FILLED", [0])[0], runner=type(worker.model_runner).__module__, graph_mode=str(c.compilation_config.cudagraph_mode),
                flash_attention=c.attention_config.flash_attn_version, layers=layers,
                free_gib=round(torch.cuda.mem_get_info()[0] / 2**30, 1))


def set_steps(worker, n):
    worker.model_runner.model_state.diffusion_states.max_denoising_steps = n


class Peer:
    def __init__(self, o):
        self.o, self.began = o, time.monotonic()
        self.vocabulary = vocabulary_of(o.model)
        self.random = random.Random(int.from_bytes(os.urandom(4), "little"))

    def say(self, **more):
        print("JSON " + json.dumps(dict(name=self.o.name, at_s=round(time.monotonic() - self.began, 1), **more)), flush=True)

    def wait_while(self, wanted, ending):
        while self.o.gate and os.path.exists(f"{self.o.gate}.{ending}") == wanted:
            time.sleep(0.2)

    def start(self):
        import vllm
        import vllm.v1.engine.core  # what a start imports first; a model's own module might open the card, which is the start's
        make_up_weights()
        self.params, self.delta = vllm.SamplingParams, vllm.sampling_params.RequestOutputKind.DELTA
        self.say(test="import", vllm=vllm.__version__)
        self.wait_while(True, "hold")
        t = time.monotonic()
        self.llm = vllm.LLM(**engine_options(self.o))
        o, facts = self.o, self.llm.collective_rpc(facts_of)[0]
        if not facts["filled"]:
            raise SystemExit("vllm_offline: its weights were not made up here: this vLLM fills them in another way")
        self.say(test="start", s=round(time.monotonic() - t, 1), quantization=o.quantization, rates=o.rates, graphs=o.graphs,
                 attention=o.attention, **facts)
        if o.gate:
            open(o.gate + ".ready", "w").close()
            self.wait_while(False, "go")
            self.began = time.monotonic()

    def prompts(self, n, length):
        return [dict(prompt_token_ids=[self.random.randrange(1000, self.vocabulary - 1000) for _ in range(length)]) for _ in range(n)]

    def generate(self, n, length, answer, temperature):
        prompts = self.prompts(n, length)
        t = time.perf_counter()
        self.llm.generate(prompts, self.params(temperature=temperature, max_tokens=answer, ignore_eos=True, detokenize=False), use_tqdm=False)
        return time.perf_counter() - t

    def window(self, n, answer, temperature):
        """Tokens a second, tokens of a sequence's step, seconds and the share of different tokens while all n sequences write."""
        engine, have, outputs, different, begin, end = self.llm.llm_engine, {}, 0, 0, None, None
        params = self.params(temperature=temperature, max_tokens=answer, ignore_eos=True, detokenize=False, output_kind=self.delta)
        for i, prompt in enumerate(self.prompts(n, self.o.prompt)):
            engine.add_request(f"{n}.{i}.{self.random.random()}", prompt, params)
        while engine.has_unfinished_requests():
            of_step = engine.step()
            for output in of_step:
                have[output.request_id] = have.get(output.request_id, 0) + len(output.outputs[0].token_ids)
            outputs += len(of_step)
            different += len({output.outputs[0].token_ids[0] for output in of_step if output.outputs[0].token_ids})
            now, tokens = time.perf_counter(), sum(have.values())
            if begin is None and len(have) == n and min(have.values()) >= EDGE:
                begin, outputs, different = (now, tokens), 0, 0
            elif begin and end is None and max(have.values()) >= answer - EDGE:
                seconds, written = now - begin[0], tokens - begin[1]
                end = (written / seconds, written / max(1, outputs), seconds, different / max(1, outputs))
        return end

    def decode(self, n, temperature):
        self.window(n, 4 * EDGE, temperature)
        runs = [self.window(n, self.o.answer, temperature) for _ in range(self.o.repeat)]
        rate, per_step = statistics.median(r[0] for r in runs), statistics.mean(r[1] for r in runs)
        self.say(test="decode", sequences=n, temperature=temperature, prompt=self.o.prompt, answer=self.o.answer, tok_s=round(rate, 1), tokens_per_step=round(per_step, 3),
                 ms_per_step=round(1000 * n * per_step / rate, 3), all=[round(r[0], 1) for r in runs], seconds=[round(r[2], 3) for r in runs],
                 distinct=round(statistics.mean(r[3] for r in runs), 3))

    def prefill(self, n):
        self.generate(n, 2048, 1, 0.0)
        runs = [self.generate(n, 2048, 1, 0.0) for _ in range(max(5, self.o.repeat))]
        s = statistics.median(runs)
        self.say(test="prefill", prompts=n, prompt=2048, tok_s=round(n * 2048 / s, 1), s=round(s, 5), all=[round(r, 5) for r in runs])

    def canvases(self, n):
        took = {}
        for steps in (8, 40):
            self.llm.collective_rpc(set_steps, args=(steps,))
            self.generate(n, self.o.prompt, self.o.canvas, 1.0)
            took[steps] = [self.generate(n, self.o.prompt, self.o.canvas, 1.0) for _ in range(self.o.repeat)]
        few, many = statistics.median(took[8]), statistics.median(took[40])
        self.say(test="canvas step", canvases=n, prompt=self.o.prompt, ms_per_step=round(1000 * (many - few) / 32, 3),
                 all_8=[round(r, 4) for r in took[8]], all_40=[round(r, 4) for r in took[40]])


def main():
    o = options()
    os.environ |= dict(VLLM_ALLOW_INSECURE_SERIALIZATION="1", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    peer = Peer(o)
    peer.start()
    first, *others = o.temperatures
    works = [(peer.canvases, n) for n in o.sequences] if o.canvas else [(peer.decode, n, first) for n in o.sequences]
    works += [(peer.prefill, n) for n in o.prefill] + [(peer.decode, n, t) for t in others for n in o.sequences if not o.canvas]
    failed = 0
    for work, n, *more in works:
        if time.monotonic() - peer.began > o.limit:
            peer.say(test=work.__name__, sequences=n, left_out="the time was over")
            continue
        try:
            work(n, *more)
        except Exception as fault:  # the next figures may still come
            failed = 1
            peer.say(test=work.__name__, sequences=n, failed_because=repr(fault)[-400:])
    peer.say(test="end")
    return failed


if __name__ == "__mp_main__":  # a process that vLLM starts anew reads this file as that
    make_up_weights()
if __name__ == "__main__":
    sys.exit(main())
