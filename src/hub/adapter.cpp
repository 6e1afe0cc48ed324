// The names of PEFT beside the map of the model's tensors, in both directions.
#include "hub/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/nearest.h"
#include "hub/adapter_gguf.h"
#include "hub/adapter_modules.h"
#include "hub/gguf/gguf_model.h"
#include "hub/hub_cache.h"
#include "hub/named_models.h"
#include "hub/tensor_map.h"
#include "tensor/quant.h"

namespace moe {
namespace {

constexpr std::string_view kPrefix = "base_model.model.", kA = ".lora_A.weight",
                           kB = ".lora_B.weight",
                           kTokenRows = ".token_adapter.trainable_tokens_delta",
                           kMatrixEnd = ".weight";
constexpr const char* kTokens = "trainable_token_indices";
constexpr const char *kConfigFile = "/adapter_config.json",
                     *kTensorsFile = "/adapter_model.safetensors";

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

void rename_prefix(std::vector<FileTensor>& map, std::string_view from, std::string_view to) {
  if (to.empty()) return;
  for (FileTensor& tensor : map)
    if (tensor.name.starts_with(from)) tensor.name.replace(0, from.size(), to);
}

// PEFT has the names of modules, which in transformers 5 begin otherwise than those of some
// families' files. It renames pairs that are called as in the files, but neither whole tensors nor
// rows of tokens (peft:utils/transformers_weight_conversion.py).
std::vector<FileTensor> module_map(Model& model) {
  std::vector<FileTensor> map = folder_map(model);
  const TensorNames& names = *architecture_of(model.config()).names;
  rename_prefix(map, names.prefix, names.other_prefix);
  return map;
}

// The names that the adapter has: as module_map() has them, or those of the model's files.
std::vector<FileTensor> map_of_adapter(Model& model, const Safetensors& file) {
  const TensorNames& names = *architecture_of(model.config()).names;
  const auto begins = [&](std::string_view prefix) {
    return std::ranges::any_of(file.tensors(), [&](const NamedTensor& tensor) {
      return std::string_view(tensor.name).starts_with(fmt::format("{}{}", kPrefix, prefix));
    });
  };
  const bool modules = names.other_prefix.empty() || begins(names.other_prefix);
  return modules || !begins(names.prefix) ? module_map(model) : folder_map(model);
}

// ---- writing ------------------------------------------------------------------------------------

Json adapter_json(const AdapterFile& file, const std::set<std::string>& targets,
                  const std::set<std::string>& whole, const std::map<std::string, int64_t>& ranks,
                  const Json& tokens, bool turned) {
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
          {"modules_to_save", whole.empty() ? Json() : Json(whole)},
          {kTokens, tokens}};
}

// Whether rows of tokens can stand apart from it.
bool is_token_table(const FileTensor& tensor) {
  const FileTensor::Piece& piece = tensor.pieces[0];
  return tensor.pieces.size() == 1 && !piece.transpose && piece.order.as_in_model() &&
         piece.columns.as_in_model() && piece.param->is_matrix() &&
         (piece.param->part == Part::embedding || piece.param->part == Part::lm_head);
}

// Adds the rows of tokens, and gives what the configuration says of them: null where there are
// none.
Json add_rows(std::vector<SafetensorsItem>& items, const std::string& folder,
              const AdapterFile& file, const std::vector<FileTensor>& map) {
  Json tokens;
  for (const OfTokens& own : file.tokens) {
    const auto tensor = std::find_if(map.begin(), map.end(), [&](const FileTensor& t) {
      return !t.alias && !t.pieces.empty() && t.pieces[0].param == own.base;
    });
    if (tensor == map.end() || !is_token_table(*tensor))
      fail("{}: \"{}\" is no tensor of its own in a folder, so an adapter cannot bring rows of it",
           folder, own.base->name);
    const std::string module = tensor->name.substr(0, tensor->name.size() - kMatrixEnd.size());
    items.push_back({fmt::format("{}{}{}", kPrefix, module, kTokenRows), own.rows, DType::f32});
    tokens[std::string(last_word(module))] = own.ids;
  }
  return tokens;
}

// ---- reading ------------------------------------------------------------------------------------

// The other ways of PEFT to begin (pissa, olora, corda, loftq) change the model's matrices, and the
// pairs belong to what was left of them.
void check_start(const JsonReader& in, const std::string& path) {
  constexpr const char* kStart = "init_lora_weights";
  constexpr std::string_view kKeepsTheModel[] = {"gaussian", "eva", "orthogonal"};
  if (!in.has(kStart) || !in.value(kStart).is_string()) return;
  const auto start = in.get<std::string>(kStart);
  if (std::ranges::find(kKeepsTheModel, start) == std::end(kKeepsTheModel))
    fail(
        "{}: \"{}\" is \"{}\", so the adapter belongs to changed weights of the model; save it "
        "from PEFT for the model as it was: save_pretrained(.., "
        "path_initial_model_for_weight_conversion=..)",
        path, kStart, printable(start));
}

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
    check_start(in, path);
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
  std::vector<float> out = floats_of(t);
  for (float x : out)
    if (!std::isfinite(x))
      fail("{}: \"{}\" holds {}; a model with such weights computes nothing", file.path(),
           printable(name), x);
  return out;
}

