// One layer while it is carved: what the stages of a method read, and what each leaves for the
// next. A stage is a function over it; a method is a row of stages.
#pragma once

#include <optional>

#include "convert/assembly.h"
#include "convert/partition.h"
#include "moe/layer.h"

namespace moe {

struct Carving {
  Run& run;
  const CarveOptions& options;
  SliceShape shape;
  int64_t active;     // A
  RngKey key;         // of this layer
  ExpertBank& dense;  // f32
  Activations a;  // of the dense FFN, at the inputs that the carved model gives this layer; lives
                  // in run.saved. Behind the router `hidden` is 0 where a neuron does not work
  MoeLayer& carved;  // the stages write the parameters of its router
  const Pass& pass;  // of the carved model over the text
  Tensor given;      // [N,D] f32 what the carved layer gives, see give()
  // Where a stage follows the dense model (CarveStages::follows_dense); else empty.
  Tensor target =
      {};  // [N,D] f32 what this layer has to give for the residual stream to become the dense one
  // [N] 1 / mean square of the dense stream after this layer, their mean 1
  std::vector<float> token_weight = {};
  Partition partition = {};  // made by the first stage
  std::optional<Marks> known_marks = {};
  // [F + biases(), D] f32: of each neuron its column of `down`, then a bias of each expert and of
  // the slices that are always on
  Tensor map = {};
  Tensor choice = {};  // [N,A] i32, made behind the router where experts have biases

  int64_t tokens() const { return a.tokens(); }
  // Rows of `map` behind those of the neurons.
  int64_t biases() const { return carved.by_neuron ? 0 : shape.experts + (carved.shared ? 1 : 0); }
  const Marks& marks();  // made when first asked for; before the router has chosen
  // `given` becomes what the layer gives by `map` as it is: weights are 1 in a carved layer, so
  // that it is hidden map + the biases of the chosen experts.
  void give();
};

// ---- first: who goes where ----------------------------------------------------------------------
void by_marks(Carving&);
void by_weights(Carving&);
void by_chance(Carving&);
void by_energy(Carving&);
// Every neuron is an expert (sketch.cpp).
void by_itself(Carving&);

// `map` as the dense layer has it; a bias after `down` goes to the slices that are always on, or in
// A-th parts to the experts.
void start_map(Carving&);

// ---- second: a router ---------------------------------------------------------------------------
// CMoE: the rows of the neurons that stand for the experts, each divided by its norm.
void analytic_router(Carving&);
// MoEfication's similarity: the token's direction against the mean direction of the expert's rows,
// -||x/|x| - c_e||^2, as a linear map: <c_e, x> - |x| |c_e|^2 / 2 with the mean |x| of the
// calibration text.
void similarity_router(Carving&);
// A linear map fitted by ridge regression to the experts' sums of |hidden|, which MoEfication's
// learned router is trained on.
void learned_router(Carving&);
// A linear map fitted to the roots of the experts' energies (energy.cpp).
void energy_router(Carving&);
// The neurons' own rows in few bits (sketch.cpp).
void sketch_router(Carving&);

// ---- between: who works ------------------------------------------------------------------------
// What the router chose over the text.
struct Choices {
  std::vector<int64_t> counts;            // [E-S] tokens of each expert
  double shared_mass = 0, agreement = 0;  // as in CarvedLayer
};
// Runs the router: only what works of each token remains of a.hidden.
Choices choose_experts(Carving&);

// ---- third: what the experts give ---------------------------------------------------------------
void no_fit(Carving&);
// `map` by least squares (refit.cpp), and what it gives.
void refit(Carving&);

// ---- last: the experts --------------------------------------------------------------------------
// The rows and columns of the dense layer and of `map` as the experts have them.
void write_experts(const Carving&, Assembly&, int64_t layer);

// ---- the tables (carve_methods.cpp) -------------------------------------------------------------
struct CarveStage {
  std::string_view name;
  void (*run)(Carving&);
  bool follows_dense = false;
  bool marks = false;  // it asks for Carving::marks()
  bool draws = false;  // by Carving::key
};
struct RouterStage {
  std::string_view name;
  void (*run)(Carving&);
  std::string_view recipe;  // whose router it writes (moe/recipes/recipes.h)
  bool follows_dense = false;
  bool marks = false;
};
struct FitStage {
  std::string_view name;
  void (*run)(Carving&);
  bool down_bias = false;  // it writes biases after `down`
  bool follows_dense = false;
};
// What a decoded token reads of one neuron of a layer: its rows in this type, and their sketch.
struct SketchBytes {
  double row, sketch;
};
SketchBytes sketch_bytes(const ModelConfig& dense, DType weights, int64_t bits);
// How many neurons a token may take where it reads this share of the FFN's bytes, the sketch among
// them; below 1 where the sketch alone is more.
int64_t neurons_for(const ModelConfig& dense, DType weights, double budget, int64_t bits);
// Bits of the sketch (ModelConfig::sketch_bits) that lose least at this budget: with more of them
// fewer neurons work, and better chosen ones.
int64_t sketch_bits_for(const ModelConfig& dense, DType weights, double budget);

struct CarveStages {
  const CarveStage* partition;
  const RouterStage* router;
  const FitStage* fit;

  // Whether the dense residual stream is walked beside the carved one.
  bool follows_dense() const {
    return partition->follows_dense || router->follows_dense || fit->follows_dense;
  }
};
// What the options ask for. Throws (usage), offering the nearest, where there is no such method,
// router or fit.
CarveStages carve_stages(const CarveOptions&);

}  // namespace moe
