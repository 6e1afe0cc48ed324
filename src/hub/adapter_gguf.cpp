#include "hub/adapter_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/nearest.h"
#include "hub/adapter_modules.h"
#include "hub/gguf/gguf_config.h"
#include "hub/gguf/gguf_model.h"

namespace moe {
namespace {

constexpr const char *kType = "general.type", *kAdapter = "adapter",
                     *kArchitecture = "general.architecture", *kKind = "adapter.type",
                     *kLora = "lora", *kAlpha = "adapter.lora.alpha";
constexpr std::string_view kHalfA = ".lora_a", kHalfB = ".lora_b";

// A tensor of the model's GGUF and its modules: one, or of a bank one for each expert.
struct AdaptedTensor {
  std::string name;
  std::vector<Module> modules;
  bool bank = false;
  float factor = 1;  // by which the file has the matrix, and so B

  std::vector<int64_t> shape(int64_t rows, int64_t cols) const {
    if (bank) return {static_cast<int64_t>(modules.size()), rows, cols};
    return {rows, cols};
  }
};

struct Form {
  std::string architecture;
  std::vector<AdaptedTensor> targets;
};

Form form_of(Model& model) {
  const GgufForm form = gguf_form_of(model.config());
  Form out{std::string(form.architecture->name), {}};
  for (const FileTensor& tensor : map_tensors(*form.architecture->tensors, model)) {
    std::vector<Module> modules = modules_of({tensor});
    if (modules.empty()) continue;
    // Turned or reordered columns would be turned in A; no architecture that llama.cpp adapts has
    // them.
    // Nor is there one factor of rows that have several.
    const float factor = tensor.pieces[0].factor;
    if (std::any_of(tensor.pieces.begin(), tensor.pieces.end(), [&](const auto& p) {
          return p.transpose || !p.columns.as_in_model() || p.heads > 0 || p.rows.count > 0 ||
                 p.factor != factor;
        }))
      continue;
    out.targets.push_back({tensor.name, std::move(modules), tensor.shape.size() == 3, factor});
  }
  return out;
}

// One half of all modules of a target, an expert a part. `factor`: of every number.
template <class Stacked>
GgufItem item_of(const AdaptedTensor& target, std::string_view half, std::vector<int64_t> shape,
                 float factor, const Room& room, Stacked&& stacked) {
  return {fmt::format("{}{}", target.name, half), DType::f32, std::move(shape),
          [&target, factor, room, stacked](int64_t part) {
            const Tensor t = stacked(target.modules[static_cast<size_t>(part)]);
            for (float& x : *room) x *= factor;
            return t;
          }};
}

void need_every_matrix(const std::string& path, const AdapterFile& file, const Form& form) {
  std::set<const Param*> known;
  for (const AdaptedTensor& target : form.targets)
    for (const Module& module : target.modules)
      for (const Member& m : module.members) known.insert(m.param);
  for (const LowRank& low : file.matrices)
    if (!known.contains(low.base))
      fail("{}: llama.cpp knows no adapter of {}; merge it into the model instead", path,
           low.base->name);
}

// A tensor of the file, whose parts are those of the target's modules, as f32.
class Half {
 public:
  Half(const Gguf& file, const std::string& name) : file_(file), name_(name), t_(file.get(name)) {}

  int64_t cols() const { return t_.cols(); }
  void need_shape(const std::vector<int64_t>& wanted) const {
    const std::vector<int64_t> got(t_.shape.begin(), t_.shape.begin() + t_.rank);
    if (got != wanted || !holds_weights(t_.dtype))
      fail("{}: \"{}\" is {}; for this model it must be [{}] of f32, bf16 or f16", file_.path(),
           printable(name_), describe(t_), fmt::join(wanted, ", "));
  }
  std::vector<float> part(int64_t i) const {
    std::vector<float> out = floats_of(t_.matrix(i));
    if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }))
      fail("{}: \"{}\" has numbers that are not finite", file_.path(), printable(name_));
    return out;
  }

 private:
  const Gguf& file_;
  std::string name_;
  Tensor t_;
};

void read_target(std::vector<FoundPair>& pairs, const Gguf& file, const AdaptedTensor& target,
                 double alpha) {
  const std::string name_a = fmt::format("{}{}", target.name, kHalfA),
                    name_b = fmt::format("{}{}", target.name, kHalfB);
  for (const auto& [name, other] : {std::pair{&name_a, &name_b}, std::pair{&name_b, &name_a}})
    if (file.contains(*name) && !file.contains(*other))
      fail("{}: \"{}\" has no \"{}\" beside it", file.path(), printable(*name), printable(*other));
  if (!file.contains(name_a)) return;
  const Half a(file, name_a), b(file, name_b);
  const int64_t rank = b.cols();  // at least 1, as every dimension in a GGUF
  const Module& first = target.modules.front();
  a.need_shape(target.shape(rank, first.members[0].cols));
  b.need_shape(target.shape(first.out, rank));
  for (size_t m = 0; m < target.modules.size(); ++m) {
    const auto part = static_cast<int64_t>(m);
    pairs.push_back({&target.modules[m], a.part(part), b.part(part), rank,
                     static_cast<float>(alpha / static_cast<double>(rank)) / target.factor});
  }
}