// What a file brings, all of it looked at: pairs, and tensors that replace the model's.
struct FoundWhole {
  FileTensor::Piece piece;
  std::vector<float> numbers;
};
struct FoundRows {
  Param* base;
  std::vector<int64_t> ids;    // [T] as the file has them
  std::vector<float> numbers;  // [T,D]
};
struct Found {
  std::vector<FoundPair> pairs;
  std::vector<FoundWhole> whole;
  std::vector<FoundRows> rows;
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

// Whose rows each module's are, by "trainable_token_indices".
class TokenIds {
 public:
  TokenIds(const Json& json, std::string where) : where_(std::move(where)) {
    const JsonReader in(json, where_);
    if (!in.has(kTokens)) return;
    if (const Json& value = in.value(kTokens); value.is_object()) {
      const JsonReader names = in.object(kTokens);
      for (const std::string& name : names.keys())
        by_name_.emplace_back(name, names.get<std::vector<int64_t>>(name));
    } else {
      by_name_.emplace_back("", in.get<std::vector<int64_t>>(kTokens));
    }
  }
  bool any() const {
    return std::any_of(by_name_.begin(), by_name_.end(),
                       [](const auto& named) { return !named.second.empty(); });
  }
  // A list alone is of the embedding; a name is one that the module's ends with.
  const std::vector<int64_t>& of(std::string_view module, const Param& table) const {
    for (const auto& [name, ids] : by_name_)
      if (name.empty() ? table.part == Part::embedding : module.ends_with(name)) {
        check(ids, module, table);
        return ids;
      }
    fail("{}: \"{}\" does not say whose rows \"{}\" has", where_, kTokens, printable(module));
  }

 private:
  void check(const std::vector<int64_t>& ids, std::string_view module, const Param& table) const {
    if (ids.empty())
      fail("{}: \"{}\" names no token of \"{}\"", where_, kTokens, printable(module));
    std::set<int64_t> seen;
    for (const int64_t id : ids) {
      if (id < 0 || id >= table.value.rows())
        fail("{}: \"{}\" names token {}, and \"{}\" has {} rows", where_, kTokens, id,
             printable(module), table.value.rows());
      if (!seen.insert(id).second) fail("{}: \"{}\" names token {} twice", where_, kTokens, id);
    }
  }

