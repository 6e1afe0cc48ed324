// Writing, reading and comparing routing records. A file is checked whole when it is opened, so
// that a replay cannot stop in the middle of it.
#include "evaluate/routing_record.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/error.h"
#include "core/nearest.h"
#include "moe/stages/replay.h"

namespace moe {
namespace {

constexpr std::string_view kVersion = "1";
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();  // bounds are of 32 bits
// far above any model; keeps a hostile file from asking for memory
constexpr int64_t kMaxExperts = int64_t{1} << 20;

std::string experts_name(int64_t layer) { return fmt::format("layers.{}.experts", layer); }
std::string weights_name(int64_t layer) { return fmt::format("layers.{}.weights", layer); }

std::vector<int64_t> moe_layers_of(const ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.is_moe(i)) layers.push_back(i);
  return layers;
}

Tensor shape_of(DType dtype, std::initializer_list<int64_t> dims) {
  return Tensor(nullptr, dtype, dims);
}

std::vector<SafetensorsItem> items_of(const ModelConfig& config, const RecordInfo& info) {
  const int64_t tokens = info.windows * info.window;
  std::vector<SafetensorsItem> items = {
      {"ids", shape_of(DType::i32, {tokens}), DType::i32},
      {"bounds", shape_of(DType::i32, {info.windows + 1}), DType::i32}};
  for (const int64_t layer : moe_layers_of(config)) {
    items.push_back({experts_name(layer), shape_of(DType::i32, {tokens, info.slots}), DType::i32});
    items.push_back({weights_name(layer), shape_of(DType::f32, {tokens, info.slots}), DType::f32});
  }
  return items;
}

std::map<std::string, std::string> metadata_of(const RecordInfo& info) {
  return {{"routing_record", std::string(kVersion)},
          {"recipe", info.recipe},
          {"routing", info.routing},
          {"dtype", info.dtype},
          {"tokenizer", info.tokenizer},
          {"layers", std::to_string(info.layers)},
          {"experts", std::to_string(info.experts)},
          {"slots", std::to_string(info.slots)},
          {"window", std::to_string(info.window)}};
}

RecordInfo completed(RecordInfo info, const ModelConfig& config, size_t tokens,
                     const std::string& path) {
  if (config.moe_layer_count() == 0)
    fail_usage("the model has no layer that routes, so there is nothing to record or to replay");
  info.recipe = config.routing.recipe;
  info.layers = config.layers;
  info.experts = config.routing.scored();
  if (static_cast<int64_t>(tokens) > kMaxSize)
    fail("cannot write {}: a record holds at most {} tokens, the text has {}; take fewer @windows",
         path, kMaxSize, tokens);
  return info;
}

// What the metadata says, each in its turn.
struct Metadata {
  const Safetensors& file;

  const std::string& text(const char* key) const {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
      fail("{}: the metadata has no \"{}\", so this is no record that `moe score --record` wrote",
           file.path(), key);
    return found->second;
  }
  int64_t number(const char* key, int64_t most = kMaxSize) const {
    const std::string& digits = text(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value < 1 || value > most)
      fail("{}: \"{}\" of the metadata is \"{}\"; it must be a number from 1 to {}", file.path(),
           key, printable(digits, 32), most);
    return value;
  }
};

// The layer of a name layers.{i}.{what}, written as we write it; -1: another name.
int64_t layer_of(std::string_view name, std::string_view what) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t layer = -1;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return error == std::errc{} && layer >= 0 && name == fmt::format("layers.{}.{}", layer, what)
             ? layer
             : -1;
}

void expect_shape(const Safetensors& file, const std::string& name, DType dtype,
                  std::vector<int64_t> want) {
  const Tensor got = file.get(name);
  if (got.dtype != dtype ||
      !std::ranges::equal(std::span(got.shape).first(static_cast<size_t>(got.rank)), want))
    fail("{}: \"{}\" is {}, it must be {} [{}]", file.path(), name, describe(got), name_of(dtype),
         fmt::join(want, ", "));
}

}  // namespace

