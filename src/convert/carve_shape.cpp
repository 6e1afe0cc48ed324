// What a carving is: the shape that a budget buys, what has no meaning, the model that comes out,
// and what it takes of memory.
#include <algorithm>

#include "convert/assembly.h"
#include "convert/carve.h"
#include "convert/carve_steps.h"
#include "core/error.h"
#include "model/cost.h"
#include "model/parameters.h"
#include "tensor/quant.h"

namespace moe {
namespace {

std::string expert_counts(int64_t n) {
  std::string out;
  for (int64_t e = 2; e <= std::min<int64_t>(n, 256); ++e)
    if (n % e == 0) out += fmt::format("{}{}", out.empty() ? "" : ", ", e);
  return out.empty() ? "nothing" : out;
}

void check_neurons(const ModelConfig& dense, const CarveOptions& o) {
  if (!o.router.empty()) fail_usage("method '{}' has its own router; leave @router out", o.method);
  if (dense.ffn_bias)
    fail_usage(
        "this model's FFNs have biases, which method '{}' does not know yet; take another @method",
        o.method);
  if (dense.width % kSketchBlock != 0)
    fail_usage("a sketch has rows of whole blocks of {} numbers, and the model's width is {}",
               kSketchBlock, dense.width);
}

}  // namespace

CarveOptions with_shape(const ModelConfig& dense, const CarveOptions& asked, DType weights) {
  if (!find_carve_method(asked.method).by_neuron) return asked;
  CarveOptions o = asked;
  if (!(o.budget > 0 && o.budget <= 1))
    fail_usage(
        "@budget is {}; it is the share of the FFN's bytes that a decoded token reads, above 0 and "
        "at most 1",
        o.budget);
  o.shared = 0;
  o.experts = dense.dense_width;
  if (o.sketch_bits == 0) o.sketch_bits = sketch_bits_for(dense, weights, o.budget);
  check_sketch_bits(o.sketch_bits);
  o.active = neurons_for(dense, weights, o.budget, o.sketch_bits);
  if (o.active < 1) {
    const auto [row, sketch] = sketch_bytes(dense, weights, o.sketch_bits);
    fail_usage(
        "@budget {}: the sketch alone reads {:.3f} of the bytes of an FFN in {}; give more than "
        "that",
        o.budget, sketch / row, name_of(weights));
  }
  return o;
}

void check_carve(const ModelConfig& dense, const CarveOptions& o) {
  carve_stages(o);
  if (dense.moe_layer_count() > 0)
    fail_usage("this model routes already (recipe '{}'); only a dense one is carved",
               dense.routing.recipe);
  if (dense.has_halves())
    fail_usage(
        "some layers of this model are attention or an FFN alone; such a model cannot be carved "
        "yet, take one whose layers have both (llama, mistral, qwen3, smollm3)");
  if (dense.norm_placement == NormPlacement::output ||
      dense.norm_placement == NormPlacement::both ||
      dense.norm_placement == NormPlacement::carried || dense.multipliers.residual != 1 ||
      dense.multipliers.ffn_gate != 1 || dense.multipliers.ffn_down != 1)
    fail_usage(
        "this model does not add what its FFNs give as it is, but normalised or times a number, or "
        "adds it to something else than its residual stream; "
        "such a model cannot be carved yet, take one that adds it (llama, mistral, qwen3, "
        "smollm3)");
  if (dense.hyper.present())
    fail_usage(
        "this model has {} residual streams; such a model cannot be carved yet, take one that has "
        "one (llama, mistral, qwen3, smollm3)",
        dense.hyper.streams);
  if (dense.layer_scale)
    fail_usage(
        "what a layer of this model leaves is multiplied by a number of its own; such a model "
        "cannot be carved yet, take one without (llama, mistral, qwen3, smollm3)");
  if (dense.xielu)
    fail_usage(
        "the activation of this model, xIELU, learns two numbers in each layer, which experts here "
        "have not; such a model cannot be carved, take one with another (llama, mistral, qwen3, "
        "smollm3)");
  if (o.experts < 2) fail_usage("@experts is {}; it must be at least 2", o.experts);
  if (dense.dense_width % o.experts != 0)
    fail_usage("@experts {} does not divide the FFN's width {}; take one of {}", o.experts,
               dense.dense_width, expert_counts(dense.dense_width));
  if (o.shared < 0) fail_usage("@shared is {}; it must be at least 0", o.shared);
  if (o.shared >= o.experts)
    fail_usage("@shared {} leaves none of {} slices to choose from; take at most {}", o.shared,
               o.experts, o.experts - 1);
  if (o.active < 1) fail_usage("@active is {}; a token takes at least 1 expert", o.active);
  if (o.shared + o.active > o.experts)
    fail_usage("@shared {} and @active {} are more than @experts {}; take at most {} active ones",
               o.shared, o.active, o.experts, o.experts - o.shared);
  o.layers.check(dense.layers);
  if (find_carve_method(o.method).by_neuron) check_neurons(dense, o);
  if (marks_neurons(o) && (o.marks < 1 || o.marks > dense.dense_width))
    fail_usage("@marks is {}; it must be 1 to {}, the width of the FFN", o.marks,
               dense.dense_width);
  if (o.windows < 1 || o.windows > (int64_t{1} << 20))
    fail_usage("@windows is {}; it must be at least 1", o.windows);
  if (o.window < 2 || o.window > (int64_t{1} << 24))
    fail_usage("@window is {}; a calibration sequence needs at least 2 tokens", o.window);
  if (dense.ends_at_context() && o.window > dense.context)
    fail_usage("@window is {}, but {}; take @window {}", o.window, why_texts_end(dense),
               dense.context);
}

ModelConfig carved_config(const ModelConfig& dense, const CarveOptions& o) {
  const CarveStages stages = carve_stages(o);
  const bool by_neuron = find_carve_method(o.method).by_neuron;
  ModelConfig c = without_experts(dense);
  const int64_t width = dense.dense_width / o.experts;
  c.model_type.clear();
  c.expert_width = width;
  c.shared_experts = o.shared;
  c.shared_width = o.shared > 0 ? width : 0;
  if (by_neuron) c.sketch_bits = o.sketch_bits;
  c.expert_down_bias = !dense.ffn_bias && !by_neuron && stages.fit->down_bias;
  o.layers.set(c);
  c.routing.recipe = stages.router->recipe;
  c.routing = default_options(find_recipe(stages.router->recipe), o.experts - o.shared, o.active,
                              c.moe_layer_count());
  return c;
}

double active_ffn_share(const ModelConfig& dense, const CarveOptions& o) {
  const auto carved = static_cast<double>(carved_config(dense, o).moe_layer_count()),
             layers = static_cast<double>(dense.layers);
  return 1 - carved / layers * static_cast<double>(o.experts - o.shared - o.active) /
                 static_cast<double>(o.experts);
}

double share_read(const ModelConfig& dense, const CarveOptions& o, DType weights) {
  const double taken = static_cast<double>(o.shared + o.active) / static_cast<double>(o.experts);
  if (!find_carve_method(o.method).by_neuron) return taken;
  const auto [row, sketch] = sketch_bytes(dense, weights, o.sketch_bits);
  return taken + sketch / row;
}

MemoryNeed carving_need(const ModelConfig& dense, const CarveOptions& o, DType compute) {
  const ModelConfig carved = carved_config(dense, o);
  const ParamCount before = count_params(dense), after = count_params(carved);
  const int64_t n = calibration_tokens(o), d = dense.width, f = dense.dense_width,
                a = compute == DType::bf16 ? 2 : 4;
  const int64_t layer = (before[Part::attention] + before[Part::dense_ffn]) / dense.layers,
                columns = f + (carved.by_neuron() ? 0 : o.experts + 1);
  MemoryNeed need;
  need.add("a layer's weights", 4 * layer);
  if (carved.by_neuron())
    need.add("new weights", 4 * after[Part::experts] / (dense.gated ? 3 : 2) + after.sketch_bytes);
  else
    need.add("new weights", 4 * (after[Part::experts] + after[Part::shared] + after[Part::router] +
                                 after.buffers));
  need.add("packed", a * (layer + columns * d));
  const CarveStages stages = carve_stages(o);
  const bool follows = stages.follows_dense();
  const int64_t streams = n * d * 4 * (follows ? 6 : 3),
                dense_ffn = n * (d * a + f * a * (dense.gated ? 3 : 2) + d * 4),
                given = columns * d * 4 + n * d * 4;  // the map, and what is compared
  if (carved.by_neuron()) {
    // of a window: products, logits and scores; choices and their weights
    need.add("activations", streams + dense_ffn + given +
                                o.window * (f * 4 * 4 + o.active * 3 * 4) + o.window / 16 * f * 4);
    need.add("sketch", d * d * (2 * 4 + 2 * 8));
  } else {
    const int64_t experts = o.experts - o.shared, marks = n * f / 8, energies = n * f * a;
    need.add("activations",
             streams + dense_ffn + given + marks + energies + n * (experts * 8 + o.active * 4));
  }
  // The two that take most for themselves, one after the other. Sorting by energy: the map that
  // foresees each neuron, in f32 and in double, beside the sums it is solved from or what it gives
  // for some tokens, and two systems of the inputs. The fit: its features, and its system of a
  // variable a neuron and an expert that has a bias, in f32 and solved in double.
  const int64_t sorting = stages.partition->run == by_energy
                              ? f * d * (4 + 8) + std::max(f * d * 4, n / 16 * f * 8) + d * d * 16
                              : 0,
                fitting =
                    stages.fit->run == refit
                        ? n * columns * a + columns * (columns + d) * (4 + 8) + n * d * (4 + a)
                        : 0;
  need.add(sorting > fitting ? "sorting" : "fit", std::max(sorting, fitting));
  need.add("kernels", int64_t{8} << 20);
  return need;
}

}  // namespace moe
