#include "convert/logit_difference.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "moe/one_sequence.h"

namespace moe {
namespace {

// [N,V], in run.saved.
Tensor logits_of(Model& model, Run& run, std::span<const int32_t> ids) {
  const OneSequence sequence(std::ssize(ids));
  const RoutingSpec spec =
      model.config().moe_layer_count() > 0 ? eval_spec(model.config().routing) : RoutingSpec{};
  const Tensor out = run.saved.alloc(DType::f32, {std::ssize(ids), model.config().vocab});
  ModelSaved saved;
  model.forward(run, {.batch = sequence.of(ids), .routing = &spec}, saved);
  model.logits(run, out, saved.hidden);
  return out;
}

}  // namespace

LogitDifference compare_logits(Model& a, Model& b, Run& run, std::span<const int32_t> ids) {
  if (a.config().vocab != b.config().vocab)
    fail("the vocabularies are {} and {}; logits can only be compared over the same one",
         a.config().vocab, b.config().vocab);
  ArenaScope scope(run.saved);
  const Tensor of_a = logits_of(a, run, ids), of_b = logits_of(b, run, ids);
  LogitDifference result{.tokens = static_cast<int64_t>(ids.size())};
  for (int64_t i = 0; i < of_a.numel(); ++i) {
    const double x = static_cast<double>(of_a.as<float>()[i]),
                 y = static_cast<double>(of_b.as<float>()[i]);
    result.largest = std::max(result.largest, std::abs(x - y));
    result.largest_logit = std::max(result.largest_logit, std::abs(x));
  }
  return result;
}

}  // namespace moe
