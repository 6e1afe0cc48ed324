// The names of PEFT beside the map of the model's tensors, in both directions. The arithmetic is
// that of training (train/trainable.cpp): the same product, added to f32 numbers, so that merging
// into the weights a run started from gives the bits it ended with.
#include "hub/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "core/threads.h"
#include "hub/tensor_map.h"
#include "tensor/quant.h"

namespace moe {
namespace {

constexpr std::string_view kPrefix = "base_model.model.", kWeight = ".weight",
                           kA = ".lora_A.weight", kB = ".lora_B.weight";

// One matrix of the model in a module of PEFT's.
struct Member {
  Param* param = nullptr;
  int64_t expert = 0;
  int64_t rows = 0, cols = 0;
  int64_t begin = 0;  // row of the module at which its own begin, or those that they are among
  RowOrder order = {};

  int64_t row_in_file(int64_t r) const { return begin + order.file_row(r); }
  Tensor matrix() const { return param->value.rank == 3 ? param->expert(expert) : param->value; }
};
// What one pair belongs to: matrices of one width, stacked.
struct Module {
  std::string name;
  std::vector<Member> members;
  int64_t out = 0;
};

Member member_of(const FileTensor::Piece& piece, int64_t expert) {
  const Tensor& w = piece.param->value;
  return {piece.param, expert, w.shape[w.rank - 2], w.cols(), 0, piece.order};
}

// Of every tensor of the map that holds matrices, in its order; rows of a module are in the file's.
std::vector<Module> modules_of(const std::vector<FileTensor>& map) {
  std::vector<Module> modules;
  for (const FileTensor& tensor : map) {
    if (tensor.alias || tensor.pieces.empty()) continue;
    const bool matrices =
        std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                    [](const FileTensor::Piece& p) { return p.param->is_matrix(); });
    if (!matrices) continue;
    std::string name = tensor.name;
    if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
    const FileTensor::Piece& first = tensor.pieces[0];
    if (first.param->value.rank == 3 && first.expert < 0) {
      for (int64_t e = 0; e < first.param->value.shape[0]; ++e)
        modules.push_back({fmt::format("{}.{}", name, e), {member_of(first, e)}});
      continue;
    }
    // Of a bank whose experts' matrices are stacked each expert is a module.
    const bool bank = tensor.shape.size() == 3;
    for (const FileTensor::Piece& piece : tensor.pieces) {
      const std::string own = bank ? fmt::format("{}.{}", name, piece.expert) : name;
      if (modules.empty() || modules.back().name != own) modules.push_back({own, {}});
      modules.back().members.push_back(member_of(piece, std::max<int64_t>(piece.expert, 0)));
    }
  }
  for (Module& module : modules)
    for (Member& member : module.members) {
      member.begin = member.order.apart > 0 ? 0 : module.out;
      module.out += member.rows;
    }
  return modules;
}

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// What PEFT's target_modules calls a module: its last word that is no number.
std::string target_name(std::string_view name) {
  while (!name.empty() && last_word(name).find_first_not_of("0123456789") == std::string_view::npos)
    name = name.substr(0, name.rfind('.'));
  return std::string(last_word(name));
}

std::vector<FileTensor> folder_map(Model& model) {
  return map_tensors(architecture_of(model.config()), model);
}

// ---- writing ------------------------------------------------------------------------------------

// A and B of a module, its members' own stacked.
struct Pair {
  std::vector<float> a, b;
  int64_t rank = 0, in = 0, out = 0;
};

Pair stacked(const Module& module, const std::map<const Param*, const LowRank*>& of) {
  Pair pair;
  pair.in = module.members[0].cols;
  pair.out = module.out;
  for (const Member& m : module.members)
    pair.rank +=
        (of.at(m.param)->a.rank == 3 ? of.at(m.param)->a.at(m.expert) : of.at(m.param)->a).rows();
  pair.a.resize(static_cast<size_t>(pair.rank * pair.in));
  pair.b.resize(static_cast<size_t>(pair.out * pair.rank));
  int64_t rank = 0;
  for (const Member& m : module.members) {
    const LowRank& low = *of.at(m.param);
    const Tensor a = low.a.rank == 3 ? low.a.at(m.expert) : low.a,
                 b = low.b.rank == 3 ? low.b.at(m.expert) : low.b;
    std::copy_n(a.as<float>(), a.numel(), pair.a.data() + rank * pair.in);
    for (int64_t o = 0; o < b.rows(); ++o)
      std::copy_n(b.row<float>(o), b.cols(), pair.b.data() + m.row_in_file(o) * pair.rank + rank);
    rank += a.rows();
  }
  return pair;
}

Json adapter_json(const AdapterFile& file, const std::set<std::string>& targets,
                  const std::set<std::string>& whole, const std::map<std::string, int64_t>& ranks,
                  bool turned) {
  Json rank_pattern = Json::object(), alpha_pattern = Json::object();
  for (const auto& [name, rank] : ranks) {
    rank_pattern[name] = rank;
    alpha_pattern[name] = file.alpha / static_cast<double>(file.rank) * static_cast<double>(rank);
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", file.base_model.empty() ? Json() : Json(file.base_model)},
          {"inference_mode", true},
          {"r", file.rank},
          {"lora_alpha", file.alpha},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"fan_in_fan_out", turned},
          {"use_rslora", false},
          {"use_dora", false},
          {"rank_pattern", rank_pattern},
          {"alpha_pattern", alpha_pattern},
          {"target_modules", targets},
          {"modules_to_save", whole.empty() ? Json() : Json(whole)}};
}

