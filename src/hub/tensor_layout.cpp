#include "hub/tensor_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"

namespace moe {
namespace {

constexpr std::string_view kLayer = "{i}", kExpert = "{e}", kWhich = "{w}", kPart = "{p}",
                           kGated = "{g}", kHalf = "{h}", kOfTwo = "{s}", kZero = "{z}";

template <class T>
std::string filled(std::string_view pattern, std::string_view hole, const T& what) {
  const size_t at = pattern.find(hole);
  if (at == std::string_view::npos) return std::string(pattern);
  return fmt::format("{}{}{}", pattern.substr(0, at), what, pattern.substr(at + hole.size()));
}

std::string name_in_file(const NameRow& row, const Param& param, const ModelConfig& config) {
  const bool gated = param.layer >= 0 && config.norm_gate > 0 && config.is_moe(param.layer);
  const std::string named =
      filled(name_of_layer(row.file, param.layer), kGated, gated ? ".norm" : "");
  return filled(named, kWhich, param.is_bias() ? "bias" : "weight");
}

// Joins a piece to the tensor of this name, `dim` being the dimension along which pieces follow
// each other.
void join(std::vector<FileTensor>& map, const std::string& name, const std::vector<int64_t>& shape,
          size_t dim, const FileTensor::Piece& piece) {
  const auto open =
      std::find_if(map.begin(), map.end(), [&](const FileTensor& t) { return t.name == name; });
  if (open == map.end()) {
    map.push_back({.name = name, .shape = shape, .pieces = {piece}, .columns = dim == 1});
    return;
  }
  open->shape[dim] += shape[dim];
  open->pieces.push_back(piece);
}

// The same of a bank, expert by expert: each expert's piece behind those that it has there already.
void join_experts(std::vector<FileTensor>& map, const std::string& name,
                  const std::vector<int64_t>& shape, size_t dim, FileTensor::Piece piece) {
  auto tensor =
      std::find_if(map.begin(), map.end(), [&](const FileTensor& t) { return t.name == name; });
  if (tensor == map.end()) {
    map.push_back({.name = name, .shape = shape, .pieces = {}});
    tensor = map.end() - 1;
  } else {
    tensor->shape[dim] += shape[dim];
  }
  const int64_t before = static_cast<int64_t>(tensor->pieces.size()) / shape[0];
  for (piece.expert = 0; piece.expert < shape[0]; ++piece.expert)
    tensor->pieces.insert(tensor->pieces.begin() + ((piece.expert + 1) * (before + 1) - 1), piece);
}

// Of linear attention a key head's queries, keys, values and gates follow each other; and so do its
// value heads' strengths and decays.
RowOrder order_of_linear(ParamKind kind, const LinearAttention& l) {
  const int64_t group = l.value_heads / l.key_heads, k = l.key_width, v = group * l.value_width,
                all = 2 * (k + v);
  switch (kind) {
    case ParamKind::linear_q: return {.head = k, .apart = all};
    case ParamKind::linear_k: return {.head = k, .apart = all, .before = k};
    case ParamKind::linear_v: return {.head = v, .apart = all, .before = 2 * k};
    case ParamKind::linear_z: return {.head = v, .apart = all, .before = 2 * k + v};
    case ParamKind::linear_b: return {.head = group, .apart = 2 * group};
    default: return {.head = group, .apart = 2 * group, .before = group};
  }
}

// llama.cpp has value heads the other way round where it repeats keys as a whole (github
// ggml-org/llama.cpp conversion/qwen.py).
RowOrder tiled_order(ParamKind kind, const LinearAttention& l) {
  const int64_t each = l.value_heads / l.key_heads;
  if (each == 1) return {};
  const bool of_heads = kind == ParamKind::linear_b || kind == ParamKind::linear_a ||
                        kind == ParamKind::linear_dt_bias || kind == ParamKind::linear_a_log;
  return {.head = of_heads ? 1 : l.value_width,
          .groups = l.key_heads,
          .each = each,
          .begin = kind == ParamKind::linear_conv ? 2 * l.k_width() : 0};
}

FileTensor::Piece tiled_piece(Param& param, const LinearAttention& l) {
  FileTensor::Piece piece{.param = &param};
  (param.kind == ParamKind::linear_o ? piece.columns : piece.order) = tiled_order(param.kind, l);
  if (param.kind == ParamKind::linear_a_log) piece.change = FileTensor::Piece::Change::minus_exp;
  return piece;
}

// Of the channels of a convolution of queries, keys and values those in each of three tensors.
std::array<std::pair<std::string_view, FileTensor::Piece::Rows>, 3> parts_of_channels(
    Layout layout, const LinearAttention& l) {
  const int64_t third = (l.channels() + 2) / 3,
                each = layout == Layout::channels_cut ? third : l.k_width();
  return {{{"q", {0, each}}, {"k", {each, each}}, {"v", {2 * each, l.channels() - 2 * each}}}};
}

RowOrder order_of(const NameRow& row, const Param& param, const ModelConfig& config) {
  const AttentionShape shape = config.attention(0);
  // Latents share what turns where anything does: pairs stand so in layers without turning too.
  const int64_t width = shape.key_width,
                turning = shape.latent.present() && !shape.latent.shared ? shape.shared_width
                                                                         : shape.rotary_width,
                own = width - turning;
  switch (row.layout) {
    case Layout::fused_paired:
    case Layout::paired:  // layers in which nothing turns are as the others
      return {.head = width,
              .turning = config.rotary_width > 0 ? config.rotary_width : width,
              .paired = true};
    case Layout::swapped:
      return {.head = width,
              .turning = config.rotary_width > 0 ? config.rotary_width : width,
              .swapped = true};
    case Layout::index_rotary_last:
    case Layout::index_columns_last:
      return {.head = config.light.width, .turning = turning, .paired = true, .last = true};
    case Layout::columns_last:
    case Layout::bank_turned_rows:
    case Layout::rotary_last:
      return {.head = width, .turning = turning, .paired = true, .last = true};
    case Layout::halves_last: return {.head = width, .turning = turning, .last = true};
    case Layout::index_last: return {.head = shape.index_width, .turning = turning, .last = true};
    case Layout::index_pairs_last:
      return {.head = shape.index_width, .turning = turning, .paired = true, .last = true};
    case Layout::rotary_first:
      return {.head = shape.index_width, .turning = turning, .paired = true};
    case Layout::fused_rotary: return {.head = turning, .turning = turning, .paired = true};
    case Layout::fused_heads:
      return param.kind == ParamKind::k_b
                 ? RowOrder{.head = own, .apart = own + shape.value_width}
                 : RowOrder{
                       .head = shape.value_width, .apart = own + shape.value_width, .before = own};
    case Layout::qkv_heads: {
      const bool q = param.kind == ParamKind::q || param.kind == ParamKind::lightning_q,
                 k = param.kind == ParamKind::k || param.kind == ParamKind::lightning_k;
      return {.head = width, .apart = 3 * width, .before = q ? 0 : k ? width : 2 * width};
    }
    case Layout::gated_heads:
      return {
          .head = width, .apart = 2 * width, .before = param.kind == ParamKind::o_gate ? width : 0};
    case Layout::gated_latent_heads: {
      const int64_t both = width + shape.value_width;
      return param.kind == ParamKind::o_gate
                 ? RowOrder{.head = shape.value_width, .apart = both, .before = width}
                 : RowOrder{.head = width,
                            .turning = turning,
                            .paired = true,
                            .last = true,
                            .apart = both};
    }
    case Layout::linear_heads: return order_of_linear(param.kind, config.linear);
    case Layout::interleaved_experts:
    case Layout::interleaved_apart:
      return {.head = 1, .apart = 2, .before = param.kind == ParamKind::up ? 1 : 0};
    case Layout::stacked_experts: {
      const int64_t f = param.whole().shape[1];
      return {.head = f, .apart = 2 * f, .before = param.kind == ParamKind::up ? f : 0};
    }
    default: return {};
  }
}

// Of a tensor of this layout, which holds a parameter of this shape alone or a part of it; `turns`:
// it is of matrices, not of biases.
std::vector<int64_t> shape_in_file(Layout layout, std::vector<int64_t> shape, bool turns,
                                   const ModelConfig& config) {
  const auto turned = [&] {
    if (turns) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    return shape;
  };
  switch (layout) {
    case Layout::transposed:
    case Layout::fused_columns:
    case Layout::interleaved_experts:
    case Layout::stacked_experts: return turned();
    case Layout::transposed_one: shape.erase(shape.begin()); return turned();
    case Layout::per_expert:
    case Layout::bank_of_one:
    case Layout::fused_of_one:
    case Layout::interleaved_apart: shape.erase(shape.begin()); return shape;
    case Layout::bias_rows:
    case Layout::as_channels: shape.insert(shape.begin() + 1, 1); return shape;
    case Layout::as_row: shape.insert(shape.begin(), 1); return shape;
    case Layout::as_column:
    case Layout::exp_rows:
    case Layout::minus_exp_rows: shape.push_back(1); return shape;
    case Layout::as_states: return {1, 1, shape[0], 1};
    case Layout::as_groups: return {config.scan.groups, shape[0] / config.scan.groups};
    case Layout::bank_rows:
    case Layout::bank_turned_rows: return {shape[0] * shape[1], shape[2]};
    case Layout::bank_columns: return {shape[0] * shape[2], shape[1]};
    case Layout::by_head: return {config.heads, shape[0] / config.heads, shape[1]};
    case Layout::by_head_transposed: return {config.heads, shape[1], shape[0] / config.heads};
    default: return shape;
  }
}

}  // namespace

std::string name_of_layer(std::string_view pattern, int64_t layer) {
  return filled(filled(filled(pattern, kLayer, layer), kHalf, layer / 2), kOfTwo, layer % 2);
}

std::vector<std::string> names_of_all(std::string_view pattern, const ModelConfig& config) {
  const auto has = [&](std::string_view hole) {
    return pattern.find(hole) != std::string_view::npos;
  };
  if (!has(kLayer) && !has(kHalf)) return {std::string(pattern)};
  std::vector<std::string> names;
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string of_layer = name_of_layer(pattern, i);
    if (!has(kZero)) names.push_back(of_layer);
    else if (config.is_moe(i))
      for (int64_t e = config.routing.experts; e < config.routing.scored(); ++e)
        names.push_back(filled(of_layer, kZero, e));
  }
  return names;
}

