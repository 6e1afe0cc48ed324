"""The sizes that the tiny models of cases.py share, family by family."""

SIZES = dict(
    vocab_size=256,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
)
DENSE = dict(SIZES, intermediate_size=64)
EXPERTS = dict(
    SIZES, intermediate_size=64, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)

LINEAR = dict(
    EXPERTS,
    num_hidden_layers=4,
    head_dim=16,
    shared_expert_intermediate_size=40,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)

GEMMA4 = dict(
    SIZES,
    num_hidden_layers=4,
    layer_types=["sliding_attention", "full_attention"] * 2,
    intermediate_size=64,
    head_dim=16,
    global_head_dim=32,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    hidden_size_per_layer_input=0,
    sliding_window=100,
    final_logit_softcapping=5.0,
    enable_moe_block=True,
    num_experts=8,
    top_k_experts=3,
    moe_intermediate_size=24,
)

MINIMAX = dict(
    SIZES,
    num_hidden_layers=4,
    head_dim=16,
    intermediate_size=24,
    num_local_experts=8,
    num_experts_per_tok=2,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    full_attn_alpha_factor=2.5,
    linear_attn_alpha_factor=2.5,
    mlp_alpha_factor=2.5,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
)

# In its own training the router draws; the gradients that are compared are those of the best ones.
PHIMOE = dict(
    SIZES,
    intermediate_size=24,
    num_local_experts=8,
    num_experts_per_tok=2,
    attention_bias=True,
    lm_head_bias=True,
    router_noise=False,
)

HUNYUAN = dict(SIZES, intermediate_size=24, num_experts=8, moe_topk=3, head_dim=16)
LATENT = dict(
    SIZES,
    num_hidden_layers=3,
    num_key_value_heads=4,
    intermediate_size=64,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    n_shared_experts=2,
    first_k_dense_replace=1,
)
LATENT_YARN = dict(YARN, mscale=0.707, mscale_all_dim=0.707)
YARN_OF_ONE = dict(YARN, mscale=1.0, mscale_all_dim=1.0)
GROWN_YARN = dict(
    YARN,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.3,
)
# Heads of 32, of which a quarter turns.
MISTRAL4 = dict(LATENT, qk_nope_head_dim=24, pad_token_id=None, rope_parameters=GROWN_YARN)
AXK1 = dict(LATENT, q_lora_rank=24, n_group=2, topk_group=1, pad_token_id=None)
# As many tokens are chosen as the texts have that are scored; then fewer, but no fewer than those of
# the step that shows gradients.
INDEXED = dict(LATENT, q_lora_rank=24, index_n_heads=4, index_head_dim=16, index_topk=512)
AXK2 = dict(INDEXED, gated_norm_rank=8)
# Two layers of its are four of ours.
LONGCAT = dict(
    {key: SIZES[key] for key in SIZES if key not in ("num_hidden_layers", "intermediate_size")},
    num_layers=2,
    num_key_value_heads=4,
    ffn_hidden_size=64,
    expert_ffn_hidden_size=24,
    q_lora_rank=24,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    zero_expert_num=4,
    moe_topk=3,
    routed_scaling_factor=2.5,
)
# Of few heads all may miss a key, so that many have the same score. With 72 the keys at the border
# are 6e-6 of the largest score apart at least, and f32 decides as f64 does.
SPARSE = dict(INDEXED, index_n_heads=16, index_topk=72)
HY4 = dict(
    {key: size for key, size in INDEXED.items() if key != "first_k_dense_replace"},
    indexer_types=["full", "shared", "full"],
    n_shared_experts=1,
    pad_token_id=None,
    bos_token_id=1,
    eos_token_id=2,
)
DEEPSEEK_V4 = dict(
    vocab_size=SIZES["vocab_size"],
    hidden_size=48,
    max_position_embeddings=SIZES["max_position_embeddings"],
    num_hidden_layers=4,
    num_attention_heads=4,
    head_dim=16,
    partial_rotary_factor=0.5,
    q_lora_rank=24,
    o_groups=2,
    o_lora_rank=12,
    sliding_window=20,
    layer_types=[
        "sliding_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "compressed_sparse_attention",
    ],
    compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    index_n_heads=16,  # of few heads no score is above 0 at times, and then any key is as good
    index_head_dim=12,
    index_topk=9,  # of 8, the eighth and the ninth of one token are 2e-6 apart
    mlp_layer_types=["hash_moe", "moe", "hash_moe", "moe"],
    moe_intermediate_size=24,
    n_routed_experts=8,
    num_experts_per_tok=3,
    hc_mult=2,
    hc_sinkhorn_iters=5,
    num_nextn_predict_layers=0,
    bos_token_id=1,
    eos_token_id=2,
)
YARN_OF_V4 = {
    "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "compress": {
        "rope_type": "yarn",
        "rope_theta": 160000.0,
        "partial_rotary_factor": 0.5,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.0,
    },
}
GLM_LATENT = {key: size for key, size in LATENT.items() if key != "first_k_dense_replace"}
LLAMA_LIKE = dict(SIZES, num_hidden_layers=3, intermediate_size=64, head_dim=16)
SIGMOID = dict(
    LLAMA_LIKE,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    n_shared_experts=2,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)
