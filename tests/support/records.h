// What the routers of one forward chose, kept in memory so that another forward can be made to take
// it.
#pragma once

#include <functional>
#include <vector>

#include "model/model.h"
#include "moe/stages/replay.h"

namespace moe::test {

struct Record {
  int64_t slots = 0;
  // [N,K] for each MoE layer in order (moe/stages/replay.h)
  std::vector<std::vector<int32_t>> entries;
  std::vector<std::vector<int32_t>> agreed;  // [N], where the forward was replaying itself
  int64_t own = 0;

  // For Pass::on_routing; the record must outlive it.
  std::function<void(int64_t, const MoeLayer::Saved&)> listener() {
    return [this](int64_t, const MoeLayer::Saved& saved) {
      const Router::Saved& r = saved.router;
      slots = r.choice.cols();
      std::vector<int32_t>& layer = entries.emplace_back(static_cast<size_t>(r.choice.numel()));
      record_choices(Tensor(layer.data(), DType::i32, {r.choice.rows(), slots}), r.choice,
                     r.selected, r.kept);
      agreed.emplace_back();
      for (int64_t n = 0; !r.agreed.empty() && n < r.choice.rows(); ++n)
        agreed.back().push_back(r.agreed.as<int32_t>()[n]);
      own += r.own;
    };
  }

  // Views of the tokens [begin, end), one for each MoE layer.
  std::vector<Tensor> rows(int64_t begin, int64_t end) {
    std::vector<Tensor> out;
    for (auto& layer : entries)
      out.push_back(Tensor(layer.data() + begin * slots, DType::i32, {end - begin, slots}));
    return out;
  }
  // Of all tokens.
  std::vector<Tensor> all() {
    std::vector<Tensor> out;
    for (auto& layer : entries)
      out.push_back(
          Tensor(layer.data(), DType::i32, {static_cast<int64_t>(layer.size()) / slots, slots}));
    return out;
  }

  int64_t chosen() const {
    int64_t n = 0;
    for (const auto& layer : entries)
      for (const int32_t e : layer) n += e != kNothingChosen;
    return n;
  }
  int64_t not_sent() const {
    int64_t n = 0;
    for (const auto& layer : entries)
      for (const int32_t e : layer) n += e < kNothingChosen;
    return n;
  }
};

}  // namespace moe::test