  std::string where_;
  std::vector<std::pair<std::string, std::vector<int64_t>>> by_name_;
};

// Their tensors by name.
using TensorsByName = std::map<std::string_view, const FileTensor*>;

FoundRows read_rows(const Safetensors& file, const std::string& key, const TokenIds& tokens,
                    const TensorsByName& tensors) {
  const std::string_view name = std::string_view(key).substr(kPrefix.size());
  const std::string_view module = name.substr(0, name.size() - kTokenRows.size());
  const auto place = tensors.find(fmt::format("{}{}", module, kMatrixEnd));
  if (place == tensors.end() || !is_token_table(*place->second))
    fail("{}: \"{}\" has rows of neither the embedding nor a head of its own of this model",
         file.path(), printable(key));
  Param& table = *place->second->pieces[0].param;
  const std::vector<int64_t>& ids = tokens.of(module, table);
  return {&table, ids, floats_of(file, key, {std::ssize(ids), table.value.cols()})};
}

Found look_through(const Safetensors& file, const Scales& scales, const TokenIds& tokens,
                   const std::vector<FileTensor>& map, const std::vector<Module>& modules) {
  std::map<std::string_view, const Module*> by_name;
  TensorsByName tensors;
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
    if (name.ends_with(kTokenRows)) {
      found.rows.push_back(read_rows(file, tensor.name, tokens, tensors));
      continue;
    }
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
  if (tokens.any() && found.rows.empty())
    fail("{}: it has no rows of the tokens that the configuration names (\"{}\")", file.path(),
         kTokens);
  return found;
}

// PEFT saves a copy of an embedding that is trained whole, and goes on with the head as it was,
// unless it is asked to keep both one: peft:tuners/lora/config.py.
void check_ties(const Found& found, const Model& model, const Json& config,
                const std::string& where) {
  constexpr const char* kTies = "ensure_weight_tying";
  const JsonReader in(config, where);
  if (!model.config().tied || (in.has(kTies) && in.get<bool>(kTies))) return;
  for (const FoundWhole& whole : found.whole)
    if (whole.piece.param->part == Part::embedding)
      fail(
          "{}: it brings the embedding (\"modules_to_save\") without \"{}\", so the head stays as "
          "it was; in this model both are one matrix",
          where, kTies);
}

// In the order of their ids.
void hang_rows(Adapters& adapters, const FoundRows& found) {
  std::vector<size_t> order(found.ids.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return found.ids[a] < found.ids[b]; });
  std::vector<int64_t> ids;
  for (const size_t i : order) ids.push_back(found.ids[i]);
  const Tensor rows = adapters.add_rows(*found.base, ids, false).rows.value;
  for (size_t t = 0; t < order.size(); ++t)
    std::copy_n(found.numbers.begin() + static_cast<int64_t>(order[t]) * rows.cols(), rows.cols(),
                rows.row<float>(static_cast<int64_t>(t)));
}

}  // namespace

void save_adapter(const std::string& folder, Model& model, const AdapterFile& file,
                  const std::map<std::string, std::string>& metadata) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("cannot create the folder {}: {}", folder, error.message());
  const std::vector<FileTensor> map = module_map(model);
  const std::vector<Module> modules = modules_of(map);
  Pairs of;
  for (const LowRank& low : file.matrices) of[low.base] = &low;
  std::vector<SafetensorsItem> items;
  const auto room = std::make_shared<std::vector<float>>();
  std::set<std::string> targets, whole;
  std::map<std::string, int64_t> ranks;
  for (const Module& module : modules) {
    const int64_t rank = rank_of(module, of);
    if (rank == 0) continue;
    items.push_back({fmt::format("{}{}{}", kPrefix, module.name, kA),
                     Tensor(nullptr, DType::f32, {rank, module.members[0].cols}), DType::f32,
                     [&module, &of, rank, room] { return stacked_a(module, of, rank, room); }});
    items.push_back({fmt::format("{}{}{}", kPrefix, module.name, kB),
                     Tensor(nullptr, DType::f32, {module.out, rank}), DType::f32,
                     [&module, &of, rank, room] { return stacked_b(module, of, rank, room); }});
    const std::string target = target_name(module.name);
    targets.insert(target);
    // from that word on, so that the number of an expert behind it counts
    if (rank != file.rank) ranks[module.name.substr(module.name.rfind(target))] = rank;
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
    Tensor value = numbers_of(piece);
    value.rank = static_cast<int>(tensor.shape.size());  // a vector may be a row in the file
    std::copy(tensor.shape.begin(), tensor.shape.end(), value.shape.begin());
    items.push_back({std::string(kPrefix) + tensor.name, value, DType::f32});
    // PEFT takes a name that a module's ends with; two words, because "gate" ends others too.
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const size_t cut = module.rfind('.', module.rfind('.') - 1);
    whole.insert(module.substr(cut + 1));
  }
  const Json tokens = add_rows(items, folder, file, map);
  write_atomically(folder + kConfigFile,
                   adapter_json(file, targets, whole, ranks, tokens, turned)
                           .dump(2, ' ', false, Json::error_handler_t::replace) +
                       "\n");
  write_safetensors(folder + kTensorsFile, items, metadata);
}

