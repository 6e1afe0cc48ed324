#include "infer/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "infer/eval_routing.h"
#include "ops/memory.h"

namespace moe {
namespace {

// Arenas take whole large pages, one and a part of another for each of a Run's and of its threads',
// and the libraries keep the kernels that they made.
constexpr int64_t kRunBytes = int64_t{8} << 20;
constexpr double kShares[] = {0.5, 0.9, 0.99};

bool is_expert_matrix(const Param& param) {
  return param.part == Part::experts && param.is_matrix();
}

// One expert's matrices in a layer. Neurons are rows of one network.
int64_t expert_bytes(const Model& model, int64_t layer) {
  const bool by_neuron = model.config().by_neuron();
  int64_t bytes = 0;
  for (const Param* param : model.params())
    if (is_expert_matrix(*param) && param->layer == layer)
      bytes += param->value.bytes() / (by_neuron ? param->value.rows() : param->value.shape[0]);
  return bytes;
}

// Of the copies that products of a forward make of a model's weights.
struct Copies {
  int64_t all = 0;
  int64_t owned = 0;    // of them, those of weights that are packed whole, whatever the budget
  int64_t experts = 0;  // and those of several experts, kept from their second use on
  // Of the widest call whose copies pass through scratch, as many experts at once as
  // ops::kPassingBytes holds: those that find no room, and of several experts those met first.
  int64_t passing = 0, passing_experts = 0;
};

Copies copies_of(const Model& model, DType dtype) {
  Copies copies;
  for (const Param* param : model.params()) {
    if (!is_multiplied(model.config(), *param)) continue;
    const ops::CopyBytes bytes =
        ops::forward_copy_bytes(*param, dtype, is_multiplied_in_f32(*param));
    copies.all += bytes.all;
    if (!param->is_bound()) {
      copies.owned += bytes.all;
      continue;
    }
    if (model.config().by_neuron() && is_expert_matrix(*param))
      copies.all += ops::kept_copy_bytes(*param);
    // Gate and up share a call.
    const int64_t passing = std::min(2 * bytes.all, ops::kPassingBytes + 2 * bytes.expert);
    copies.passing = std::max(copies.passing, passing);
    if (bytes.expert == bytes.all) continue;
    copies.experts += bytes.all;
    copies.passing_experts = std::max(copies.passing_experts, passing);
  }
  return copies;
}

// Keys and values of one token in a layer, without an indexer's.
int64_t cached_token_bytes(const AttentionShape& shape, DType dtype) {
  return bytes_of(dtype, shape.cached_key_width()) + bytes_of(dtype, shape.cached_value_width());
}
// What an indexer keeps of it.
int64_t index_token_bytes(const AttentionShape& shape, DType dtype) {
  return shape.index_heads > 0 ? bytes_of(dtype, shape.index_width) : 0;
}

// Entries of so many tokens, which lie in blocks of theirs, and of an indexer of them, which takes
// no halves.
int64_t entry_bytes(const AttentionShape& shape, DType dtype, int64_t tokens) {
  const Entries& e = shape.entries;
  if (!e.present()) return 0;
  const int64_t blocks = (tokens + ops::kKeyBlock - 1) / ops::kKeyBlock;
  return blocks * e.in_block(ops::kKeyBlock) *
         (bytes_of(dtype, shape.key_width) +
          bytes_of(dtype == DType::f16 ? DType::f32 : dtype, e.width));
}

int64_t mapped_bytes(const Model& model) {
  int64_t bytes = 0;
  for (const Param* param : model.params())
    if (param->is_bound()) bytes += param->value.bytes();
  return bytes;
}

}  // namespace

int64_t cache_bytes(const ModelConfig& config, DType dtype, int64_t tokens) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!config.attends(i)) continue;
    const AttentionShape shape = config.attention(i);
    bytes += tokens * (cached_token_bytes(shape, dtype) + index_token_bytes(shape, dtype)) +
             entry_bytes(shape, dtype, tokens);
  }
  return bytes;
}

int64_t context_bytes(const ModelConfig& config, DType dtype, int64_t position) {
  int64_t bytes = count_memory(config).state_f32;
  for (int64_t i = 0; i < config.layers; ++i) {
    if (!config.attends(i)) continue;
    const AttentionShape shape = config.attention(i);
    bytes += shape.seen_of(position + 1) * cached_token_bytes(shape, dtype);
    if (const Entries& e = shape.entries; e.chosen() && (position + 1) / e.tokens > e.top)
      bytes += (position + 1) / e.tokens * bytes_of(DType::f32, e.width);
    if (position >= shape.top) bytes += (position + 1) * index_token_bytes(shape, dtype);
  }
  return bytes;
}

int64_t forward_copy_bytes(const Model& model, DType dtype) { return copies_of(model, dtype).all; }

