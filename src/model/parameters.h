// What the parameters of a model are: the parts they belong to, their kinds, and the one list of
// them. Building, counting, estimating memory, the names in files, quantisation, tuning,
// checkpoints and conversions walk this list or ask a parameter what it is; nobody asks its name. A
// new kind of parameter is a word here, a line of the list (parameters.cpp) and its names in files
// (hub/tensor_names.cpp, hub/gguf/gguf_names.cpp).
#pragma once

#include <functional>
#include <string_view>

#include "model/block.h"

namespace moe {

enum class Part : uint8_t {
  none,  // of no model: an operand that somebody made
  embedding,
  positions,  // learned ones
  norms,      // of the blocks and the final one; those of queries and keys belong to attention
  attention,
  dense_ffn,
  router,
  experts,  // the routed ones
  shared,   // the expert that is always on
  lm_head,  // absent when tied
};
constexpr size_t kParts = static_cast<size_t>(Part::lm_head) + 1;
// As screens and options call it: "dense ffn".
std::string_view name_of(Part);

// Which of its part's parameters: matrices and what else is not a bias. A bias has the kind of what
// it is added to, and Role::bias.
enum class ParamKind : uint8_t {
  weight,  // the matrix of a part that has one: embedding, positions, head, router; of a shared
           // expert [1,D], whose sigmoid is its combine weight
  attn_norm,
  ffn_norm,
  attn_out_norm,  // behind sublayers that have a norm before them too, or where only some layers
                  // have theirs before (ModelConfig::states_pre_norm)
  ffn_out_norm,   // likewise; of layers that route it may stand alone
  // of gates behind norms before attention and before FFNs: what they are made of, and they
  mix_gate_down,
  mix_gate_up,
  ffn_gate_down,
  ffn_gate_up,
  final_norm,
  q,
  k,
  v,
  o,
  q_norm,
  k_norm,
  sinks,   // of attention, a score of each head
  o_gate,  // of attention, whose sigmoid weights what heads give
  // of latent attention: what queries, keys and values are made of is made by q_a and kv_a, normed,
  // and taken by q_b, k_b and v_b; k_rope makes what turns of a key
  q_a,
  q_a_norm,
  q_b,
  kv_a,
  k_rope,
  kv_a_norm,
  k_b,
  v_b,
  o_a,  // of shared latents: matrices of parts of the heads, before the projection back
  // of entries that stand for several tokens: what is weighed, what weighs it and its bias, their
  // norm; the same of an indexer's
  entry_kv,
  entry_gate,
  entry_bias,
  entry_norm,
  entry_index_kv,
  entry_index_gate,
  entry_index_bias,
  entry_index_norm,
  // of an indexer, which chooses what sparse attention sees: its queries, and their norm where it
  // chooses blocks, its keys and their norm, the weights of its heads
  index_q,
  index_q_norm,
  index_k,
  index_k_norm,
  index_weights,
  // of linear attention: queries, keys and values, what gates them, strength and decay of a token;
  // what gates and decays are made of, and the decays of channels made of it or, as large a matrix,
  // of the token; the convolution, the
  // decay's bias and factor, the norm of a head, the projection back
  linear_q,
  linear_k,
  linear_v,
  linear_z,
  linear_b,
  linear_a,
  linear_z_in,
  linear_a_in,
  linear_a_out,
  linear_conv,
  linear_dt_bias,
  linear_a_log,
  linear_norm,
  linear_o,
  // of a gated convolution: what is gated before it and behind it, what it is of, its weights, the
  // projection back
  conv_b,
  conv_c,
  conv_x,
  conv,
  conv_o,
  // of a state space: what gates it, what its convolution sees (values, and what writes and reads
  // the state), the steps of a token; the convolution, the steps' bias, the decay's factor, what of
  // values goes past the state, the norm, the projection back
  scan_z,
  scan_xbc,
  scan_dt,
  scan_conv,
  scan_dt_bias,
  scan_a_log,
  scan_skip,
  scan_norm,
  scan_o,
  // of a selective scan besides: what its convolution sees, what steps, B and C are made by, their
  // norms, and the steps of what is made for them
  scan_x,
  scan_made,
  scan_step_norm,
  scan_b_norm,
  scan_c_norm,
  scan_step,
  // of lightning attention: queries, keys and values, what gates them, the norm of all heads, the
  // projection back
  lightning_q,
  lightning_k,
  lightning_v,
  lightning_z,
  lightning_norm,
  lightning_o,
  // of branches of an MoE layer: before the router and the routed experts, behind these, behind the
  // shared ones
  router_norm,
  experts_norm,
  experts_out_norm,
  shared_out_norm,
  layer_scale,  // a buffer
  // of residual streams before and behind attention, the FFN, and at the end: what a token's
  // weights are made by, a matrix and biases, and their scales
  attn_streams,
  attn_streams_scale,
  ffn_streams,
  ffn_streams_scale,
  end_streams,
  end_streams_scale,
  gate,
  up,  // of a bank of experts; of a router too, whose logits are analytic
  down,
  // of an FFN by xIELU: what its factors are made of, and its two constants, which are buffers
  xielu_alpha_p,
  xielu_alpha_n,
  xielu_beta,
  xielu_eps,
  noise,           // of a router, LearnedNoise
  scale,           // of a router, a factor of each expert's weight
  selection_bias,  // of a router, SelectionBias: a buffer
  threshold,       // of a router whose experts choose: a buffer
  table,           // of a router whose experts are those of a token's id: a buffer
};

// Whether it is an operand of the large products or a table of embeddings, which a file may hold in
// few bits. Norms, biases, routers, the weight of a shared expert and learned positions hold few
// numbers, and much hangs on each.
bool is_large(const Param&);
// Whether it is a large operand of a layer, or a bank of them: neither a table of embeddings nor
// the head.
bool is_hidden_matrix(const Param&);
// Whether products take it: not what rows are only looked up in, nor the weights of a convolution.
bool is_multiplied(const ModelConfig&, const Param&);
// Whether it is multiplied in f32 whatever the activations are: routers, what makes strength and
// decay of linear attention, the steps of a state space, what weighs an indexer's heads, and what
// weighs residual streams.
bool is_multiplied_in_f32(const Param&);
// Whether it is of a router that scores neurons by their own rows in few bits (recipe sketch): what
// those become in files that have such types, and where they are multiplied.
bool is_sketch(const Param&);
// Whether it is of an indexer: nothing learns through what is chosen.
bool is_of_indexer(ParamKind);
// The type of a sketch, whose rows are whole blocks of it where the width is a multiple of
// kSketchBlock.
DType sketch_type(const ModelConfig&, const Param&);
constexpr int64_t kSketchBlock = 64;
// Whether it is of residual streams: their weights hang on each of its numbers.
bool is_of_streams(ParamKind);
// Whether it is the weights of a convolution, which no product takes.
bool is_convolution(const Param&);

// out [shape of the value], dense f32: its numbers, of whatever dtype and wherever they lie.
void copy_as_f32(Tensor out, const Param&, int threads = 1);

// The list. Each function sets up modules as the config says, and tells of their parameters in
// order: what each is, its name and its shape, but no memory for its numbers. Together, over all
// layers, they are the parameters of a model.
using OnParam = std::function<void(Param&)>;
void list_input(const ModelConfig&, Param& embedding, Param& positions, const OnParam&);
void list_block(const ModelConfig&, int64_t layer, Block&, const OnParam&);
// Of a block its feed-forward layer alone.
void list_ffn(const ModelConfig&, int64_t layer, MoeLayer&, const OnParam&);
void list_output(const ModelConfig&, std::optional<HyperConnection>& end_streams, Norm& final_norm,
                 Param& lm_head, Param& lm_head_bias, const OnParam&);

// The list of a config alone, no model being made: each parameter once for all layers that have one
// like it, `layers` being their number; 1 outside of layers.
void each_param(const ModelConfig&, const std::function<void(const Param&, int64_t layers)>&);

}  // namespace moe
