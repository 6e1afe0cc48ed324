// The walk over a model's parameters that makes the map, and the two directions of every layout.
#include "hub/tensor_map.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/nearest.h"

namespace moe {
namespace {

// "layers.{i}.norm1.weight" against "layers.12.norm1.weight": 12; -1 for a name without a layer; nothing when they differ.
std::optional<int64_t> match(std::string_view pattern, std::string_view name) {
  const size_t hole = pattern.find("{i}");
  if (hole == std::string_view::npos) return pattern == name ? std::optional<int64_t>(-1) : std::nullopt;
  const std::string_view head = pattern.substr(0, hole), tail = pattern.substr(hole + 3);
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
  const std::string_view digits = name.substr(head.size(), name.size() - head.size() - tail.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return layer;
}

std::string filled(std::string_view pattern, std::string_view hole, int64_t number) {
  const size_t at = pattern.find(hole);
  if (at == std::string_view::npos) return std::string(pattern);
  return fmt::format("{}{}{}", pattern.substr(0, at), number, pattern.substr(at + hole.size()));
}

std::vector<int64_t> shape_of(const Tensor& t) { return {t.shape.begin(), t.shape.begin() + t.rank}; }

const NameRow& row_of(const Architecture& architecture, const ModelConfig& config, const Param& param, int64_t& layer) {
  for (const NameRow& row : architecture.names) {
    const auto found = match(row.ours, param.name);
    if (!found) continue;
    if (row.layers != Layers::all && config.is_moe(*found) != (row.layers == Layers::moe)) continue;
    layer = *found;
    return row;
  }
  fail("{} has no tensor name for parameter \"{}\" ({})", architecture.title, param.name, describe(param.value));
}

void add_part(std::vector<FileTensor>& map, const NameRow& row, const std::string& name, Param& param) {
  const Tensor& value = param.value;
  std::vector<int64_t> shape = shape_of(value);
  switch (row.layout) {
    case Layout::same: map.push_back({name, shape, {{&param, value}}}); return;
    case Layout::per_expert:
      shape.erase(shape.begin());
      for (int64_t e = 0; e < value.shape[0]; ++e) map.push_back({filled(name, "{e}", e), shape, {{&param, value.at(e)}}});
      return;
    case Layout::bank_of_one:
      shape.erase(shape.begin());
      map.push_back({name, shape, {{&param, value.at(0)}}});
      return;
    case Layout::transposed:
      std::swap(shape[1], shape[2]);
      map.push_back({name, shape, {{&param, value, true}}});
      return;
    case Layout::bias_rows: map.push_back({name, {shape[0], 1, shape[1]}, {{&param, value}}}); return;
    case Layout::fused: {
      const auto open = std::find_if(map.begin(), map.end(), [&](const FileTensor& t) { return t.name == name; });
      if (open == map.end()) {
        map.push_back({name, shape, {{&param, value}}});
        return;
      }
      open->shape[0] += shape[0];
      open->parts.push_back({&param, value});
    }
  }
}

// to [cols,rows] = from [rows,cols] transposed, load(i) being element i of `from`.
template <class Load>
void transpose(float* to, int64_t rows, int64_t cols, Load&& load) {
  constexpr int64_t kBlock = 32;  // both sides of a block stay in L1
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (int64_t c0 = 0; c0 < cols; c0 += kBlock)
      for (int64_t c = c0; c < std::min(c0 + kBlock, cols); ++c)
        for (int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r) to[c * rows + r] = load(r * cols + c);
}

// Calls f(load) with load(i) = element i of the dense tensor as f32.
template <class F>
void with_loader(const Tensor& t, F&& f) {
  const void* data = t.data;
  switch (t.dtype) {
    case DType::f32: return f([p = static_cast<const float*>(data)](int64_t i) { return p[i]; });
    case DType::bf16: return f([p = static_cast<const bf16*>(data)](int64_t i) { return to_f32(p[i]); });
    case DType::f16: return f([p = static_cast<const uint16_t*>(data)](int64_t i) { return f16_to_f32(p[i]); });
    case DType::i32: break;  // refused by check_account
  }
}

// One part's numbers, which begin at element `begin` of the file's tensor, into `to` in the parameter's order.
void read_part(float* to, const FileTensor::Part& part, const Tensor& file, int64_t begin) {
  const int64_t n = part.value.numel();
  with_loader(file, [&](auto load) {
    if (!part.transpose) {
      for (int64_t i = 0; i < n; ++i) to[i] = load(begin + i);
      return;
    }
    const int64_t rows = part.value.shape[2], cols = part.value.shape[1], each = rows * cols;
    for (int64_t e = 0; e < part.value.shape[0]; ++e) transpose(to + e * each, rows, cols, [&](int64_t i) { return load(begin + e * each + i); });
  });
}

// The tensor as the file has it, in `buffer`.
Tensor gathered(const FileTensor& tensor, std::vector<float>& buffer) {
  buffer.clear();
  for (const FileTensor::Part& part : tensor.parts) {
    const float* from = part.value.as<float>();
    const size_t begin = buffer.size(), n = static_cast<size_t>(part.value.numel());
    buffer.resize(begin + n);
    if (!part.transpose) {
      std::copy_n(from, n, buffer.data() + begin);
      continue;
    }
    const int64_t rows = part.value.shape[1], cols = part.value.shape[2], each = rows * cols;
    for (int64_t e = 0; e < part.value.shape[0]; ++e)
      transpose(buffer.data() + begin + static_cast<size_t>(e * each), rows, cols, [&](int64_t i) { return from[e * each + i]; });
  }
  return Tensor(buffer.data(), DType::f32, {static_cast<int64_t>(buffer.size())});
}

Tensor shaped(Tensor t, const std::vector<int64_t>& shape) {
  switch (shape.size()) {
    case 1: return t.reshape({shape[0]});
    case 2: return t.reshape({shape[0], shape[1]});
    default: return t.reshape({shape[0], shape[1], shape[2]});
  }
}

void check_shape(const FileTensor& want, const Tensor& got, const std::string& path) {
  if (got.dtype == DType::i32) fail("{}: tensor \"{}\" is {}; weights must be f32, bf16 or f16", path, want.name, describe(got));
  std::vector<int64_t> shape = shape_of(got);
  if (shape == want.shape) return;
  std::string hint;
  if (shape.size() >= 2 && shape.size() == want.shape.size()) {
    std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    if (shape == want.shape) hint = "; it looks transposed";
  }
  fail("{}: tensor \"{}\" is {}, config.json asks for [{}]{}", path, want.name, describe(got), fmt::join(want.shape, ", "), hint);
}

void check_alias(const FileTensor& alias, const NamedTensors& file) {
  const Tensor& truth = alias.parts[0].value;
  std::vector<float> copy(static_cast<size_t>(truth.numel()));
  read_part(copy.data(), alias.parts[0], file.get(alias.name), 0);
  if (std::memcmp(copy.data(), truth.data, static_cast<size_t>(truth.bytes())) != 0)
    fail("{}: \"{}\" differs from the embedding, though config.json says \"tie_word_embeddings\": true", file.path(), alias.name);
}

}  // namespace

std::vector<FileTensor> map_tensors(const Architecture& architecture, Model& model) {
  std::vector<FileTensor> map;
  for (Param* param : model.params()) {
    int64_t layer = -1;
    const NameRow& row = row_of(architecture, model.config(), *param, layer);
    add_part(map, row, filled(row.file, "{i}", layer), *param);
  }
  if (model.config().tied) {
    Param& embedding = model.head_weight();
    map.push_back({std::string(kTiedHeadName), shape_of(embedding.value), {{&embedding, embedding.value}}, true});
  }
  return map;
}

// The sizes of Model's parameters, added up as its constructor makes them.
double parameter_count(const ModelConfig& c) {
  const auto d = static_cast<double>(c.width), q = static_cast<double>(c.q_width()), kv = static_cast<double>(c.kv_width());
  const double norm = d * (c.norm_bias && c.norm == NormKind::layer ? 2 : 1);
  const auto bank = [&](double experts, double f) {
    const double projections = c.gated ? 2 : 1;
    return experts * ((projections + 1) * d * f + (c.ffn_bias ? projections * f + d : 0));
  };
  double attention = 2 * d * q + 2 * d * kv + (c.attention_bias ? q + 2 * kv : 0) + (c.attention_out_bias ? d : 0);
  if (c.qk_norm != QkNorm::none) attention += c.qk_norm == QkNorm::full ? q + kv : 2 * static_cast<double>(c.head_width);
  const auto moe_layers = static_cast<double>(c.moe_layer_count()), layers = static_cast<double>(c.layers);
  double total = static_cast<double>(c.vocab) * d * (c.tied ? 1 : 2) + layers * (2 * norm + attention) +
                 (layers - moe_layers) * bank(1, static_cast<double>(c.dense_width));
  if (c.positions == Positions::learned) total += static_cast<double>(c.context) * d;
  if (c.norm_placement == NormPlacement::pre) total += norm;
  if (moe_layers == 0) return total;
  const auto experts = static_cast<double>(c.routing.experts);
  const RoutingSpec spec = train_spec(c.routing);
  const int matrices = (needs_logits(spec.select) ? 1 : 0) + (std::holds_alternative<LearnedNoise>(spec.noise) ? 1 : 0);
  const int buffers = (selection_bias(spec.select) ? 1 : 0) + (experts_choose(spec.select) ? 1 : 0);
  double each = experts * (d * matrices + buffers) + bank(experts, static_cast<double>(c.expert_width));
  if (c.shared_experts > 0) each += bank(1, static_cast<double>(c.shared_experts) * static_cast<double>(c.shared_width)) + (c.shared_gate ? d : 0);
  return total + moe_layers * each;
}

void check_account(const std::vector<FileTensor>& map, const NamedTensors& file) {
  std::set<std::string_view> known;
  for (const FileTensor& tensor : map) known.insert(tensor.name);
  std::vector<std::string> unused;
  for (const NamedTensor& tensor : file.tensors())
    if (!known.contains(tensor.name)) unused.push_back(tensor.name);
  for (const FileTensor& tensor : map) {
    if (file.contains(tensor.name)) continue;
    if (!tensor.alias) fail("{}: there is no tensor \"{}\", which config.json asks for{}", file.path(), tensor.name, suggestion(tensor.name, unused, 0));
  }
  if (!unused.empty())
    fail("{}: tensor \"{}\" is no part of the model that config.json describes{}", file.path(), printable(unused[0]),
         unused.size() > 1 ? fmt::format(", nor are {} others", unused.size() - 1) : "");
  for (const FileTensor& tensor : map)
    if (file.contains(tensor.name)) check_shape(tensor, file.get(tensor.name), file.path());
}

void read_tensors(const std::vector<FileTensor>& map, const NamedTensors& file) {
  for (const FileTensor& tensor : map) {
    if (tensor.alias) continue;
    const Tensor source = file.get(tensor.name);
    int64_t at = 0;
    for (const FileTensor::Part& part : tensor.parts) {
      read_part(part.value.as<float>(), part, source, at);
      at += part.value.numel();
    }
  }
  for (const FileTensor& tensor : map)
    if (tensor.alias && file.contains(tensor.name)) check_alias(tensor, file);
}

std::vector<SafetensorsItem> items_of(const std::vector<FileTensor>& map, DType dtype, bool with_alias) {
  const auto buffer = std::make_shared<std::vector<float>>();
  std::vector<SafetensorsItem> items;
  for (const FileTensor& tensor : map) {
    if (tensor.alias && !with_alias) continue;
    // Buffers take steps too small for bf16.
    const DType kept = tensor.parts[0].param->is_trained() ? dtype : DType::f32;
    SafetensorsItem& item = items.emplace_back(SafetensorsItem{.name = tensor.name, .value = {}, .dtype = kept});
    if (tensor.parts.size() == 1 && !tensor.parts[0].transpose) {
      item.value = shaped(tensor.parts[0].value, tensor.shape);
      continue;
    }
    item.value.rank = static_cast<int>(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), item.value.shape.begin());
    item.produce = [tensor, buffer] { return shaped(gathered(tensor, *buffer), tensor.shape); };
  }
  return items;
}

}  // namespace moe