std::vector<int64_t> shape_of(const Tensor& t) {
  return {t.shape.begin(), t.shape.begin() + t.rank};
}

const NameRow& row_of(const TensorNames& names, const Param& param) {
  for (const std::span<const NameRow> rows : {names.rows, names.otherwise})
    for (const NameRow& row : rows) {
      const bool of_both = row.file.find(kWhich) != std::string_view::npos;
      if (row.part == param.part && row.kind == param.kind &&
          (of_both || row.bias == param.is_bias()))
        return row;
    }
  fail("{} has no tensor name for parameter \"{}\" ({})", names.title, param.name,
       describe(param.value));
}

// How a parameter lies where the file has it, alone or in a part of a tensor.
FileTensor::Piece piece_of(const NameRow& row, Param& param, const ModelConfig& config) {
  using Change = FileTensor::Piece::Change;
  if (row.layout == Layout::tiled) return tiled_piece(param, config.linear);
  FileTensor::Piece piece{.param = &param};
  const RowOrder order = order_of(row, param, config);
  switch (row.layout) {
    case Layout::bank_turned_rows:
    case Layout::columns_last:
    case Layout::index_columns_last: piece.columns = order; return piece;
    case Layout::bank_of_one:
    case Layout::fused_of_one: piece.expert = 0; break;
    case Layout::bank_columns: piece.transpose = true; break;
    case Layout::transposed_one: piece.expert = 0; [[fallthrough]];
    case Layout::transposed:
    case Layout::fused_columns:
    case Layout::interleaved_experts:
    case Layout::stacked_experts: piece.transpose = param.is_matrix(); break;
    case Layout::by_head_transposed: piece.transpose = true; [[fallthrough]];
    case Layout::by_head: piece.heads = config.heads; break;
    case Layout::plus_one: piece.change = Change::plus_one; break;
    case Layout::exp_rows: piece.change = Change::exp; break;
    case Layout::minus_exp_rows:
    case Layout::minus_exp: piece.change = Change::minus_exp; break;
    default: break;
  }
  piece.order = order;
  return piece;
}