WINDOWED = dict(
    LLAMA_LIKE,
    num_hidden_layers=5,
    sliding_window=100,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    num_shared_experts=2,
    pad_token_id=None,
)
# Of a head of 24 a third turns, and values have half of it; layers with a window have twice the
# key/value heads.
MIMO = dict(
    LLAMA_LIKE,
    num_hidden_layers=4,
    num_key_value_heads=1,
    head_dim=24,
    v_head_dim=12,
    sliding_window=100,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
)
LAGUNA = dict(
    LLAMA_LIKE,
    num_hidden_layers=4,
    num_attention_heads_per_layer=[4, 6, 6, 4],
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    sliding_window=100,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=40,
    moe_routed_scaling_factor=2.5,
)
MINIMAX_M3 = dict(
    LLAMA_LIKE,
    rotary_dim=8,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
    dense_intermediate_size=64,
    intermediate_size=24,
    shared_intermediate_size=24,
    num_local_experts=8,
    num_experts_per_tok=3,
    mlp_layer_types=["dense", "sparse", "sparse"],
    layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
    index_n_heads=2,
    index_head_dim=16,
    index_block_size=64,
    index_topk_blocks=8,
)
FLINT = dict(
    EXPERTS,
    num_hidden_layers=4,
    head_dim=16,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    mlp_only_layers=[0],
    sliding_window=100,
    shared_expert_intermediate_size=40,
)
AFMOE = dict(WINDOWED, num_dense_layers=1, route_scale=2.5, mup_enabled=True)
KIMI = dict(
    SIZES,
    num_hidden_layers=4,
    num_key_value_heads=4,
    intermediate_size=64,
    kv_lora_rank=32,
    q_lora_rank=None,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    num_local_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    n_shared_experts=2,
    n_group=2,
    topk_group=1,
    linear_head_dim=32,
    linear_num_heads=4,
    layer_types=["linear_attention", "full_attention"] * 2,
    pad_token_id=None,
)
# Decays that leave a part of what was before at every token: f32 and f64 differ where all of it is
# forgotten.
LING3 = {
    key: size
    for key, size in KIMI.items()
    if key not in ("q_lora_rank", "layer_types") and not key.startswith("linear_")
} | dict(
    first_k_dense_replace=1,
    head_dim=16,
    layer_group_size=2,
    kda_lower_bound=-1.5,
    num_mtp_layers=0,
)
LFM3 = dict(
    DENSE,
    num_hidden_layers=5,
    head_dim=16,
    sliding_window=100,
    layer_types=["conv", "full_attention", "conv", "sliding_attention", "full_attention"],
    pad_token_id=None,
)
LOCAL_EXPERTS = dict(SIZES, intermediate_size=24, num_local_experts=8, num_experts_per_tok=3)
GRANITE = dict(
    LOCAL_EXPERTS,
    embedding_multiplier=12.0,
    residual_multiplier=0.22,
    attention_multiplier=0.2,
    logits_scaling=6.0,
)
COHERE_EXPERTS = dict(
    SIZES,
    num_hidden_layers=6,
    intermediate_size=24,
    head_dim=16,
    prefix_dense_intermediate_size=64,
    num_experts=8,
    num_experts_per_tok=3,
    num_shared_experts=2,
    sliding_window=100,
    sliding_window_pattern=2,
    logit_scale=0.25,
    pad_token_id=None,
)
KOLIBRI = dict(
    SIZES,
    num_hidden_layers=5,
    head_dim=16,
    sliding_window=100,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=40,
)
DBRX = dict(
    vocab_size=256,
    d_model=48,
    n_layers=2,
    n_heads=4,
    max_seq_len=1024,
    attn_config=dict(kv_n_heads=2, clip_qkv=1.0, rope_theta=10000.0),
    ffn_config=dict(ffn_hidden_size=24, moe_num_experts=8, moe_top_k=3),
    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
)
# Chunks are whole blocks of the cache, and queries grow within the step that shows gradients.
LLAMA4 = dict(
    LOCAL_EXPERTS,
    num_hidden_layers=4,
    intermediate_size_mlp=64,
    head_dim=16,
    num_experts_per_tok=1,
    attention_chunk_size=128,
    floor_scale=24,
    attn_scale=0.3,
    no_rope_layer_interval=2,
)
MULTIPLIERS = {key: size for key, size in GRANITE.items() if key not in LOCAL_EXPERTS}
DENSE_GRANITE = dict(DENSE, **MULTIPLIERS)
GRANITE_SWA = dict(GRANITE, num_hidden_layers=4, sliding_window=100)
GRANITE_HYBRID = dict(
    GRANITE,
    num_hidden_layers=4,
    layer_types=["mamba", "attention"] * 2,
    shared_intermediate_size=40,
    mamba_n_heads=8,
    mamba_n_groups=2,
    mamba_d_state=16,
)
BAMBA = dict(
    DENSE,
    num_hidden_layers=4,
    attn_layer_indices=[1, 3],
    mamba_n_heads=8,
    mamba_n_groups=2,
    mamba_d_state=16,
    pad_token_id=None,
)
JAMBA = dict(
    DENSE,
    num_hidden_layers=4,
    attn_layer_period=4,
    attn_layer_offset=2,
    expert_layer_period=2,
    expert_layer_offset=1,
    num_experts=8,
    num_experts_per_tok=3,
    mamba_dt_rank=24,
    pad_token_id=None,
)
# What is multiplied before a product that is saved by another key is multiplied exactly.
FALCON_H1 = dict(
    DENSE,
    num_hidden_layers=3,
    head_dim=16,
    mamba_d_ssm=64,
    mamba_n_heads=8,
    mamba_n_groups=2,
    mamba_d_state=16,
    pad_token_id=None,
    embedding_multiplier=1.5,
    lm_head_multiplier=0.5,
    attention_in_multiplier=0.5,
    key_multiplier=2.0,
    attention_out_multiplier=0.75,
    ssm_in_multiplier=2.0,
    ssm_multipliers=[0.5, 0.25, 0.75, 1.5, 0.5],
    ssm_out_multiplier=0.5,
    mlp_multipliers=[0.5, 1.25],
)
# With keys of 16 nearly all of one gradient of A_log cancels, and what is left is rounding.
OLMO_HYBRID = dict(
    DENSE,
    num_hidden_layers=4,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=20,
    linear_value_head_dim=24,
    pad_token_id=None,
    rope_parameters=dict(rope_type="default", rope_theta=None),
)
# A letter for each layer. Steps are drawn near 1: transformers does not let them go below
# `time_step_min` (0.001), which the makers' code does.
NEMOTRON_H = {key: size for key, size in DENSE.items() if key != "num_hidden_layers"} | dict(
    hybrid_override_pattern="ME*ME",
    head_dim=16,
    mamba_num_heads=8,
    mamba_head_dim=8,
    n_groups=2,
    ssm_state_size=16,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    moe_shared_expert_intermediate_size=40,
    routed_scaling_factor=2.5,
    time_step_floor=1.0,
    use_mamba_kernels=False,
)
