#include "infer/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace moe {
namespace {

constexpr double kShares[] = {0.5, 0.9, 0.99};

// One expert's matrices in a layer.
int64_t expert_bytes(Model& model, int64_t layer) {
  int64_t bytes = 0;
  for (const char* part : {"gate", "up", "down"})
    if (const Param* bank = model.find(fmt::format("layers.{}.ffn.experts.{}.weight", layer, part))) bytes += bank->value.bytes() / bank->value.shape[0];
  return bytes;
}

}  // namespace

int64_t cache_bytes(const ModelConfig& config, DType dtype, int64_t tokens) { return 2 * config.layers * tokens * bytes_of(dtype, config.kv_width()); }

MemoryPlan plan_memory(const Model& model, int64_t available, int64_t cache) {
  MemoryPlan plan{.available = available};
  for (const Param* param : model.params())
    if (param->budget != nullptr) plan.weights += param->value.bytes();
  plan.packed = std::max<int64_t>(0, available - cache) / 2;
  return plan;
}

int64_t decode_bytes(Model& model, int64_t top_k) {
  const ModelConfig& c = model.config();
  int64_t bytes = 0;
  for (const Param* param : model.params()) bytes += param->value.bytes();
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (c.is_moe(layer)) bytes -= (c.routing.experts - top_k) * expert_bytes(model, layer);
  const auto one_row = [&](const char* table) {
    if (const Param* p = model.find(table)) bytes -= (p->value.rows() - 1) * bytes_of(p->value.dtype, p->value.cols());
  };
  if (!c.tied) one_row("embed.weight");
  one_row("positions.weight");
  return bytes;
}

HotSet hot_set(Model& model, const std::vector<std::vector<int64_t>>& rows) {
  struct Expert {
    int64_t rows, bytes;
  };
  std::vector<Expert> experts;
  HotSet out;
  size_t index = 0;
  for (int64_t layer = 0; layer < model.config().layers && index < rows.size(); ++layer) {
    if (!model.config().is_moe(layer)) continue;
    const int64_t bytes = expert_bytes(model, layer);
    for (const int64_t n : rows[index]) {
      experts.push_back({n, bytes});
      out.rows += n;
      out.bytes += bytes;
    }
    ++index;
  }
  out.experts = std::ssize(experts);
  std::stable_sort(experts.begin(), experts.end(), [](const Expert& a, const Expert& b) { return a.rows > b.rows; });
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