// ---- reading ------------------------------------------------------------------------------------

// How much of B A is added, by the rules of PEFT's patterns: a key names a module whose name it
// ends, or with a ^ begins.
class Scales {
 public:
  Scales(const Json& json, const std::string& path) {
    const JsonReader in(json, path);
    if (const std::string type = in.get<std::string>("peft_type"); type != "LORA")
      fail("{}: the adapter is of type {}; only LORA is known here", path, printable(type));
    for (const char* key : {"use_dora", "lora_bias", "use_qalora", "layer_replication",
                            "target_parameters", "alora_invocation_tokens", "arrow_config"})
      if (in.has(key) && !(in.value(key).is_boolean() && !in.value(key).get<bool>()) &&
          !(in.value(key).is_array() && in.value(key).empty()))
        fail("{}: \"{}\" is set, which is not known here", path, key);
    if (const std::string bias = in.get<std::string>("bias", "none"); bias != "none")
      fail("{}: \"bias\" is \"{}\"; only \"none\" is known here", path, printable(bias));
    rank_ = in.get_in<int64_t>("r", 1, 1 << 20, 8);
    alpha_ = in.get_in<double>("lora_alpha", -1e9, 1e9, 8);
    root_ = in.get<bool>("use_rslora", false);
    read(in, "rank_pattern", 1, ranks_);
    read(in, "alpha_pattern", -1e9, alphas_);
  }
  int64_t rank(std::string_view module) const {
    return std::llround(find(ranks_, module, static_cast<double>(rank_)));
  }
  float scale(std::string_view module) const {
    const auto rank = static_cast<double>(this->rank(module));
    return static_cast<float>(find(alphas_, module, alpha_) / (root_ ? std::sqrt(rank) : rank));
  }

 private:
  using Pattern = std::vector<std::pair<std::string, double>>;

