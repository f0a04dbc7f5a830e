# SPDX-License-Identifier: MIT
"""The table of tiny models: every row turns a different set of switches of the two architectures.

Lengths: hidden 32..64, vocabulary 96..128, so that all files together stay small. `pattern` holds one
letter per layer, s = sliding, f = full; the last layer is always full.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tiny:
    name: str
    pattern: str
    arch: str = "gemma4"
    seed: int = 1
    vocab: int = 128
    hidden: int = 32
    dense: int = 64
    experts: int = 4          # 0: dense layers, no router
    top_k: int = 2
    moe: int = 32
    heads: int = 4
    kv_local: int = 2
    kv_global: int = 1
    hd_local: int = 16
    hd_global: int = 32
    window: int = 8
    canvas: int = 0
    softcap: float = 30.0
    eps: float = 1e-6
    moe_gain: float = 1.0     # size of the experts' output: with a large eps, the norm after them cannot
                              # hide how the chosen weights are normalised
    theta_local: float = 1e4
    theta_global: float = 1e6
    k_eq_v: bool = True       # global layers have no attn_v
    tied: bool = True         # False: the file has output.weight
    expert_scale: bool = True  # False: no ffn_down_exps.scale in the file, all ones in the model
    fused: bool = True        # ffn_gate_up_exps, else ffn_gate_exps + ffn_up_exps
    scalar_pattern: bool = False   # sliding_window_pattern as one number
    scalar_kv: bool = False        # head_count_kv as one number
    eb_keys: dict = field(default_factory=dict)
    sc_norm_name: str = "self_cond_pre_norm.weight"
    twin: bool = False        # tests also compute the gemma4 file of the same tensors
    per_layer: int = 0        # width of the embeddings per layer
    shared: int = 0           # last layers that read the keys of an earlier one; their MLP is twice as wide
    spare_keys: bool = False  # the file has key and value matrices of those layers all the same
    bare: bool = False        # the file leaves out every key and tensor that has a default
    prompts: tuple = ()       # lengths; without any the usual ones

    @property
    def layers(self):
        return len(self.pattern)

    @property
    def diffusion(self):
        return self.canvas > 0


AR = [
    Tiny("ar-base", "sfsf", seed=101, dense=48, moe=16),
    Tiny("ar-fused-w4", "ssfsf", seed=102, hidden=40, dense=32, moe=8, experts=8, top_k=3, heads=6,
         kv_local=3, kv_global=2, hd_local=8, hd_global=16, window=4, vocab=96,
         eps=0.02, moe_gain=0.15),
    Tiny("ar-split-scalar", "ssfssf", seed=103, dense=32, moe=16, kv_local=2, kv_global=2, hd_local=8,
         hd_global=16, fused=False, scalar_pattern=True, scalar_kv=True),
    Tiny("ar-w16", "sfsf", seed=104, hidden=48, dense=32, moe=16, hd_local=24, hd_global=32, heads=2,
         kv_local=2, kv_global=1, window=16, expert_scale=False, fused=False, vocab=112),
    Tiny("ar-dense", "sfssf", seed=105, experts=0, dense=48, hd_local=16, hd_global=24),
    Tiny("ar-dense-v", "sfsf", seed=106, experts=0, dense=48, kv_local=2, kv_global=2, hd_local=8, hd_global=16,
         window=16, k_eq_v=False, scalar_kv=True, softcap=20.0),
    Tiny("ar-moe-v", "sfsf", seed=107, kv_local=1, kv_global=1, hd_local=16, hd_global=8, k_eq_v=False,
         dense=48, moe=16, top_k=1, window=4, tied=False, fused=False, eps=1e-5),
    # The shapes of E2B and E4B, of 12B (16 queries to a key head) and of 31B (32 heads).
    Tiny("ar-e2b", "ssssfsf", seed=109, hidden=24, experts=0, dense=16, heads=4, kv_local=1, kv_global=1,
         k_eq_v=False, per_layer=16, shared=2, spare_keys=True, hd_local=16, hd_global=32, vocab=96),
    Tiny("ar-e4b", "ssfssfsssf", seed=110, hidden=32, experts=0, dense=32, heads=4, kv_local=2, kv_global=2, k_eq_v=False,
         per_layer=8, shared=4, window=4, hd_local=8, hd_global=16, vocab=96, eps=0.02),
    Tiny("ar-shared", "sfsf", seed=111, hidden=24, experts=0, dense=16, kv_local=2, kv_global=1, shared=2, per_layer=8,
         hd_local=16, hd_global=16, window=16, vocab=96, eps=0.02),
    Tiny("ar-per-layer", "sfsf", seed=112, hidden=24, experts=0, dense=16, kv_local=2, kv_global=1, per_layer=24, hd_local=8,
         hd_global=16, vocab=96, bare=True, softcap=None),
    Tiny("ar-12b", "ssf", seed=113, hidden=16, experts=0, dense=16, heads=16, kv_local=8, kv_global=1, hd_local=16, hd_global=32,
         vocab=96),
    Tiny("ar-31b", "sfsf", seed=114, hidden=16, experts=0, dense=16, heads=32, kv_local=16, kv_global=4, hd_local=8,
         hd_global=16, vocab=96),
]

EB = {"eb_max_steps": 48, "eb_t_min": 0.4, "eb_t_max": 0.8, "eb_entropy_bound": 0.1,
      "eb_stability_threshold": 1, "eb_confidence_threshold": 0.005}
EB_OTHER = {"eb_max_steps": 6, "eb_t_min": 0.5, "eb_t_max": 0.9, "eb_entropy_bound": 1.5,
            "eb_stability_threshold": 2, "eb_confidence_threshold": 0.25}

DG = [
    Tiny("dg-base", "sfsf", "diffusion-gemma", seed=201, canvas=8, dense=48, moe=16, eb_keys=EB, twin=True),
    Tiny("dg-fused-c4", "ssfsf", "diffusion-gemma", seed=202, hidden=40, dense=32, moe=8, experts=8,
         top_k=3, heads=6, kv_local=3, kv_global=2, hd_local=8, hd_global=16, window=4, canvas=4,
         vocab=96, twin=True, eps=0.02, moe_gain=0.15),
    Tiny("dg-underscore", "sfsf", "diffusion_gemma", seed=203, window=16, canvas=16, moe=16, fused=False,
         hd_local=24, hd_global=32, heads=2, eb_keys=EB_OTHER, vocab=112, prompts=(1, 16, 17, 35)),
    Tiny("dg-top1", "sfsf", "diffusion-gemma", seed=205, hidden=48, dense=32, moe=8, top_k=1, heads=2,
         kv_local=1, kv_global=1, hd_local=24, hd_global=16, window=16, canvas=5, eb_keys=EB_OTHER, prompts=(1, 3, 15, 16, 17)),
    Tiny("dg-c16-w4", "sfssf", "diffusion-gemma", seed=207, dense=32, moe=8, window=4, canvas=16, hd_local=8,
         hd_global=32, fused=False, vocab=96, prompts=(1, 3, 4, 5)),
    Tiny("dg-deep", "sfsssf", "diffusion-gemma", seed=208, dense=32, moe=8, experts=6, top_k=4,
         heads=4, kv_local=4, kv_global=2, hd_local=8, hd_global=16, canvas=10, vocab=96,
         eps=0.02, moe_gain=0.15, theta_local=1000.0, theta_global=50000.0,
         sc_norm_name="self_cond_norm.weight"),
]

ALL = AR + DG
