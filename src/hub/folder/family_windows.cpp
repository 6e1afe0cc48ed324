// The keys that say which layers of the families have windows, and where what turns follows from
// that.
#include <utility>

#include "hub/folder/family_parts.h"

namespace moe {
namespace {

int64_t window_of(const JsonReader& reader) {
  return reader.get_in<int64_t>("sliding_window", 1, kMaxSize);
}

// transformers 5 lists what each layer is; what the family's other keys say must be that.
void check_layer_types(const JsonReader& reader, const ModelConfig& c, const char* keys) {
  if (!reader.has("layer_types")) return;
  const auto types = reader.get<std::vector<std::string>>("layer_types");
  if (static_cast<int64_t>(types.size()) != c.layers)
    fail("{}: \"layer_types\" lists {} layers, \"num_hidden_layers\" is {}", reader.where(),
         types.size(), c.layers);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string &type = types[static_cast<size_t>(i)],
                      wanted = c.has_window(i) ? "sliding_attention" : "full_attention";
    if (type != wanted)
      fail("{}: \"layer_types\" has \"{}\" at layer {}, where {} make it \"{}\"; they must agree",
           reader.where(), printable(type), i, keys, wanted);
  }
}

// The layers from max_window_layers on have a window, the others none.
void read_last_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  const bool flag = f.window != FamilyWindow::dots;
  stands(reader, "sliding_window");
  const bool used = flag ? reader.get<bool>("use_sliding_window") : reader.has("sliding_window");
  const int64_t first = reader.get_in<int64_t>("max_window_layers", 0, kMaxSize, c.layers);
  if (used && f.window == FamilyWindow::never)
    refuse(reader, "use_sliding_window",
           "layers with and without a window are not supported in this family, only false");
  if (used && first < c.layers) {
    c.attention_window = window_of(reader);
    for (int64_t i = first; first > 0 && i < c.layers; ++i) c.window_layers.push_back(i);
  }
  check_layer_types(reader, c,
                    flag ? "\"use_sliding_window\" and \"max_window_layers\""
                         : "\"sliding_window\" and \"max_window_layers\"");
}

// Of a family whose models have no window where the key says null.
bool has_no_windows(const JsonReader& reader, const Family& f) {
  if (!f.may_lack_windows()) return false;
  need_to_stand(reader, "sliding_window",
                "the number of tokens that attention of some layers reaches back, or null");
  return !reader.has("sliding_window");
}

constexpr const char* kDensePattern = "prefix_dense_sliding_window_pattern";

int64_t dense_pattern(const JsonReader& reader) {
  return reader.get_in<int64_t>(kDensePattern, 1, kMaxLayers, 1);
}

void read_listed_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (has_no_windows(reader, f)) {
    if (f.every_key) stands(reader, f.every_key);
    return check_layer_types(reader, c, "\"sliding_window\" null");
  }
  c.attention_window = window_of(reader);
  std::vector<std::string> types;
  int64_t every = f.window_every;
  if (f.gemma == FamilyGemma::gemma3)  // transformers 5 writes it under another name
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"})
      every = reader.get_in<int64_t>(key, 1, kMaxLayers, every);
  const bool listed = reader.has("layer_types");
  if (f.every_key && listed) stands(reader, f.every_key);
  else if (f.every_key) every = reader.get_in<int64_t>(f.every_key, 1, kMaxLayers);
  if (listed) types = reader.get<std::vector<std::string>>("layer_types");
  else
    for (int64_t i = 0; i < c.layers; ++i) {
      const bool dense = f.dense_windows && i < c.dense_first;
      const int64_t before = f.dense_windows && !dense ? c.dense_first : 0,
                    of = dense ? dense_pattern(reader) : every;
      const bool slides = of == 0 || (f.first_full ? i : i + 1 - before) % of != 0;
      types.emplace_back(slides ? "sliding_attention" : "full_attention");
    }
  for (size_t i = 0; i < types.size() && static_cast<int64_t>(i) < c.layers; ++i)
    if (types[i] == "sliding_attention") c.window_layers.push_back(static_cast<int64_t>(i));
  if (c.window_layers.empty()) c.attention_window = 0;
  check_layer_types(reader, c, "the kinds that are known here");
}

