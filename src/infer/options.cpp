#include "infer/options.h"

#include <fmt/format.h>

#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "options/common.h"

namespace moe {
namespace {

const std::vector<std::string> kComputeDtypes = {"auto", "f32", "bf16"};
const std::vector<std::string> kCacheDtypes = {"f32", "bf16", "f16", "q8_0"};

}  // namespace

FieldList cpu_fields(ComputeOptions& o) {
  FieldList list;
  list.add_named(
      "dtype", kComputeDtypes, [&o] { return o.dtype ? std::string(name_of(*o.dtype)) : "auto"; },
      [&o](const std::string& name) { o.dtype = dtype_named(name); },
      "f32 or bf16 products; auto: bf16 where most weights are of 2 bytes and this machine "
      "multiplies bf16, else f32");
  add_threads(list, o.threads);
  return list;
}

FieldList fields(ComputeOptions& o) {
  FieldList list = cpu_fields(o);
  add_device(list, o.device);
  return list;
}

DType compute_dtype(const ComputeOptions& o, const Model& model) {
  if (o.device == DeviceKind::cpu) return o.dtype.value_or(natural_dtype(model));
  return o.dtype.value_or(is_compact(model) ? DType::bf16 : DType::f32);
}

void add_top_k_experts(FieldList& list, int64_t& top_k_experts) {
  list.add("top_k_experts", top_k_experts,
           "experts a token takes, fewer or more than the model was trained with; 0: the model's "
           "number")
      .also({"num_experts_per_tok"});
}

void add_cache_dtype(FieldList& list, std::optional<DType>& dtype) {
  list.add_named(
      "cache_dtype", kCacheDtypes, [&dtype] { return dtype ? std::string(name_of(*dtype)) : ""; },
      [&dtype](const std::string& name) { dtype = dtype_named(name); },
      "how keys and values are kept: f32, bf16, f16 or q8_0; default: for quantised weights bf16 "
      "where the machine multiplies it, else f16; for "
      "others as the products compute");
}

FieldList fields(SessionOptions& o) {
  FieldList list;
  list.add_choice("routing", o.routing, eval_routing_names(),
                  "dropless, or threshold: models whose experts choose their tokens generate only "
                  "by the thresholds learned in training, and only when asked");
  add_top_k_experts(list, o.top_k_experts);
  add_cache_dtype(list, o.cache_dtype);
  return list;
}

FieldList fields(GenerateOptions& o) {
  FieldList list;
  SamplerOptions& s = o.sampler;
  list.add("tokens", o.max_tokens, "tokens to write").also({"n", "max_new_tokens"});
  list.add("temperature", s.temperature, "0: always the most likely token");
  list.add("top_k", s.top_k,
           "sample from the k most likely tokens only (tokens, not experts); 0: off");
  list.add("top_p", s.top_p,
           "only the most likely tokens that together have this probability; 1: off");
  list.add("min_p", s.min_p,
           "only tokens at least this likely, relative to the most likely one; 0: off");
  list.add("repeat_penalty", s.repeat_penalty, "above 1: tokens of the last 64 become less likely")
      .also({"repetition_penalty"});
  list.add("seed", s.seed, "same seed, same text");
  list.add("stop", o.stop, "end before this text; may be given more than once")
      .one_each()
      .also({"stop_strings"});
  FieldList session = fields(o.session);
  list.add(session.take({"routing", "top_k_experts"}));
  list.add("prompt_lookup", o.prompt_lookup,
           "guess up to so many tokens from what the text said before and check them in one step; "
           "the text stays the same. 0: off")
      .unit("tokens")
      .also({"prompt_lookup_num_tokens"});
  list.add(std::move(session));
  return list;
}

FieldList fields(DraftOptions& o) {
  FieldList list;
  list.add("draft", o.model,
           fmt::format("a small model of the same vocabulary ({}) guesses tokens that are checked "
                       "in one step; the text stays the same",
                       kModelIs))
      .path();
  list.add("draft_tokens", o.tokens,
           "most tokens that the draft guesses at once; fewer while they come to nothing")
      .unit("tokens");
  list.add("draft_min_p", o.min_p,
           "the draft guesses no further where its likeliest token has less than this probability; "
           "0: off");
  return list;
}

}  // namespace moe