void add_piece(std::vector<FileTensor>& map, const NameRow& row, Param& param,
               const ModelConfig& config) {
  const std::string name = name_in_file(row, param, config);
  const bool turns = param.is_matrix();
  const std::vector<int64_t> shape =
      shape_in_file(row.layout, shape_of(param.whole()), turns, config);
  FileTensor::Piece piece = piece_of(row, param, config);
  const auto alone = [&] { map.push_back({.name = name, .shape = shape, .pieces = {piece}}); };
  switch (row.layout) {
    case Layout::same:
    case Layout::bias_rows:
    case Layout::as_row:
    case Layout::as_column:
    case Layout::as_groups:
    case Layout::as_channels:
    case Layout::as_states:
    case Layout::bank_rows:
    case Layout::bank_of_one:
    case Layout::bank_columns:
    case Layout::bank_turned_rows:
    case Layout::transposed:
    case Layout::transposed_one:
    case Layout::plus_one:
    case Layout::exp_rows:
    case Layout::minus_exp_rows:
    case Layout::minus_exp:
    case Layout::columns_last:
    case Layout::index_columns_last:
    case Layout::by_head:
    case Layout::by_head_transposed:
    case Layout::paired:
    case Layout::swapped:
    case Layout::halves_last:
    case Layout::index_last:
    case Layout::index_pairs_last:
    case Layout::rotary_first:
    case Layout::index_rotary_last:
    case Layout::rotary_last: return alone();
    case Layout::as_number:
      alone();
      map.back().number = true;
      return;
    case Layout::tiled:
      return param.kind == ParamKind::linear_v ? join(map, name, shape, 0, piece) : alone();
    case Layout::per_expert:
      for (piece.expert = 0; piece.expert < param.whole().shape[0]; ++piece.expert)
        map.push_back(
            {.name = filled(name, kExpert, piece.expert), .shape = shape, .pieces = {piece}});
      return;
    case Layout::interleaved_apart:
      for (piece.expert = 0; piece.expert < param.whole().shape[0]; ++piece.expert)
        join(map, filled(name, kExpert, piece.expert), shape, 0, piece);
      return;
    case Layout::channels_apart:
    case Layout::channels_cut:
      for (const auto& [which, rows] : parts_of_channels(row.layout, config.linear)) {
        piece.rows = rows;
        map.push_back({.name = filled(name, kPart, which),
                       .shape = {rows.count, 1, shape[1]},
                       .pieces = {piece}});
      }
      return;
    case Layout::fused:
    case Layout::fused_of_one:
    case Layout::fused_rotary:
    case Layout::fused_paired:
    case Layout::fused_heads:
    case Layout::qkv_heads:
    case Layout::gated_heads:
    case Layout::gated_latent_heads:
    case Layout::linear_heads: return join(map, name, shape, 0, piece);
    case Layout::fused_columns: return join(map, name, shape, turns ? 1 : 0, piece);
    case Layout::fused_experts: return join_experts(map, name, shape, 1, piece);
    case Layout::interleaved_experts:
    case Layout::stacked_experts: return join_experts(map, name, shape, shape.size() - 1, piece);
  }
}

