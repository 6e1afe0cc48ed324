// Files whose weights hold what a config multiplies them by, as llama.cpp's of Falcon-H1 do (github
// ggml-org/llama.cpp, conversion/falcon_h1.py). The factors are those of the model that is written:
// one that such a file was read into has none.
#include <cmath>

#include "hub/tensor_layout.h"

namespace moe {
namespace {

// A factor of scores goes into the keys.
float folded_factor(const Param& param, const ModelConfig& c) {
  const Multipliers& m = c.multipliers;
  if (param.part == Part::embedding) return m.embedding;
  if (param.part == Part::lm_head) return 1 / m.logits;
  switch (param.kind) {
    case ParamKind::gate: return m.ffn_gate;
    case ParamKind::down: return m.ffn_down;
    case ParamKind::k:
      return m.attention > 0 ? m.attention * std::sqrt(static_cast<float>(c.head_width)) : 1;
    case ParamKind::o: return m.attention_out;
    case ParamKind::scan_z: return m.scan_in[0];
    case ParamKind::scan_xbc: return m.scan_in[1];  // of its first rows
    case ParamKind::scan_dt: return m.scan_in[4];
    case ParamKind::scan_o: return m.scan_out;
    default: return 1;
  }
}

// A state space's values, what writes and what reads its states, one behind another.
void fold_scan(std::vector<FileTensor::Piece>& pieces, size_t at, const ModelConfig& c) {
  const std::array<float, 5>& in = c.multipliers.scan_in;
  if (in[1] == in[2] && in[2] == in[3]) return;
  const int64_t values = c.scan.values(), each = c.scan.groups * c.scan.states;
  FileTensor::Piece writing = pieces[at], reading = pieces[at];
  pieces[at].rows = {0, values};
  writing.rows = {values, each};
  writing.factor = in[2];
  reading.rows = {values + each, each};
  reading.factor = in[3];
  pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(at) + 1, {writing, reading});
}

}  // namespace

void fold_multipliers(std::vector<FileTensor>& map, const ModelConfig& c) {
  for (FileTensor& tensor : map)
    for (size_t i = 0; i < tensor.pieces.size(); ++i) {
      FileTensor::Piece& piece = tensor.pieces[i];
      if (piece.rows.count > 0) continue;  // was cut off the one before
      piece.factor = tensor.alias ? 1 / c.multipliers.logits : folded_factor(*piece.param, c);
      if (piece.param->kind == ParamKind::scan_xbc) fold_scan(tensor.pieces, i, c);
    }
}

}  // namespace moe