  static void read(const JsonReader& in, const char* key, double least, Pattern& pattern) {
    if (!in.has(key)) return;
    const JsonReader names = in.object(key);
    for (const std::string& name : names.keys()) {
      if (name.find_first_of("*+?[](){}|\\$") != std::string::npos)
        fail("{}: \"{}\" has \"{}\", a regular expression; only names of modules are known here",
             in.where(), key, printable(name));
      pattern.emplace_back(name, names.get_in<double>(name, least, 1e9));
    }
  }
  static double find(const Pattern& pattern, std::string_view module, double otherwise) {
    for (const auto& [key, value] : pattern) {
      const std::string_view name = key;
      if (name.starts_with('^')
              ? module == name.substr(1)
              : module == name ||
                    (module.ends_with(name) && module[module.size() - name.size() - 1] == '.'))
        return value;
    }
    return otherwise;
  }

  int64_t rank_ = 8;
  double alpha_ = 8;
  bool root_ = false;
  Pattern ranks_, alphas_;
};

// A tensor of the file as f32.
std::vector<float> floats_of(const Safetensors& file, const std::string& name,
                             std::vector<int64_t> shape) {
  const Tensor t = file.get(name);
  const std::vector<int64_t> got(t.shape.begin(), t.shape.begin() + t.rank);
  if (!holds_weights(t.dtype) || got != shape) {
    std::string wanted;
    for (int64_t n : shape) wanted += fmt::format("{}{}", wanted.empty() ? "" : ", ", n);
    fail("{}: \"{}\" is {}; for this model it must be [{}] of f32, bf16 or f16", file.path(),
         printable(name), describe(t), wanted);
  }
  std::vector<float> out(static_cast<size_t>(t.numel()));
  for (int64_t r = 0; r < t.rows(); ++r)
    dequantise(out.data() + r * t.cols(), static_cast<const char*>(t.data) + r * t.row_bytes,
               t.dtype, t.cols());
  for (float x : out)
    if (!std::isfinite(x))
      fail("{}: \"{}\" holds {}; a model with such weights computes nothing", file.path(),
           printable(name), x);
  return out;
}

// A parameter of a bound model as f32 numbers of the Model's own; once, whoever asks again.
void own(Model& model, Param& param, std::set<const Param*>& owned, int threads) {
  if (!owned.insert(&param).second) return;
  const Tensor w = param.value;
  const Tensor copy = w.rank == 3 ? model.allocate(DType::f32, {w.shape[0], w.shape[1], w.shape[2]})
                      : w.rank == 2 ? model.allocate(DType::f32, {w.shape[0], w.shape[1]})
                                    : model.allocate(DType::f32, {w.shape[0]});
  const int64_t experts = w.rank == 3 ? w.shape[0] : 1, rows = w.rows() / experts;
  parallel_for(threads, w.rows(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const Tensor from = w.rank == 3 ? param.expert(r / rows) : w;
      dequantise(copy.as<float>() + r * w.cols(),
                 static_cast<const char*>(from.data) + r % rows * from.row_bytes, from.dtype,
                 w.cols());
    }
  });
  model.bind(param, copy);
}

// W += scale B A for each member, of whose rows B has its part.
double add_pair(Run& run, Model& model, std::set<const Param*>& owned, const Module& module,
                std::vector<float>& a, std::vector<float>& b, int64_t rank, float scale) {
  Param right;  // A, as the operand of a product
  right.name = fmt::format("{}{}", module.name, kA);
  right.value = Tensor(a.data(), DType::f32, {rank, module.members[0].cols});
  for (float& x : b) x *= scale;
  double largest = 0;
  std::vector<float> own_rows;
  for (const Member& member : module.members) {
    own(model, *member.param, owned, run.threads);
    own_rows.resize(static_cast<size_t>(member.rows * rank));
    for (int64_t r = 0; r < member.rows; ++r)
      std::copy_n(b.data() + member.row_in_file(r) * rank, rank, own_rows.data() + r * rank);
    const Tensor w = member.matrix(), left(own_rows.data(), DType::f32, {member.rows, rank});
    const double before = ops::sum_squares(run, w);
    ArenaScope scope(run.scratch);
    Tensor change = run.scratch.alloc(DType::f32, {member.rows, member.cols});
    const std::array<int64_t, 2> all = {0, member.rows};
    ops::matmul_dx(run, change, left, right, all);
    if (before > 0) largest = std::max(largest, std::sqrt(ops::sum_squares(run, change) / before));
    ops::matmul_dx_acc(run, w, left, right, all);
  }
  return largest;
}