RoutingRecorder::RoutingRecorder(const std::string& path, const ModelConfig& config,
                                 RecordInfo given, std::span<const int32_t> ids) {
  const RecordInfo info = completed(std::move(given), config, ids.size(), path);
  window_ = info.window;
  experts_.resize(static_cast<size_t>(info.window * info.slots));
  weights_.resize(experts_.size());
  file_ = std::make_unique<SafetensorsWriter>(path, items_of(config, info), metadata_of(info));
  std::vector<int32_t> bounds;
  for (int64_t w = 0; w <= info.windows; ++w)
    bounds.push_back(static_cast<int32_t>(w * info.window));
  file_->put(
      "ids", 0,
      Tensor(const_cast<int32_t*>(ids.data()), DType::i32, {static_cast<int64_t>(ids.size())}));
  file_->put("bounds", 0, Tensor(bounds.data(), DType::i32, {static_cast<int64_t>(bounds.size())}));
}

void RoutingRecorder::add(int64_t window, int64_t layer, const MoeLayer::Saved& saved) {
  const Router::Saved& router = saved.router;
  const int64_t slots = router.choice.cols();
  const Tensor experts(experts_.data(), DType::i32, {window_, slots}),
      weights(weights_.data(), DType::f32, {window_, slots});
  record_choices(experts, router.choice, router.selected, router.kept);
  std::fill(weights_.begin(), weights_.end(), 0.0f);
  each_kept_pair(saved.plan, router, [&](size_t pair, float w) { weights_[pair] = w; });
  file_->put(experts_name(layer), window * experts.numel(), experts);
  file_->put(weights_name(layer), window * weights.numel(), weights);
}

RoutingRecord::RoutingRecord(Safetensors file) : file_(std::move(file)) {
  const Metadata metadata{file_};
  if (metadata.text("routing_record") != kVersion)
    fail(
        "{}: it is a routing record of version \"{}\", version {} can be read; write it anew with "
        "`moe score --record`",
        file_.path(), printable(metadata.text("routing_record"), 32), kVersion);
  info_ = {.recipe = metadata.text("recipe"),
           .routing = metadata.text("routing"),
           .dtype = metadata.text("dtype"),
           .tokenizer = metadata.text("tokenizer"),
           .layers = metadata.number("layers"),
           .experts = metadata.number("experts", kMaxExperts),
           .slots = metadata.number("slots"),
           .window = metadata.number("window")};
  if (info_.slots > info_.experts)
    fail("{}: {} choices a token of {} experts cannot be; the metadata is damaged", file_.path(),
         info_.slots, info_.experts);
  read_tensors();
}

// Everything that the numbers can say wrongly; what is left is whether they fit a model and a text.
void RoutingRecord::read_tensors() {
  const Tensor ids = file_.get("ids"), bounds = file_.get("bounds");
  if (ids.dtype != DType::i32 || ids.rank != 1)
    fail("{}: \"ids\" is {}, it must be i32 [tokens]", file_.path(), describe(ids));
  const int64_t tokens = ids.numel();
  if (tokens == 0 || tokens % info_.window != 0)
    fail("{}: {} ids are not whole windows of {}; the file is damaged", file_.path(), tokens,
         info_.window);
  info_.windows = tokens / info_.window;
  expect_shape(file_, "bounds", DType::i32, {info_.windows + 1});
  for (int64_t w = 0; w <= info_.windows; ++w)
    if (bounds.as<int32_t>()[w] != w * info_.window)
      fail("{}: \"bounds\" has {} at {}; windows of {} tokens give {}", file_.path(),
           bounds.as<int32_t>()[w], w, info_.window, w * info_.window);
  for (const NamedTensor& tensor : file_.tensors()) {
    if (tensor.name == "ids" || tensor.name == "bounds") continue;
    const int64_t layer =
        std::max(layer_of(tensor.name, "experts"), layer_of(tensor.name, "weights"));
    if (layer < 0 || layer >= info_.layers)
      fail("{}: tensor \"{}\" belongs to no record of a model with {} layers", file_.path(),
           printable(tensor.name), info_.layers);
    if (tensor.name == weights_name(layer)) {
      expect_shape(file_, tensor.name, DType::f32, {tokens, info_.slots});
      if (!file_.contains(experts_name(layer)))
        fail("{}: there are weights of layer {}, but no experts", file_.path(), layer);
      continue;
    }
    check_recorded(tensor.value, tokens, info_.slots, info_.experts,
                   fmt::format("{}: {}", file_.path(), tensor.name));
    moe_layers_.push_back(layer);
  }
  if (moe_layers_.empty()) fail("{}: there are no experts of any layer", file_.path());
  std::sort(moe_layers_.begin(), moe_layers_.end());
}

