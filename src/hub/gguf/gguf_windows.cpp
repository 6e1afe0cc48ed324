// Windows and numbers of heads that keys say layer by layer (github ggml-org/llama.cpp,
// src/models/mimo2.cpp, laguna.cpp and gemma4.cpp), and what else MiMo and Laguna have of their
// own.
#include <algorithm>

#include "hub/gguf/gguf_keys.h"

namespace moe {
namespace {

constexpr const char *kListedHeads = "attention.head_count",
                     *kListedWindow = "attention.sliding_window",
                     *kListedWindows = "attention.sliding_window_pattern",
                     *kListedKeyWidth = "attention.key_length",
                     *kListedValueWidth = "attention.value_length",
                     *kListedTurning = "rope.dimension_count",
                     *kWindowsTurning = "rope.dimension_count_swa",
                     *kWindowsBase = "rope.freq_base_swa", *kValueFactor = "attention.value_scale";
constexpr int64_t kLagunaFullEvery = 4;

// By true and false, by 1 and 0, or by a number.
std::vector<bool> window_flags(GgufKeys& keys, const ModelConfig& c, int64_t every) {
  std::vector<bool> flags;
  if (keys.holds<std::vector<int64_t>>(kListedWindows)) {
    for (const int64_t n : listed_by_layers(keys.integers(kListedWindows), keys, kListedWindows))
      flags.push_back(n != 0);
    return flags;
  }
  if (every == 0 || keys.holds<std::vector<bool>>(kListedWindows))
    return listed_by_layers(keys.flags(kListedWindows), keys, kListedWindows);
  const int64_t said = keys.size_or(kListedWindows, 2, every);
  for (int64_t i = 0; i < c.layers; ++i) flags.push_back(i % said != 0);
  return flags;
}

// A layer has sinks where the file has some.
void read_listed_sinks(const Gguf& file, ModelConfig& c) {
  int64_t with = 0;
  bool windows_alone = true;
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool has = file.contains(fmt::format("blk.{}.attn_sinks.weight", i));
    with += has;
    windows_alone = windows_alone && has == c.has_window(i);
  }
  c.attention_sinks = with > 0;
  c.window_sinks = with > 0 && windows_alone;
  if (with > 0 && with < c.layers && !windows_alone)
    fail(
        "{}: {} layers of {} have a tensor \"blk.{{i}}.attn_sinks.weight\"; all layers have one "
        "here, those with a window alone, or none",
        file.path(), with, c.layers);
}

void read_listed_values(const Gguf& file, GgufKeys& keys, ModelConfig& c) {
  const int64_t values = keys.size(kListedValueWidth, 1);
  if (values != c.head_width) c.value_width = values;
  c.value_factor = keys.number_or(kValueFactor, FLT_MIN, 1);
  read_listed_sinks(file, c);
}

// Gates are as many as a layer's heads, or as the numbers that these give.
void read_listed_gates(const Gguf& file, GgufKeys& keys, ModelConfig& c) {
  keys.need_number(kListedValueWidth, static_cast<double>(c.head_width),
                   "values are as wide as keys");
  c.gate_softplus = true;
  c.head_gates = file.get("blk.0.attn_gate.weight").rows() == c.attention(0).heads;
}

// How much of a head turns, in layers without a window and with one.
void read_listed_turning(GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  const int64_t turning =
      keys.has(kListedTurning) ? keys.size(kListedTurning, 2, c.head_width) : c.head_width;
  c.rotary_width = turning < c.head_width ? turning : 0;
  if (!row.window_local) {  // converters write both of layers that the model has none of
    for (const char* key : {kWindowsTurning, kWindowsBase}) keys.ignore(key);
    return;
  }
  if (row.mimo)
    return keys.need_number(kWindowsTurning, static_cast<double>(turning),
                            "in all layers as much of a head turns");
  const int64_t windows =
      keys.has(kWindowsTurning) ? keys.size(kWindowsTurning, 2, c.head_width) : turning;
  if (windows != turning) c.window_rotary_width = windows;
}

}  // namespace

void read_window_layers(GgufKeys& keys, ModelConfig& c, int64_t every) {
  c.attention_window = keys.size(kListedWindow, 1);
  const std::vector<bool> flags = window_flags(keys, c, every);
  for (int64_t i = 0; i < c.layers; ++i)
    if (flags[static_cast<size_t>(i)]) c.window_layers.push_back(i);
  if (c.window_layers.empty() || std::ssize(c.window_layers) == c.layers)
    fail("{}: by key \"{}\" {} layers of {} have a window; some have one and some none",
         keys.where(), keys.name(kListedWindows), c.window_layers.size(), c.layers);
}