// What a file brings, all of it looked at: pairs, and tensors that replace the model's.
struct FoundPair {
  const Module* module;
  std::vector<float> a, b;
  int64_t rank;
  float scale;
};
struct FoundWhole {
  FileTensor::Piece piece;
  std::vector<float> numbers;
};
struct Found {
  std::vector<FoundPair> pairs;
  std::vector<FoundWhole> whole;
};

FoundWhole read_whole(const Safetensors& file, const std::string& name, const FileTensor& tensor) {
  const FileTensor::Piece& piece = tensor.pieces[0];
  if (tensor.pieces.size() != 1 || piece.transpose || !piece.order.as_in_model())
    fail(
        "{}: \"{}\" replaces a tensor whose numbers lie otherwise in the model; that is not known "
        "here",
        file.path(), printable(name));
  return {piece, floats_of(file, name, tensor.shape)};
}

Found look_through(const Safetensors& file, const Scales& scales,
                   const std::vector<FileTensor>& map, const std::vector<Module>& modules) {
  std::map<std::string_view, const Module*> by_name;
  std::map<std::string_view, const FileTensor*> tensors;
  std::vector<std::string> known;
  for (const Module& module : modules) {
    by_name[module.name] = &module;
    known.push_back(module.name);
  }
  for (const FileTensor& tensor : map)
    if (!tensor.alias && !tensor.pieces.empty()) tensors[tensor.name] = &tensor;
  Found found;
  for (const NamedTensor& tensor : file.tensors()) {
    const std::string_view key = tensor.name;
    if (!key.starts_with(kPrefix))
      fail("{}: \"{}\" does not begin with \"{}\" as PEFT's names do", file.path(), printable(key),
           kPrefix);
    const std::string_view name = key.substr(kPrefix.size());
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (!is_a && !is_b) {
      const auto place = tensors.find(name);
      if (place == tensors.end())
        fail("{}: \"{}\" is no tensor of this model, nor half of an adapter's pair", file.path(),
             printable(key));
      found.whole.push_back(read_whole(file, tensor.name, *place->second));
      continue;
    }
    const std::string_view module = name.substr(0, name.size() - kA.size());
    const auto place = by_name.find(module);
    if (place == by_name.end())
      fail("{}: \"{}\" belongs to no matrix of this model{}", file.path(), printable(key),
           suggestion(module, known, 0));
    const std::string a = fmt::format("{}{}{}", kPrefix, module, kA),
                      b = fmt::format("{}{}{}", kPrefix, module, kB);
    if (const std::string& other = is_a ? b : a; !file.contains(other))
      fail("{}: \"{}\" has no \"{}\" beside it", file.path(), printable(key), printable(other));
    if (is_b) continue;  // read with its A
    const int64_t rank = scales.rank(module);
    found.pairs.push_back(
        {place->second, floats_of(file, a, {rank, place->second->members[0].cols}),
         floats_of(file, b, {place->second->out, rank}), rank, scales.scale(module)});
  }
  return found;
}

}  // namespace