bool is_adapter(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder + kConfigFile, ignored) &&
         !std::filesystem::exists(folder + "/config.json", ignored);
}

namespace {

// PEFT names the base by its repository.
std::string how_to_fetch(const std::string& base) {
  const std::optional<HubName> name = parse_hub_name(base);
  return name && base.find('/') != base.npos
             ? fmt::format(" (`{}` fetches it)", fetch_command(*name))
             : "";
}

}  // namespace

std::string adapter_base(const std::string& folder) {
  const std::string where = folder + kConfigFile;
  const Json config = read_json(where);
  const JsonReader in(config, where);
  constexpr const char* kBase = "base_model_name_or_path";
  const std::string base = in.has(kBase) ? in.get<std::string>(kBase) : "",
                    path = path_if_here(base);
  if (path.empty())
    fail("{}: {}; name it yourself, as in `moe generate MODEL --adapter {}`", where,
         base.empty() ? "it does not say which model it belongs to (\"base_model_name_or_path\")"
                      : fmt::format("the model it belongs to, {}, is not there{}", printable(base),
                                    how_to_fetch(base)),
         folder);
  if (is_adapter(path))
    fail(
        "{}: what it belongs to, {}, is an adapter itself; merge that one first: moe convert {} "
        "OUT",
        where, printable(base), printable(base));
  return base;
}

std::map<std::string, std::string> adapter_metadata(const std::string& folder) {
  return Safetensors::open(folder + kTensorsFile).metadata();
}

AttachedAdapter attach_adapter(Model& model, const std::string& folder, int threads,
                               AdapterPart part) {
  if (is_gguf(folder))
    return part == AdapterPart::all ? attach_gguf_adapter(model, folder) : AttachedAdapter{};
  for (const char* name : {kConfigFile, kTensorsFile})
    if (!std::filesystem::exists(folder + name))
      fail(
          "{}: there is no {}; an adapter is a folder of adapter_config.json and "
          "adapter_model.safetensors, such as `moe train --tune lora` leaves",
          folder, name + 1);
  const std::string config = folder + kConfigFile;
  return attach_adapter(model, read_json(config), config, Safetensors::open(folder + kTensorsFile),
                        threads, part);
}