HeadsByWindow read_heads_by_window(GgufKeys& keys, const ModelConfig& c, const char* key) {
  if (!keys.holds<std::vector<int64_t>>(key)) return {.heads = keys.size(key, 1)};
  const std::vector<int64_t>& heads = listed_by_layers(keys.integers(key), keys, key);
  int64_t of[2] = {0, 0};
  for (int64_t i = 0; i < c.layers; ++i) {
    int64_t& wanted = of[c.has_window(i) ? 1 : 0];
    const int64_t n = heads[static_cast<size_t>(i)];
    if (n < 1 || n >= int64_t{1} << 24 || (wanted != 0 && n != wanted))
      fail("{}: key \"{}\" has {} at layer {}; layers of a kind are alike here, and have some",
           keys.where(), keys.name(key), n, i);
    wanted = n;
  }
  if (of[1] == 0) return {.heads = of[0]};
  return {.heads = of[1], .full = of[0] != of[1] ? of[0] : 0};
}

void read_listed(const Gguf& file, GgufKeys& keys, const GgufArchitecture& row, ModelConfig& c) {
  if (row.window_local) read_window_layers(keys, c, row.laguna ? kLagunaFullEvery : 0);
  else keys.ignore(kListedWindows);
  const HeadsByWindow heads = read_heads_by_window(keys, c, kListedHeads),
                      kv = keys.has(kKvHeads) ? read_heads_by_window(keys, c, kKvHeads) : heads;
  c.heads = heads.heads;
  c.full.heads = heads.full;
  c.kv_heads = kv.heads;
  c.full.kv_heads = kv.full;
  c.head_width = keys.size(kListedKeyWidth, 1);
  if (row.mimo) read_listed_values(file, keys, c);
  else read_listed_gates(file, keys, c);
  read_listed_turning(keys, row, c);
}

void add_window_layers(std::vector<GgufEntry>& out, const std::string& prefix,
                       const ModelConfig& c) {
  std::vector<bool> flags;
  for (int64_t i = 0; i < c.layers; ++i) flags.push_back(c.has_window(i));
  out.push_back({prefix + kListedWindow, GgufEntry::Type::u32, c.attention_window});
  out.push_back({prefix + kListedWindows, GgufEntry::Type::booleans, flags});
}

void add_heads_by_layers(std::vector<GgufEntry>& out, const std::string& key, const ModelConfig& c,
                         int64_t AttentionShape::*heads) {
  std::vector<int64_t> each;
  for (int64_t i = 0; i < c.layers; ++i) each.push_back(c.attention(i).*heads);
  if (std::ranges::count(each, each[0]) == c.layers)
    out.push_back({key, GgufEntry::Type::u32, each[0]});
  else out.push_back({key, GgufEntry::Type::u32s, each});
}

void add_listed(std::vector<GgufEntry>& out, const std::string& prefix, const GgufArchitecture& row,
                const ModelConfig& c) {
  if (row.window_local) add_window_layers(out, prefix, c);
  add_heads_by_layers(out, prefix + kListedHeads, c, &AttentionShape::heads);
  add_heads_by_layers(out, prefix + kKvHeads, c, &AttentionShape::kv_heads);
  if (row.mimo && c.value_factor != 1)
    out.push_back(
        {prefix + kValueFactor, GgufEntry::Type::f32, static_cast<double>(c.value_factor)});
  if (!row.laguna || !row.window_local) return;
  const int64_t turning = c.window_rotary_width > 0 ? c.window_rotary_width
                          : c.rotary_width > 0      ? c.rotary_width
                                                    : c.head_width;
  out.push_back({prefix + kWindowsTurning, GgufEntry::Type::u32, turning});
}

// Of YaRN llama.cpp multiplies in MiMo's layers with a window too by what its further factor says,
// and how much turns in Laguna's layers without one it asks of the first layer.
std::string why_not_listed(const GgufArchitecture& row, const ModelConfig& c) {
  if (!row.listed()) return "";
  if (!row.window_local && c.attention_window > 0) return "some of its layers have a window";
  if (row.laguna && !c.gate_softplus) return "gates of its attention are sigmoids";
  const RopeScaling& s = c.rope_scaling;
  if (row.mimo && s.kind == RopeScaling::Kind::yarn &&
      std::fabs(s.attention_factor / yarn_growth(s.factor) - 1) > 1e-6f)
    return fmt::format("its YaRN multiplies by {}, not {}", s.attention_factor,
                       yarn_growth(s.factor));
  const int64_t others = c.rotary_width > 0 ? c.rotary_width : c.head_width;
  if (row.laguna && c.window_rotary_width > 0 && c.window_rotary_width != others && c.has_window(0))
    return "its first layer has a window, by which llama.cpp turns the others too";
  return "";
}

}  // namespace moe