// The first layer with a window, where all behind it have one too and none before it; else -1.
int64_t first_window(const ModelConfig& c) {
  int64_t first = 0;
  while (first < c.layers && !c.has_window(first)) ++first;
  for (int64_t i = first; i < c.layers; ++i)
    if (!c.has_window(i)) return -1;
  return first;
}

// Of dense layers without a window, the first ones, how many turn, and how many do not.
std::pair<int64_t, int64_t> turning_dense_layers(const ModelConfig& c) {
  std::pair<int64_t, int64_t> count = {0, 0};
  for (int64_t i = 0; i < c.layers && !c.is_moe(i); ++i)
    if (!c.has_window(i)) ++(c.attention(i).rotary_width > 0 ? count.first : count.second);
  return count;
}

}  // namespace

void read_windows(const JsonReader& reader, ModelConfig& c, const Family& f) {
  switch (f.window) {
    case FamilyWindow::none:
    case FamilyWindow::own: return;
    case FamilyWindow::mistral:
      need_to_stand(reader, "sliding_window",
                    "the number of tokens that attention reaches back, or null for all");
      if (reader.has("sliding_window")) c.attention_window = window_of(reader);
      return;
    case FamilyWindow::qwen:
    case FamilyWindow::dots:
    case FamilyWindow::never: return read_last_windows(reader, c, f);
    case FamilyWindow::listed:
      return f.mimo ? read_mimo_windows(reader, c) : read_listed_windows(reader, c, f);
  }
}

void write_windows(Json& json, const ModelConfig& c, const Family& f) {
  if (f.window == FamilyWindow::none || f.window == FamilyWindow::own) return;
  const bool used = c.attention_window > 0;
  json["sliding_window"] = used ? Json(c.attention_window) : Json();
  if (f.window == FamilyWindow::mistral) return;
  if (f.window == FamilyWindow::listed) {
    // Of most families transformers wants a number.
    if (!used && f.rotary != FamilyRotary::windowed_or_all) json["sliding_window"] = c.context;
    for (int64_t i = 0; i < c.layers; ++i)
      json["layer_types"].push_back(c.has_window(i) ? "sliding_attention" : "full_attention");
    return;
  }
  if (f.window != FamilyWindow::dots) json["use_sliding_window"] = used;
  if (f.window != FamilyWindow::never) json["max_window_layers"] = first_window(c);
}

std::string why_not_windows(const ModelConfig& c, const Family& f) {
  if (c.attention_window == 0 || f.window == FamilyWindow::listed || f.window == FamilyWindow::own)
    return "";
  if (f.llama4 && c.window_chunks) return "";
  if (f.window == FamilyWindow::none || f.window == FamilyWindow::never)
    return "its attention has a window";
  const int64_t first = first_window(c);
  if (first != 0 && f.window == FamilyWindow::mistral)
    return "only some of its layers have a window";
  if (first < 0) return "its layers with a window are not the last ones";
  return "";
}

// Where only layers with a window turn, once it is known which these are.
void read_windowed_turning(const JsonReader& reader, ModelConfig& c, const Family& f) {
  if (f.rotary != FamilyRotary::windowed && f.rotary != FamilyRotary::windowed_or_all) return;
  if (has_no_windows(reader, f)) return;
  const bool dense_turn = f.dense_windows && dense_pattern(reader) == 1;
  for (int64_t i = dense_turn ? c.dense_first : 0; i < c.layers; ++i)
    if (!c.has_window(i)) c.nope_layers.push_back(i);
}

void write_dense_pattern(Json& json, const ModelConfig& c) {
  json[kDensePattern] = turning_dense_layers(c).second > 0 ? 2 : 1;  // layers are listed
}

std::string why_not_windowed_turning(const ModelConfig& c, const Family& f) {
  const auto [turn, stand] = turning_dense_layers(c);
  if (f.dense_windows && turn > 0 && stand > 0)
    return "some of its dense layers without a window turn and some do not";
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool turns = c.attention(i).rotary_width > 0, dense = f.dense_windows && !c.is_moe(i);
    if (turns != c.has_window(i) && !(turns && dense))
      return "what turns are not its layers with a window";
  }
  return "";
}

}  // namespace moe