void save_adapter(const std::string& folder, Model& model, const AdapterFile& file) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot create the folder {}: {}", folder, error.message());
  const std::vector<FileTensor> map = folder_map(model);
  std::map<const Param*, const LowRank*> of;
  for (const LowRank& low : file.matrices) of[low.base] = &low;
  std::vector<SafetensorsItem> items;
  std::vector<std::unique_ptr<Pair>> pairs;
  std::set<std::string> targets, whole;
  std::map<std::string, int64_t> ranks;
  for (const Module& module : modules_of(map)) {
    const auto adapted =
        static_cast<size_t>(std::count_if(module.members.begin(), module.members.end(),
                                          [&](const Member& m) { return of.contains(m.param); }));
    if (adapted == 0) continue;
    if (adapted != module.members.size())
      fail("{}: only a part of \"{}\" has an adapter, which PEFT's form cannot say", folder,
           module.name);
    Pair& pair = *pairs.emplace_back(std::make_unique<Pair>(stacked(module, of)));
    const std::string name = std::string(kPrefix) + module.name;
    items.push_back({name + std::string(kA),
                     Tensor(pair.a.data(), DType::f32, {pair.rank, pair.in}), DType::f32});
    items.push_back({name + std::string(kB),
                     Tensor(pair.b.data(), DType::f32, {pair.out, pair.rank}), DType::f32});
    const std::string target = target_name(module.name);
    targets.insert(target);
    // from that word on, so that the number of an expert behind it counts
    if (pair.rank != file.rank) ranks[module.name.substr(module.name.rfind(target))] = pair.rank;
  }
  bool turned = false;
  for (const FileTensor& tensor : map) {
    if (tensor.alias || tensor.pieces.empty()) continue;
    const FileTensor::Piece& piece = tensor.pieces[0];
    turned = turned || (piece.transpose && of.contains(piece.param));
    if (std::find(file.whole.begin(), file.whole.end(), piece.param) == file.whole.end()) continue;
    if (tensor.pieces.size() != 1 || piece.transpose)
      fail("{}: \"{}\" is no tensor of its own in a folder, so an adapter cannot bring it", folder,
           piece.param->name);
    Tensor value = piece.expert < 0 ? piece.param->value : piece.param->value.at(piece.expert);
    value.rank = static_cast<int>(tensor.shape.size());  // a vector may be a row in the file
    std::copy(tensor.shape.begin(), tensor.shape.end(), value.shape.begin());
    items.push_back({std::string(kPrefix) + tensor.name, value, DType::f32});
    // PEFT takes a name that a module's ends with; two words, because "gate" ends others too.
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const size_t cut = module.rfind('.', module.rfind('.') - 1);
    whole.insert(module.substr(cut + 1));
  }
  write_atomically(folder + "/adapter_config.json",
                   adapter_json(file, targets, whole, ranks, turned)
                           .dump(2, ' ', false, Json::error_handler_t::replace) +
                       "\n");
  write_safetensors(folder + "/adapter_model.safetensors", items);
}

MergedAdapter merge_adapter(LoadedModel& model, const std::string& folder, int threads) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    if (!std::filesystem::exists(folder + "/" + name))
      fail(
          "{}: there is no {}; an adapter is a folder of adapter_config.json and "
          "adapter_model.safetensors, such as OUT/adapter of `moe train --tune lora`",
          folder, name);
  const std::string config = folder + "/adapter_config.json";
  return merge_adapter(*model.model, read_json(config), config,
                       Safetensors::open(folder + "/adapter_model.safetensors"), threads);
}

MergedAdapter merge_adapter(Model& model, const Json& config, const std::string& where,
                            const Safetensors& file, int threads) {
  const std::vector<FileTensor> map = folder_map(model);
  const std::vector<Module> modules = modules_of(map);
  Found found = look_through(file, Scales(config, where), map, modules);

  MergedAdapter report;
  Run run(threads);
  std::set<const Param*> changed;
  for (FoundPair& it : found.pairs) {
    report.largest = std::max(
        report.largest, add_pair(run, model, changed, *it.module, it.a, it.b, it.rank, it.scale));
    report.matrices += static_cast<int64_t>(it.module->members.size());
  }
  for (const auto& [piece, numbers] : found.whole) {
    own(model, *piece.param, changed, threads);
    const Tensor to = piece.expert < 0 ? piece.param->value : piece.param->value.at(piece.expert);
    std::copy(numbers.begin(), numbers.end(), to.as<float>());
    ++report.whole;
  }
  for (Param* param : model.params())
    if (changed.contains(param)) param->touched();
  return report;
}

}  // namespace moe