ForwardUse session_use(Model& model, const SessionOptions& options, DType dtype, int64_t tokens,
                       int64_t capacity, int64_t sequences) {
  return {
      .model = &model,
      .shape = {.tokens = std::min(tokens, prompt_chunk()), .dtype = dtype, .context = capacity},
      .routing = options.routing,
      .top_k_experts = options.top_k_experts,
      .cache = cache_bytes(model.config(), cache_dtype(options, model, dtype), capacity) +
               sequences * count_memory(model.config()).state_f32};
}

MemoryPlan plan_memory(std::span<const ForwardUse> uses, const MemoryNeed& beside,
                       const MemoryLimits& limits) {
  MemoryPlan plan{.need = beside, .available = limits.left()};
  // copies of owned weights, of mapped ones, those of them that are there
  int64_t whole = 0, wanted = 0, used = 0;
  int64_t kernels = 0, activations = 0, cache = 0, passing = 0, passing_experts = 0;
  for (const ForwardUse& use : uses) {
    const ModelConfig& config = use.model->config();
    plan.weights += mapped_bytes(*use.model);
    const Copies copies = copies_of(*use.model, use.shape.dtype);
    whole += copies.owned;
    wanted += copies.all - copies.owned - (use.once ? copies.experts : 0);
    used += ops::copies_taken(use.model->params());
    const auto hold = [&](int64_t& sum, int64_t bytes) {
      sum = use.in_turn ? std::max(sum, bytes) : sum + bytes;
    };
    hold(kernels, kRunBytes);
    hold(activations,
         count_forward_memory(config, use.shape,
                              evaluation_spec(config, use.routing, use.top_k_experts)));
    hold(cache, use.cache);
    hold(passing, copies.passing);
    hold(passing_experts, copies.passing_experts);
  }
  plan.need.add("kernels", kernels);
  plan.need.add("activations", activations);
  plan.need.add("cache", cache);
  plan.need.add("packed", whole);
  plan.packed =
      limits.packed.value_or(used + std::max<int64_t>(0, plan.available - plan.need.total()) / 2);
  plan.need.add("packed", std::min(wanted, plan.packed) - used);
  plan.need.add("packing", plan.packed < wanted ? passing : passing_experts);
  return plan;
}

MemoryPlan settle_memory(std::span<const ForwardUse> uses, const MemoryNeed& beside,
                         const MemoryLimits& limits, const std::string& advice) {
  MemoryPlan plan = plan_memory(uses, beside, limits);
  const auto budgeted = [](const ForwardUse& use) {
    const Copies copies = copies_of(*use.model, use.shape.dtype);
    return static_cast<double>(copies.all - copies.owned);
  };
  double wanted = 0;
  for (const ForwardUse& use : uses) wanted += budgeted(use);
  for (const ForwardUse& use : uses)
    ops::limit_copies(use.model->params(),
                      uses.size() == 1
                          ? plan.packed
                          : static_cast<int64_t>(budgeted(use) / std::max(wanted, 1.0) *
                                                 static_cast<double>(plan.packed)));
  check_memory(plan.need, limits, advice);
  return plan;
}

int64_t decode_bytes(const Model& model, int64_t top_k) {
  const ModelConfig& c = model.config();
  int64_t bytes = 0;
  for (const Param* param : model.params()) {
    const Tensor& w = param->value;
    const bool one_row =
        param->part == Part::positions || (param->part == Part::embedding && !c.tied);
    bytes += one_row                    ? bytes_of(w.dtype, w.cols())
             : is_expert_matrix(*param) ? w.bytes() / c.routing.scored() * top_k
                                        : w.bytes();
  }
  return bytes;
}

HotSet hot_set(const Model& model, const std::vector<std::vector<int64_t>>& rows) {
  struct Expert {
    int64_t rows, bytes;
  };
  const ModelConfig& config = model.config();
  const std::vector<int64_t> unread(static_cast<size_t>(config.routing.experts));
  std::vector<Expert> experts;
  HotSet out;
  size_t index = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.is_moe(layer)) continue;
    const int64_t bytes = expert_bytes(model, layer);
    // Zero experts stand behind these and have no weights.
    const std::vector<int64_t>& counts = index < rows.size() ? rows[index] : unread;
    for (size_t e = 0; e < unread.size(); ++e) {
      const int64_t n = counts[e];
      experts.push_back({n, bytes});
      out.rows += n;
      out.bytes += bytes;
    }
    ++index;
  }
  out.experts = std::ssize(experts);
  std::stable_sort(experts.begin(), experts.end(),
                   [](const Expert& a, const Expert& b) { return a.rows > b.rows; });
  for (const double share : kShares) {
    HotSet::Part part{.share = share};
    int64_t taken = 0;
    for (const Expert& e : experts) {
      if (static_cast<double>(taken) >= share * static_cast<double>(out.rows)) break;
      taken += e.rows;
      ++part.experts;
      part.bytes += e.bytes;
    }
    out.parts.push_back(part);
  }
  return out;
}

}  // namespace moe