std::span<const int32_t> RoutingRecord::ids() const {
  const Tensor ids = file_.get("ids");
  return {ids.as<int32_t>(), static_cast<size_t>(ids.numel())};
}

std::vector<Tensor> RoutingRecord::window(int64_t w) const {
  std::vector<Tensor> out;
  for (const int64_t layer : moe_layers_)
    out.push_back(
        file_.get(experts_name(layer)).slice_rows(w * info_.window, (w + 1) * info_.window));
  return out;
}

void RoutingRecord::check_model(const ModelConfig& config, const RoutingSpec& spec) const {
  const auto differs = [&](const char* what, int64_t here, int64_t there) {
    if (here != there)
      fail(
          "{} records a model with {} {}, this one has {}; replay it with a model of the same "
          "shape",
          file_.path(), there, what, here);
  };
  differs("layers", config.layers, info_.layers);
  differs("layers that route", config.moe_layer_count(), static_cast<int64_t>(moe_layers_.size()));
  const std::vector<int64_t> layers = moe_layers_of(config);
  if (layers != moe_layers_)
    fail("{} records routing in the layers {}, this model routes in {}", file_.path(),
         fmt::join(moe_layers_, ", "), fmt::join(layers, ", "));
  differs("experts", spec.experts, info_.experts);
  differs("choices a token", spec.slots(), info_.slots);
}

void RoutingRecord::check_text(std::span<const int32_t> text, std::string_view tokenizer) const {
  const std::span<const int32_t> recorded = ids();
  const std::string made =
      tokenizer == info_.tokenizer
          ? ""
          : fmt::format(" (it was read by the tokenizer \"{}\", this one is \"{}\")",
                        printable(info_.tokenizer, 40), tokenizer);
  const auto [here, there] =
      std::mismatch(text.begin(), text.end(), recorded.begin(), recorded.end());
  if (here != text.end() && there != recorded.end())
    fail("{} records another text: token {} is {} there and {} here{}", file_.path(),
         here - text.begin(), *there, *here, made);
  if (here != text.end())
    fail("{} records {} tokens, {} are to be replayed{}; lower @windows to {}", file_.path(),
         recorded.size(), text.size(), made, info_.windows);
}

void Agreement::add(int64_t window, int64_t layer, const MoeLayer::Saved& saved, int64_t experts) {
  const Router::Saved& router = saved.router;
  const int64_t count = router.choice.rows(), slots = router.choice.cols();
  if (window != window_) {
    finish();
    window_ = window;
    tokens += count;
    alike_.assign(static_cast<size_t>(count), 1);
  }
  const auto same = [&](const Layer& l) { return l.layer == layer; };
  auto at = std::find_if(layers.begin(), layers.end(), same);
  if (at == layers.end()) at = layers.insert(layers.end(), Layer{.layer = layer});
  for (int64_t n = 0; n < count; ++n) {
    const int64_t pairs = std::count(router.selected.row<int32_t>(n),
                                     router.selected.row<int32_t>(n) + slots, 1),
                  both = router.agreed.as<int32_t>()[n];
    at->recorded += pairs;
    at->both += both;
    alike_[static_cast<size_t>(n)] &= pairs == both;
  }
  at->own += router.own;
  at->places += count * experts;
}

void Agreement::finish() {
  tokens_alike += std::count(alike_.begin(), alike_.end(), 1);
  alike_.clear();
}

}  // namespace moe
