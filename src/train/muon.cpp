#include "train/muon.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "model/parameters.h"

namespace moe {
namespace {

constexpr ops::NewtonSchulz kStep{3.4445f, -4.7750f, 2.0315f};
constexpr std::array<ops::NewtonSchulz, 5> kSteps{kStep, kStep, kStep, kStep, kStep};

}  // namespace

bool takes_muon(const Param& param, const TrainOptions& options) {
  return options.optimizer == OptimizerKind::muon && tunes_whole(options.tune, param.part) &&
         is_hidden_matrix(param);
}

void orthogonalise(Run& run, ops::List<Tensor> all) { ops::newton_schulz(run, all, kSteps); }

float muon_scale(int64_t rows, int64_t cols) {
  return static_cast<float>(0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))));
}

}  // namespace moe
