// Keys that few rows have: what queries, keys and values are held within (OLMo), and whether
// attention and FFN stand beside one another (StableLM, GPT-NeoX).
#include "core/error.h"
#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

constexpr const char *kClamp = "attention.clamp_kqv", *kParallelResidual = "use_parallel_residual";

// Where attention and FFN share a norm there is one tensor less, and queries and keys of the one
// published model of that kind have LayerNorms (github ggml-org/llama.cpp src/models/stablelm.cpp).
void check_norms_apart(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row) {
  keys.ignore(kParallelResidual);
  if (!file.contains("blk.0.ffn_norm.weight"))
    fail("{}: attention and FFN of this {} share a norm, which is not supported", keys.where(),
         row.title);
  if (file.contains("blk.0.attn_q_norm.weight"))
    fail("{}: queries and keys of this {} have LayerNorms, which are not supported", keys.where(),
         row.title);
}

}  // namespace

void read_few_keys(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  if (row.parallel == ParallelKey::unread) check_norms_apart(file, keys, row);
  if (row.parallel == ParallelKey::told && !keys.flag(kParallelResidual))
    c.norm_placement = NormPlacement::pre;
  c.head_bias = row.head_bias;
  if (row.clips) c.qkv_clip = keys.number_or(kClamp, 0, 0);
}

void add_few_keys(std::vector<GgufEntry>& out, const std::string& prefix,
                  const GgufArchitecture& row, const ModelConfig& c) {
  if (row.parallel == ParallelKey::told)
    out.push_back({prefix + kParallelResidual, GgufEntry::Type::boolean,
                   c.norm_placement == NormPlacement::beside_each});
  if (c.qkv_clip > 0)
    out.push_back({prefix + kClamp, GgufEntry::Type::f32, static_cast<double>(c.qkv_clip)});
}

}  // namespace moe