int64_t RowOrder::file_row(int64_t model_row) const {
  if (as_in_model() || model_row < begin) return model_row;
  if (groups > 0) {
    const int64_t at = model_row - begin, which = at / head;
    return begin + (which % each * groups + which / each) * head + at % head;
  }
  int64_t r = model_row % head;
  if (r < turning) {
    const int64_t half = turning / 2;
    if (paired) r = r < half ? 2 * r : 2 * (r - half) + 1;
    if (swapped) r = (r + half) % turning;
    if (last) r += head - turning;
  } else if (last) {
    r -= turning;
  }
  return model_row / head * (apart > 0 ? apart : head) + before + r;
}

int64_t RowOrder::model_row(int64_t file_row) const {
  if (as_in_model() || file_row < begin) return file_row;
  if (groups > 0) {
    const int64_t at = file_row - begin, which = at / head;
    return begin + (which % groups * each + which / groups) * head + at % head;
  }
  const int64_t stride = apart > 0 ? apart : head;
  int64_t r = file_row % stride - before;
  const int64_t turns = last ? r - (head - turning) : r;  // which of those that turn
  if (turns >= 0 && turns < turning)
    r = paired    ? turns / 2 + (turns % 2 == 1 ? turning / 2 : 0)
        : swapped ? (turns + turning / 2) % turning
                  : turns;
  else if (last) r += turning;
  return file_row / stride * head + r;
}

}  // namespace moe
