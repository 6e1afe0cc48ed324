// Carving: the neurons of every FFN of a dense model are dealt out to experts of equal width, S of
// them always on and A of the others chosen by a router, so that (S + A) / E of the FFN works for a
// token. Nothing is trained; a text of a few thousand tokens is all that is looked at. The formulas
// and their sources are in docs/carving.md; the table of methods is carve_methods.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/layer_choice.h"
#include "core/memory.h"
#include "model/model.h"

namespace moe {

// What a neuron's activation is when the strongest of a token are marked: act(gate) * up of the
// products as they are, or of the products divided by the norms of the token and of the neuron's
// rows, as CMoE's published code has it.
enum class Profile { cosine, raw };
const std::vector<std::string>& profile_names();  // in this order

struct CarveOptions {
  std::string method = "fitted";  // a row of carve_methods()
  int64_t shared = 0;             // S slices that are always on
  int64_t active = 1;             // A of the E - S others that a token takes
  int64_t experts = 8;            // E slices in all; divides the FFN's width F
  // of a method by neuron, in place of the three: which share of the bytes of a carved FFN a
  // decoded token reads, its sketch among them
  double budget = 0;
  // with a budget: bits of a number of the sketch (ModelConfig::sketch_bits); 0: those that lose
  // least
  int64_t sketch_bits = 0;
  LayerChoice layers;  // those that are carved
  // another router than the method's own (carve_routers()); empty: the method's
  std::string router;
  // another fit of the outputs than the method's own (carve_fits()); empty: the method's
  std::string fit;
  Profile profile = Profile::cosine;
  int64_t marks = 10;     // K_a: how many neurons of a token are marked
  int64_t window = 2048;  // tokens of a calibration sequence
  int64_t windows = 8;    // how many of them
  uint64_t seed = 1;      // of what is drawn (partitions by weights and at random)
};

// A method is a partition of the neurons, a router and a fit of the outputs.
struct CarveMethod {
  std::string_view name, partition, router, fit, what;
  bool by_neuron = false;  // every neuron is an expert (moe/neurons.h)
};
std::span<const CarveMethod> carve_methods();
const std::vector<std::string>& carve_method_names();
// Throws (usage), offering the nearest, where there is no such method.
const CarveMethod& find_carve_method(std::string_view name);
const std::vector<std::string>& carve_routers();
const std::vector<std::string>& carve_fits();
// Whether the method and the router read `profile` and `marks`, and whether they draw by `seed`.
bool marks_neurons(const CarveOptions&);
bool draws(const CarveOptions&);
// Whether carving writes routers of this recipe: its experts are then those of a trained model.
bool is_carved(std::string_view recipe);

// What was measured of one layer on the calibration text, at the inputs that the carved model gives
// it.
struct CarvedLayer {
  int64_t layer = 0;
  int64_t active = 0;      // experts a token takes here
  double shared_mass = 0;  // share of sum |hidden| that lies in the slices always on
  double error = 0;        // ||F_moe(x) - F(x)|| / ||F(x)|| over all tokens
  // share of a token's experts that are among the A of the largest sum |hidden|
  double agreement = 0;
  double largest_load = 0;  // tokens of the most chosen expert, in times an even share
  double smallest_load = 0;
  double seconds = 0;
};

struct CarveResult {
  // Views of the dense model where numbers stay as they are, so for as long as that one lives; else
  // its own, f32 but for sketches.
  std::unique_ptr<Model> model;
  std::vector<CarvedLayer> layers;  // those that were carved
  int64_t tokens = 0;               // of the calibration text that were used
};

struct CarveHooks {
  // Told each layer when it is done; may throw, and then nothing remains.
  std::function<void(const CarvedLayer&)> on_layer = {};
};

// The options with the shape that `budget` comes to, and the bits of the sketch, where the weights
// are written in this type, or in the next one whose blocks fit into rows; of other methods as they
// are. Throws (usage) where the sketch alone reads more.
CarveOptions with_shape(const ModelConfig& dense, const CarveOptions&, DType weights);

// How many tokens of text the options ask for.
inline int64_t calibration_tokens(const CarveOptions& options) {
  return options.window * options.windows;
}

// Throws (usage) where these options have no meaning for this model: it routes already, E does not
// divide F (the message lists what does), S + A > E, A < 1, no such method. Asked before any text
// is read; `carve` asks too.
void check_carve(const ModelConfig& dense, const CarveOptions&);

// What the carved model will be. The options must have been checked.
ModelConfig carved_config(const ModelConfig& dense, const CarveOptions&);
// The share of the neurons of all FFNs that works for a token. By neuron their sketch comes on top.
double active_ffn_share(const ModelConfig& dense, const CarveOptions&);
// The share of the bytes of a carved FFN that a decoded token reads of weights of this type.
double share_read(const ModelConfig& dense, const CarveOptions&, DType weights);

// What carve() takes of memory beside the dense model's weights, the result's among it; `compute`:
// of the calibration's products.
MemoryNeed carving_need(const ModelConfig& dense, const CarveOptions&, DType compute);

// The dense model, whose weights may lie in a file, stays as it is. `ids`: the calibration text, of
// which the first windows * window tokens are used; fails when there are fewer. Products run in
// run.compute. Same model, text, options, threads and dtype: same bits.
CarveResult carve(Run&, Model& dense, std::span<const int32_t> ids, const CarveOptions&,
                  const CarveHooks& = {});

}  // namespace moe
