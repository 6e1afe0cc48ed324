// One layer while it is carved: what the stages of a method read, and what each leaves for the
// next. A stage is a function over it; a method is a row of stages.
#pragma once

#include <optional>

#include "convert/partition.h"
#include "moe/layer.h"

namespace moe {

struct Carving {
  Run& run;
  const CarveOptions& options;
  SliceShape shape;
  int64_t active;  // A
  RngKey key;      // of this layer
  ExpertBank& dense;
  Activations a;  // of the dense FFN, at the inputs that the carved model gives this layer; lives
                  // in run.saved
  MoeLayer& carved;  // its parameters are what the stages write
  const Pass& pass;  // of the carved model over the text
  // Where a stage follows the dense model (CarveStages::follows_dense); else empty.
  Tensor target =
      {};  // [N,D] f32 what this layer has to give for the residual stream to become the dense one
  // [N] 1 / mean square of the dense stream after this layer, their mean 1
  std::vector<float> token_weight = {};
  Partition partition = {};  // made by the first stage
  std::optional<Marks> known_marks = {};

  int64_t tokens() const { return a.tokens(); }
  // The carved layer over the text: y [N,D] f32, and `see` is told of pieces of whole windows in
  // turn, of which `first` is the first token.
  void forward(Tensor y, const std::function<void(int64_t first, const MoeLayer::Saved&)>& see);
  const Marks& marks();  // made when first asked for
};

// ---- first: who goes where ----------------------------------------------------------------------
void by_marks(Carving&);
void by_weights(Carving&);
void by_chance(Carving&);
void by_energy(Carving&);
// Every neuron is an expert (sketch.cpp).
void by_itself(Carving&);

// Copies the dense rows and columns into the experts; a bias after `down` goes to the shared
// expert, or in A-th parts to the others.
void write_slices(Carving&);

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

// ---- third: what the experts give ---------------------------------------------------------------
void no_fit(Carving&);
// `down` and a bias of each expert by least squares (refit.cpp).
void refit(Carving&);

// ---- the tables (carve_methods.cpp) -------------------------------------------------------------
struct CarveStage {
  std::string_view name;
  void (*run)(Carving&);
  bool follows_dense = false;
};
struct RouterStage {
  std::string_view name;
  void (*run)(Carving&);
  std::string_view recipe;  // whose router it writes (moe/recipes/recipes.h)
  bool follows_dense = false;
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
SketchBytes sketch_bytes(const ModelConfig& dense, DType weights);
// How many neurons a token may take where it reads this share of the FFN's bytes, the sketch among
// them; below 1 where the sketch alone is more.
int64_t neurons_for(const ModelConfig& dense, DType weights, double budget);

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