// Nothing in the file is passed over.
void need_known_names(const Gguf& file, const Form& form) {
  std::vector<std::string> known;
  for (const AdaptedTensor& target : form.targets) known.push_back(target.name);
  for (const NamedTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    const bool half = name.ends_with(kHalfA) || name.ends_with(kHalfB);
    const std::string_view base = half ? name.substr(0, name.size() - kHalfA.size()) : name;
    if (!half || std::find(known.begin(), known.end(), base) == known.end())
      fail("{}: \"{}\" belongs to no matrix of this model{}", file.path(), printable(name),
           suggestion(base, known, 0));
  }
}

}  // namespace

void save_gguf_adapter(const std::string& path, Model& model, const AdapterFile& file) {
  if (!file.whole.empty())
    fail("{}: the adapter brings {} whole, which a GGUF adapter cannot say; merge it instead", path,
         file.whole[0]->name);
  if (!file.tokens.empty())
    fail(
        "{}: the adapter brings rows of tokens ({} of {}), which a GGUF adapter cannot say; merge "
        "it into the model instead: moe convert MODEL OUT.gguf @adapter FOLDER",
        path, file.tokens[0].ids.size(), file.tokens[0].base->name);
  const Form form = form_of(model);
  need_every_matrix(path, file, form);
  Pairs of;
  for (const LowRank& low : file.matrices) of[low.base] = &low;
  const auto room = std::make_shared<std::vector<float>>();
  std::vector<GgufItem> items;
  for (const AdaptedTensor& target : form.targets) {
    const Module& first = target.modules.front();
    int64_t rank = 0;  // of all its experts, some of whom may have no pair
    for (const Module& module : target.modules) rank = std::max(rank, rank_of(module, of));
    if (rank == 0) continue;
    // A reader divides alpha by the pair's own rank.
    const float factor =
        static_cast<float>(static_cast<double>(rank) / static_cast<double>(file.rank));
    items.push_back(
        item_of(target, kHalfA, target.shape(rank, first.members[0].cols), 1, room,
                [&of, rank, room](const Module& m) { return stacked_a(m, of, rank, room); }));
    items.push_back(
        item_of(target, kHalfB, target.shape(first.out, rank), factor * target.factor, room,
                [&of, rank, room](const Module& m) { return stacked_b(m, of, rank, room); }));
  }
  const std::vector<GgufEntry> metadata = {
      {kArchitecture, GgufEntry::Type::string, form.architecture},
      {kType, GgufEntry::Type::string, std::string(kAdapter)},
      {kKind, GgufEntry::Type::string, std::string(kLora)},
      {kAlpha, GgufEntry::Type::f32, file.alpha}};
  write_gguf(path, metadata, items);
}

bool is_gguf_adapter(const std::string& path) {
  if (!is_gguf(path)) return false;
  const Gguf file = Gguf::open(path);
  return file.has(kType) && file.text(kType) == kAdapter;
}

AttachedAdapter attach_gguf_adapter(Model& model, const std::string& path) {
  return attach_gguf_adapter(model, Gguf::open(path));
}

AttachedAdapter attach_gguf_adapter(Model& model, const Gguf& file) {
  const std::string& path = file.path();
  if (!file.has(kType) || file.text(kType) != kAdapter)
    fail("{}: this is no adapter (\"{}\" is not \"{}\") but a model, say", path, kType, kAdapter);
  if (file.text(kKind) != kLora)
    fail("{}: an adapter of the type \"{}\"; only \"{}\" is known here", path,
         printable(file.text(kKind)), kLora);
  const Form form = form_of(model);
  if (file.text(kArchitecture) != form.architecture)
    fail("{}: the adapter is of \"{}\", the model's architecture is \"{}\"", path,
         printable(file.text(kArchitecture)), form.architecture);
  const double alpha = file.number(kAlpha);
  need_known_names(file, form);
  std::vector<FoundPair> pairs;
  for (const AdaptedTensor& target : form.targets) read_target(pairs, file, target, alpha);
  if (pairs.empty()) fail("{}: there is no pair in it", path);
  return hang_pairs(model, pairs);
}

}  // namespace moe