AttachedAdapter attach_adapter(Model& model, const Json& config, const std::string& where,
                               const Safetensors& file, int threads, AdapterPart part) {
  if (model.experts().size > 1)
    fail_usage("an adapter cannot hang on experts that lie on several processes; merge it first");
  const std::vector<FileTensor> map = map_of_adapter(model, file);
  const std::vector<Module> modules = modules_of(map);
  const Found found =
      look_through(file, Scales(config, where), TokenIds(config, where), map, modules);
  check_ties(found, model, config, where);

  AttachedAdapter report;
  for (const auto& [piece, numbers] : found.whole) {
    model.own(*piece.param, threads);
    const Tensor to = numbers_of(piece);
    std::copy(numbers.begin(), numbers.end(), to.as<float>());
    piece.param->touched();
    ++report.whole;
  }
  if (part == AdapterPart::whole_tensors) return report;
  const int64_t whole = report.whole;
  report = hang_pairs(model, found.pairs);
  report.whole = whole;
  for (const FoundRows& rows : found.rows) {
    hang_rows(*report.terms, rows);
    report.token_rows += std::ssize(rows.ids);
  }
  return report;
}

LoadedModel with_adapter(LoadedModel base, const std::string& folder, AdapterPart part) {
  attach_adapter(*base.model, folder, 1, part);
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/tokenizer.json", ignored))
    base.tokenizer = load_tokenizer(folder);
  base.metadata = adapter_metadata(folder);
  base.general.clear();
  return base;
}

// |B A|^2 = sum over k and l of (B^T B)_kl (A A^T)_kl
double largest_term(const Model& model) {
  double largest = 0;
  const auto dot = [](const Tensor& m, int64_t i, int64_t j, bool columns) {
    double sum = 0;
    for (int64_t n = 0; n < (columns ? m.rows() : m.cols()); ++n)
      sum += static_cast<double>(columns ? m.row<float>(n)[i] : m.row<float>(i)[n]) *
             static_cast<double>(columns ? m.row<float>(n)[j] : m.row<float>(j)[n]);
    return sum;
  };
  std::vector<float> row;
  for (const Param* w : model.params()) {
    if (w->term == nullptr) continue;
    for (int64_t e = 0; e < w->value.matrices(); ++e) {
      const int64_t pair = w->term->pair_of(e);
      if (pair < 0) continue;
      const Tensor matrix = w->expert(e), a = w->term->a->expert(pair),
                   b = w->term->b->expert(pair);
      double term = 0, before = 0;
      for (int64_t k = 0; k < a.rows(); ++k)
        for (int64_t l = 0; l < a.rows(); ++l) term += dot(b, k, l, true) * dot(a, k, l, false);
      row.resize(static_cast<size_t>(matrix.cols()));
      for (int64_t r = 0; r < matrix.rows(); ++r) {
        dequantise(row.data(), static_cast<const char*>(matrix.data) + r * matrix.row_bytes,
                   matrix.dtype, matrix.cols());
        for (const float x : row) before += static_cast<double>(x) * static_cast<double>(x);
      }
      const auto scale = static_cast<double>(w->term->scale);
      if (before > 0) largest = std::max(largest, std::abs(scale) * std::sqrt(term / before));
    }
  }
  return largest;
}

AdapterFile adapter_on(Model& model) {
  AdapterFile file;
  for (Param* param : model.params()) {
    if (const OwnRows* own = param->own_rows)
      file.tokens.push_back({param, own->rows->value, own->ids});
    if (param->term == nullptr) continue;
    file.matrices.push_back(
        {param, param->term->a->value, param->term->b->value, param->term->experts});
    file.rank = std::max(file.rank, param->term->b->value.cols());
    file.alpha = static_cast<double>(param->term->scale) * static_cast<double>(file.rank);
  }
  return file;
}

LoadedModel open_adapted(const std::string& model, const std::string& adapter,
                         const MemoryLimits& limits, const comm::Group& experts) {
  LoadedModel loaded = open_model(model, limits, experts);
  if (!adapter.empty()) attach_adapter(*loaded.model, adapter, 1);
  return loaded;
}

void add_adapter(FieldList& list, std::string& adapter) {
  list.add("adapter", adapter,
           "run the model with this low-rank adapter, a folder as PEFT and moe train @tune lora "
           "leave it, or a .gguf as llama.cpp takes it; the model's file stays as it is")
      .path();
}

}  // namespace moe
